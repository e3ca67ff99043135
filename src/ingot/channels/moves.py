"""Which changes of a channel are refused, and what the others make of it. Pure: what is, comes in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from ingot.channels.records import Channel, ImageSet, Member
from ingot.channels.verdict import Verdict
from ingot.preflight.refusal import Refusal

Images = Mapping[str, Mapping[str, Any]]
"""What EC2 says of AMIs, by their ids: state and tags."""


def tags(image: Mapping[str, Any]) -> dict[str, str]:
    return {item["Key"]: item["Value"] for item in image.get("Tags", [])}


def gathered(verdicts: Sequence[tuple[Verdict, str]]) -> ImageSet:
    """The set that verdicts let in, each with the hash of its file. They must be of one commit."""
    return ImageSet(
        commit=verdicts[0][0].commit,
        proved=min(verdict.finished for verdict, _ in verdicts),
        members={
            verdict.image: Member(image_id=verdict.image_id, verdict=digest) for verdict, digest in verdicts
        },
    )


def check_verdicts(
    verdicts: Sequence[tuple[Verdict, str]], images: Images, now: datetime, most_days: float
) -> Iterator[Refusal]:
    """Each is a good one of an AMI that is as it was then, and all are of one commit."""
    for verdict, _ in verdicts:
        called = f"the verdict on {verdict.image_id} ({verdict.image or 'an image without a name'})"
        if failed := verdict.failed:
            yield Refusal(
                "verdict-failed",
                f"{called} failed: {', '.join(failed)}",
                "Mend the image, bake and verify it anew",
            )
        if (age := verdict.age_days(now)) > most_days:
            yield _too_old("verdict-too-old", called, age, most_days)
        there = images.get(verdict.image_id)
        if there and tags(there).get("ingot:commit") != verdict.commit:
            yield Refusal(
                "verdict-of-another-commit",
                f"{called} is of commit {verdict.commit or '(none)'}, and the AMI is tagged"
                f" {tags(there).get('ingot:commit', '(none)')}",
                "Verify this AMI",
            )
        if there and tags(there).get("ingot:image") != verdict.image:
            yield Refusal(
                "verdict-of-another-image",
                f"{called}, and the AMI is tagged {tags(there).get('ingot:image', '(none)')}",
                "Verify this AMI",
            )
    yield from check_there((verdict.image_id for verdict, _ in verdicts), images)
    commits = sorted({verdict.commit for verdict, _ in verdicts})
    if len(commits) > 1:
        yield Refusal(
            "mixed-set",
            f"a set is of one commit, and these are of {', '.join(commits)}",
            "Give the verdicts of one, and bake what it lacks",
        )
    if unclean := [commit for commit in commits if commit.endswith("-dirty") or not commit]:
        yield Refusal(
            "no-commit",
            f"what these images were made of is in no commit ({', '.join(unclean) or 'no tag ingot:commit'})",
            "Commit, bake and verify",
        )
    named = [verdict.image for verdict, _ in verdicts]
    if twice := sorted({image for image in named if named.count(image) > 1}):
        yield Refusal(
            "image-twice", f"there are two verdicts on {', '.join(twice)}", "Give one of each image"
        )


def check_there(image_ids: Iterable[str], images: Images) -> Iterator[Refusal]:
    """Every AMI can be launched."""
    for image_id in image_ids:
        state = str(images.get(image_id, {}).get("State", ""))
        if state != "available":
            yield Refusal(
                "image-not-available",
                f"{image_id} is {state}" if state else f"there is no {image_id} in this account and region",
                "Wait until it is available, or bake and verify another",
            )


def check_promotion(
    channel: Channel, images: ImageSet, now: datetime, most_days: float, dropped: Sequence[str]
) -> Iterator[Refusal]:
    """The channel takes this set: not pinned, losing no image unasked, not given up before."""
    yield from check_pin(channel)
    age = (now - images.proved).total_seconds() / 86400
    if age > most_days:
        yield _too_old("set-too-old", f"set {images.name}", age, most_days)
    held = channel.images.members.keys() if channel.images else set[str]()
    if lost := sorted(held - images.members.keys() - set(dropped)):
        yield Refusal(
            "set-lacks-image",
            f"{channel.name} holds {', '.join(lost)}, and set {images.name} does not",
            "Add a verdict for it, or give --drop if nobody needs it any more",
        )
    if back := channel.given_up(images):
        yield Refusal(
            "set-was-rolled-back",
            f"set {images.name} was taken out of {channel.name} on {back.when:%Y-%m-%d %H:%M} by {back.who}"
            f" ({back.why}), and not verified since",
            "Verify its images again, or bake new ones",
        )


def check_pin(channel: Channel) -> Iterator[Refusal]:
    if pin := channel.pinned:
        yield Refusal(
            "channel-pinned",
            f"{channel.name} was pinned on {pin.when:%Y-%m-%d %H:%M} by {pin.who}: {pin.why}",
            f"When that is over: ingot channel unpin {channel.name}",
        )


def set_to_promote(channel: Channel, source: Channel) -> tuple[ImageSet | None, list[Refusal]]:
    """What the channel before this one holds."""
    if source.images:
        return source.images, []
    why = f"{source.name} is empty, and sets come to {channel.name} from there"
    return None, [Refusal("channel-empty", why, f"First: ingot channel promote {source.name}")]


def set_to_return_to(channel: Channel, images: Images) -> tuple[ImageSet | None, list[Refusal]]:
    """The last set that the channel held before, whose images are all still there."""
    earlier = channel.earlier()
    for older in earlier:
        if not list(check_there(older.image_ids, images)):
            return older, []
    tried = ", ".join(older.name for older in earlier)
    why = f"the images of {tried} are gone" if tried else f"{channel.name} has held no other set"
    return None, [
        Refusal("nothing-to-return-to", why, "Bake and verify images of a good commit, and promote them")
    ]


def _too_old(name: str, what: str, age: float, most: float) -> Refusal:
    return Refusal(
        name, f"{what} is {age:.1f} days old, and {most:g} are allowed", "Verify again, or give --most-days"
    )
