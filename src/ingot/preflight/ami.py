"""An AMI, as DescribeImages describes it: the base of a bake, or what is to be launched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from ingot.preflight.refusal import Refusal


def check_ami(
    image: Mapping[str, Any],
    *,
    architecture: str = "",
    owner: str = "",
    root_device: str = "",
    volume_gib: int = 0,
    imdsv2_only: bool = False,
    now: datetime | None = None,
) -> list[Refusal]:
    """What speaks against an AMI, from DescribeImages' answer (names as the Ansible modules give them).

    Args:
        image: the answer's entry.
        architecture: in EC2's words, where it must be a certain one.
        owner: account that it must belong to, or EC2's alias for one, such as ``amazon``.
        root_device: name that its root device must have.
        volume_gib: size of the root volume that is asked for; the image's own must not be larger.
        imdsv2_only: whether its instances must refuse version 1 of the metadata service.
        now: when to hold deprecation against.
    """
    what = f"{image['image_id']} ({image.get('name', 'without a name')})"
    found = str(image.get("architecture", ""))
    boot_mode = str(image.get("boot_mode") or "")
    kinds = (str(image.get("root_device_type", "")), str(image.get("virtualization_type", "")))
    root = str(image.get("root_device_name", ""))
    size = max((int((d.get("ebs") or {}).get("volume_size") or 0) for d in _devices(image, root)), default=0)
    owners = {str(image.get("owner_id", "")), str(image.get("image_owner_alias", ""))}
    deprecated = str(image.get("deprecation_time") or "")
    newer = "Take a newer image, or correct the name and owner in packer/images.yml"
    refusals = []

    def refuse(name: str, why: str, do: str) -> None:
        refusals.append(Refusal(name, f"{what} {why}", do))

    if (state := str(image.get("state", ""))) != "available":
        refuse(
            "ami-not-available",
            f"is {state or 'in no known state'}",
            "Wait until it is available, or take another",
        )
    if architecture and found != architecture:
        refuse("ami-architecture", f"is {found or 'of no architecture'}, {architecture} is needed", newer)
    if owner and owner not in owners:
        refuse(
            "ami-foreign-owner",
            f"belongs to {' '.join(sorted(filter(None, owners))) or 'nobody'}, not to {owner}",
            "Anybody can publish an image under any name: take that of the account in packer/images.yml",
        )
    if deprecated and datetime.fromisoformat(deprecated) <= (now or datetime.now(UTC)):
        refuse("ami-deprecated", f"is deprecated since {deprecated[:10]}: nobody mends it any more", newer)
    if kinds != ("ebs", "hvm"):
        refuse("ami-kind", f"is {kinds[0] or '?'}, {kinds[1] or '?'}; a bake needs ebs and hvm", newer)
    if found == "arm64" and boot_mode == "legacy-bios":
        refuse("ami-boot-mode", "boots by legacy-bios, which no arm64 instance does", newer)
    if not image.get("ena_support"):
        refuse(
            "ami-no-ena",
            "has no ENA support, without which no current instance type has a network",
            newer,
        )
    if root_device and root != root_device:
        refuse(
            "ami-root-device",
            f"has its root on {root or 'no device'}, packer/images.yml says {root_device}: a second volume"
            " would appear under that name and the root stay small",
            f"Write root_device: {root} there" if root else newer,
        )
    if volume_gib and size > volume_gib:
        refuse(
            "ami-root-too-large",
            f"has a root volume of {size} GiB, {volume_gib} GiB are asked for",
            f"Ask for {size} GiB or more",
        )
    if imdsv2_only and image.get("imds_support") != "v2.0":
        refuse(
            "ami-imdsv1",
            "lets its instances answer version 1 of the metadata service",
            f"aws ec2 modify-image-attribute --image-id {image['image_id']} --imds-support v2.0",
        )
    return refusals


def _devices(image: Mapping[str, Any], root: str) -> Iterable[Mapping[str, Any]]:
    return [d for d in image.get("block_device_mappings", []) if d.get("device_name") == root]
