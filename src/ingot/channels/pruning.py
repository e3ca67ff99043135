"""Which AMIs nobody needs any more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ingot.channels.moves import tags
from ingot.channels.records import Channel

KEPT_SETS = 2
"""Sets before the present one of a channel whose images stay: what a rollback returns to, and one more."""


@dataclass(frozen=True)
class Image:
    """An AMI of ours, its snapshots, and why it stays; empty if it goes."""

    image_id: str
    name: str
    created: datetime
    snapshots: tuple[str, ...]
    kept: str


def snapshots_of(image: Mapping[str, Any]) -> tuple[str, ...]:
    """The snapshots that an AMI, as EC2 describes it, is made of."""
    disks = (mapping.get("Ebs", {}) for mapping in image.get("BlockDeviceMappings", []))
    return tuple(disk["SnapshotId"] for disk in disks if disk.get("SnapshotId"))


def in_channels(channels: Iterable[Channel]) -> dict[str, str]:
    """AMIs that a channel holds or can return to, and which."""
    found: dict[str, str] = {}
    for channel in channels:
        older = channel.earlier()[:KEPT_SETS]
        for images in [*([channel.images] if channel.images else []), *older]:
            held = f"in {channel.name}" if images is channel.images else f"{channel.name} can return to it"
            for image_id in images.image_ids:
                found.setdefault(image_id, held)
    return found


def decide(
    images: Sequence[Mapping[str, Any]],
    channels: Iterable[Channel],
    used: Mapping[str, str],
    now: datetime,
    retention_days: float,
) -> list[Image]:
    """All of ours, the oldest first. ``used``: what uses an AMI, by its id."""
    held = in_channels(channels)
    found = []
    for image in images:
        if "ingot:image" not in tags(image):
            continue
        created = datetime.fromisoformat(image["CreationDate"].replace("Z", "+00:00"))
        age = (now - created).total_seconds() / 86400
        why = held.get(image["ImageId"]) or used.get(image["ImageId"], "")
        if not why and age < retention_days:
            why = f"{age:.0f} of {retention_days:g} days old"
        found.append(Image(image["ImageId"], image.get("Name", ""), created, snapshots_of(image), why))
    return sorted(found, key=lambda image: image.created)


def left_over(snapshots: Sequence[Mapping[str, Any]], images: Sequence[Mapping[str, Any]]) -> list[str]:
    """Snapshots of ours that no AMI has: a prune that was ended between the two leaves them."""
    needed = {snapshot for image in images for snapshot in snapshots_of(image)}
    return sorted(
        snapshot["SnapshotId"]
        for snapshot in snapshots
        if "ingot:image" in tags(snapshot)
        and snapshot["SnapshotId"] not in needed
        and snapshot["State"] == "completed"
    )
