"""What the account has: AMIs, and what uses them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def describe(ec2: Any, image_ids: Iterable[str]) -> dict[str, dict[str, Any]]:
    """AMIs by id; those that are gone are not in it."""
    wanted = sorted(set(image_ids))
    if not wanted:
        return {}
    # By a filter: an id that is gone would be an error of the whole call.
    pages = ec2.get_paginator("describe_images").paginate(Filters=[{"Name": "image-id", "Values": wanted}])
    return {image["ImageId"]: image for page in pages for image in page["Images"]}


def ours(ec2: Any) -> list[dict[str, Any]]:
    """All AMIs of ours in this account and region."""
    pages = ec2.get_paginator("describe_images").paginate(
        Owners=["self"], Filters=[{"Name": "tag-key", "Values": ["ingot:image"]}]
    )
    return [image for page in pages for image in page["Images"]]


def snapshots(ec2: Any) -> list[dict[str, Any]]:
    """All snapshots of ours."""
    pages = ec2.get_paginator("describe_snapshots").paginate(
        OwnerIds=["self"], Filters=[{"Name": "tag-key", "Values": ["ingot:image"]}]
    )
    return [snapshot for page in pages for snapshot in page["Snapshots"]]


def users(ec2: Any) -> dict[str, str]:
    """What would miss an AMI: instances that are not gone, and every version of every launch template."""
    found: dict[str, str] = {}
    for page in ec2.get_paginator("describe_launch_templates").paginate():
        for template in page["LaunchTemplates"]:
            versions = ec2.get_paginator("describe_launch_template_versions").paginate(
                LaunchTemplateId=template["LaunchTemplateId"]
            )
            for version in (version for page in versions for version in page["LaunchTemplateVersions"]):
                if image_id := version["LaunchTemplateData"].get("ImageId"):
                    found[image_id] = f"launch template {template['LaunchTemplateName']}"
    for page in ec2.get_paginator("describe_instances").paginate():
        for instance in (instance for group in page["Reservations"] for instance in group["Instances"]):
            if instance["State"]["Name"] != "terminated":
                found[instance["ImageId"]] = f"instance {instance['InstanceId']}"
    return found
