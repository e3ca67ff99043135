"""AMIs and their snapshots: what an image is made of, down to the read-only trees on disk.

moto alone answers for every created image: a 15 GiB standard volume, root device type "standard", boot mode
"uefi", no ImdsSupport, and a snapshot without tags that is "completed" at once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from moto.ec2.exceptions import FilterNotImplementedError
from moto.ec2.models.amis import Ami
from moto.ec2.utils import random_ami_id

from ingot.rehearsal.api import errors
from ingot.rehearsal.base import BaseTree

NAME_PATTERN = re.compile(r"[A-Za-z0-9()\[\] ./\-'@_]{3,128}")

ROOT_DEVICE = "/dev/xvda"  # of an instance without an image that says otherwise, and of Debian's images


@dataclass
class RootVolume:
    """The root device of an image, as DescribeImages shows it."""

    size: int
    volume_type: str = "gp3"
    iops: int | None = 3000
    throughput: int | None = 125
    encrypted: bool = False
    kms_key_id: str | None = None
    delete_on_termination: bool = True


class LocalAmi(Ami):
    """An AMI that can be launched, since it knows the trees of its root device."""

    # moto's CreateImage leaves the first out and DescribeImages then shows "standard", "uefi" and nothing.
    ena_support = True
    platform_details = "Linux/UNIX"
    usage_operation = "RunInstances"
    imds_support: str | None = None
    source_image_id: str | None = None
    state_reason: dict[str, str] | None = None

    def __init__(
        self, backend: Any, image_id: str, *, root: RootVolume, layers: tuple[Path, ...], **details: Any
    ) -> None:
        details = {
            "root_device_name": ROOT_DEVICE,
            "boot_mode": "uefi-preferred",
            "hypervisor": "xen",
        } | details
        super().__init__(
            backend, image_id, root_device_type="ebs", region_name=f"{backend.region_name}a", **details
        )
        self.image_location = self.image_location or f"{self.owner_id}/{self.name}"
        self.root = root
        self.ebs_snapshot.volume.size = root.size
        self.ebs_snapshot.encrypted = root.encrypted
        self.ebs_snapshot.kms_key_id = root.kms_key_id
        self.ebs_snapshot.layers = layers

    @property
    def layers(self) -> tuple[Path, ...]:
        layers: tuple[Path, ...] = self.ebs_snapshot.layers
        return layers

    @property
    def block_device_mappings(self) -> list[dict[str, Any]]:
        ebs = {
            "SnapshotId": self.ebs_snapshot.id,
            "VolumeSize": self.root.size,
            "VolumeType": self.root.volume_type,
            "DeleteOnTermination": self.root.delete_on_termination,
            "Encrypted": self.root.encrypted,
            "Iops": self.root.iops,
            "Throughput": self.root.throughput,
            "KmsKeyId": self.root.kms_key_id,
        }
        return [{"DeviceName": self.root_device_name, "Ebs": {k: v for k, v in ebs.items() if v is not None}}]

    def get_filter_value(self, filter_name: str, method_name: str | None = None) -> Any:
        """moto refuses a filter on what is empty, as if there were no such filter."""
        try:
            return super().get_filter_value(filter_name, method_name)
        except FilterNotImplementedError:
            if hasattr(self, filter_name.replace("-", "_")):
                return ""
            raise

    def complete(self, layers: tuple[Path, ...]) -> None:
        """The machine's tree was taken: the image can be launched from now on."""
        self.ebs_snapshot.layers = layers
        self.ebs_snapshot.status = "completed"
        self.state = "available"

    def fail(self, message: str) -> None:
        """The tree could not be taken. The image stays, as on EC2, with the reason on it."""
        self.ebs_snapshot.status = "error"
        self.state = "failed"
        self.state_reason = {"Code": "Server.InternalError", "Message": message}


def check_name(name: str | None, images: Iterable[Ami], owner_id: str) -> str:
    """Refuse a name that EC2 would refuse: missing, malformed, or in use in this account."""
    if not name:
        raise errors.missing_parameter("name")
    if not NAME_PATTERN.fullmatch(name):
        raise errors.image_name_malformed(name)
    for image in images:
        if image.owner_id == owner_id and image.name == name:
            raise errors.image_name_duplicate(name, image.id)
    return name


def register_base(backend: Any, base: BaseTree) -> LocalAmi:
    """Offer a base tree as the distribution's AMI, once. Earlier ones stay as long as their trees do.

    The identifiers are computed from the tree's key, so that they are the same on each start.
    """
    digest = hashlib.sha256(f"{base.architecture}/{base.key}".encode()).hexdigest()
    image_id, snapshot_id = f"ami-{digest[:17]}", f"snap-{digest[17:34]}"
    for earlier in list(backend.amis.values()):
        gone = not all(layer.exists() for layer in earlier.layers)
        if earlier.owner_id == base.owner and (earlier.id == image_id or gone):
            del backend.amis[earlier.id]
            backend.snapshots.pop(earlier.ebs_snapshot.id, None)
    image = LocalAmi(
        backend,
        image_id,
        root=RootVolume(size=8),
        layers=(base.tree,),
        name=base.ami_name,
        description=f"Debian 13 ({base.created[:10].replace('-', '')})",
        owner_id=base.owner,
        public=True,
        virtualization_type="hvm",
        architecture=base.architecture,
        creation_date=datetime.fromisoformat(base.created),
    )
    backend.snapshots.pop(image.ebs_snapshot.id)
    image.ebs_snapshot.id = snapshot_id
    backend.snapshots[snapshot_id] = image.ebs_snapshot
    backend.amis[image.id] = image
    return image


def image_of_instance(backend: Any, instance: Any, name: str, description: str, root: RootVolume) -> LocalAmi:
    """The pending AMI of an instance; its trees come when the machine was frozen."""
    image = LocalAmi(
        backend,
        random_ami_id(),
        root=root,
        layers=(),
        instance=instance,
        name=name,
        description=description,
        root_device_name=instance.root_device_name,
        state="pending",
    )
    image.ebs_snapshot.description = f"Created by CreateImage({instance.id}) for {image.id}"
    image.ebs_snapshot.status = "pending"
    image.ebs_snapshot.volume.id = instance.root_volume.id
    image.source_image_id = instance.image_id
    backend.amis[image.id] = image
    return image


def image_copy(backend: Any, source: LocalAmi, name: str, description: str | None) -> LocalAmi:
    """An AMI of this account with the trees of another one."""
    image = LocalAmi(
        backend,
        random_ami_id(),
        root=copy(source.root),
        layers=source.layers,
        source_ami=source,
        name=name,
        description=description,
        root_device_name=source.root_device_name,
        boot_mode=source.boot_mode,
    )
    image.imds_support = source.imds_support
    image.source_image_id = source.id
    backend.amis[image.id] = image
    return image
