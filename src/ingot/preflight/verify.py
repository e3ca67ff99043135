"""What speaks against verifying an image, before anything is launched."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ingot import images as images_table
from ingot import instance_types
from ingot.preflight import ami, fit
from ingot.preflight.launch import check_instance_type
from ingot.preflight.refusal import Refusal
from ingot.preflight.variables import check_missing, playbook_options
from ingot.preflight.variables import refusals as check_variables

AMI = re.compile(r"ami-[0-9a-f]{8,17}")
PREFIX = "verify_"


def variable_refusals(variables: Mapping[str, Any]) -> list[Refusal]:
    """What can be said before EC2 is asked."""
    ours = {name for name in playbook_options() if name.startswith(PREFIX)}
    found = [*check_variables(variables), *check_missing(variables, ours)]
    if not found and not AMI.fullmatch(str(variables["verify_image_id"])):
        found.append(
            Refusal(
                "no-image-named",
                f"verify_image_id is {variables['verify_image_id']!r}, which is no AMI",
                "Name the candidate: -e verify_image_id=ami-0a1b2c3d4e5f67890",
            )
        )
    against = str(variables.get("verify_against") or "")
    report = Path(str(variables.get("verify_directory", ""))).parent / against / "report.json"
    if not found and against and not report.exists():
        found.append(
            Refusal(
                "no-earlier-report",
                f"verify_against names {against}, of which this machine has no report ({report})",
                f"Verify it here first (-e verify_image_id={against}), copy its report there, or leave"
                " verify_against out: nothing is compared then",
            )
        )
    return found


def refusals(variables: Mapping[str, Any], images: Sequence[Mapping[str, Any]]) -> list[Refusal]:
    """``images`` is what EC2 found under the id."""
    wanted = variables["verify_image_id"]
    if not images:
        return [
            Refusal(
                "no-such-image",
                f"this account has no image {wanted} in this region",
                "Correct verify_image_id, or set AWS_REGION to the region that it was baked in",
            )
        ]
    if found := images_table.check_catalog():
        return found
    image = images[0]
    name = image.get("tags", {}).get("ingot:image", "")
    table = images_table.load().images
    if name not in table:
        named = f"its tag ingot:image is {name!r}" if name else "it has no tag ingot:image"
        return [
            Refusal(
                "not-an-ingot-image",
                f"image {wanted} ({image.get('name', 'without a name')}) is none of ours: {named}",
                f"Verify one that a template of packer/ has baked ({', '.join(sorted(table))})",
            )
        ]
    kind = instance_type(variables, image)
    if found := check_instance_type(kind):
        return found
    return [
        *ami.check_ami(image, architecture=table[name].architecture, imdsv2_only=True),
        *fit.check_architecture(
            f"instance type {kind}", instance_types.get(kind).arch, wanted, image["architecture"]
        ),
    ]


def instance_type(variables: Mapping[str, Any], image: Mapping[str, Any]) -> str:
    """The type of the clones: the one that is set, or that which the image is built on."""
    row = images_table.load().images[image["tags"]["ingot:image"]]
    return str(variables["verify_instance_type"] or row.instance_type)


def least_volume(image: Mapping[str, Any]) -> int:
    """GiB of the smallest root volume that the image can be launched with: its snapshot's."""
    root = image["root_device_name"]
    devices = [of for of in image["block_device_mappings"] if of["device_name"] == root]
    return max(int(of["ebs"]["volume_size"]) for of in devices)
