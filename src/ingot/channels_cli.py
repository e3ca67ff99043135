"""``ingot channel``: moving sets of images through candidate, beta and stable."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ingot.channels import CHANNELS, account, moves, pruning, sharing, verdict
from ingot.channels.desk import Desk, at_desk
from ingot.channels.records import Channel, Record
from ingot.preflight.refusal import Refusal
from ingot.report import table
from ingot.table import TableError

app = typer.Typer(
    help="Channels of images: candidate, beta, stable. Each change is a record of an append-only log.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(help=f"One of: {', '.join(CHANNELS)}.")]
Where = Annotated[
    str, typer.Option("--store", envvar="INGOT_CHANNELS", help="Where the logs are: ssm, or a directory.")
]
Why = Annotated[str, typer.Option(help="The reason, for the log.")]
Days = Annotated[float, typer.Option(min=0, help="Refuse verdicts and sets that are older, in days.")]


@app.command()
def promote(
    name: Name,
    verdicts: Annotated[
        list[Path] | None,
        typer.Argument(help="For candidate: verdict.json of each image of the set, of playbooks/verify.yml."),
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option(help="An image that the set need not have any more.")
    ] = None,
    why: Why = "",
    most_days: Days = 14,
    where: Where = "ssm",
) -> None:
    """Let a set into candidate by its verdicts, or into the next channel from the one before."""
    with at_desk(where) as desk:
        channel = desk.channel(name)
        refusals: list[Refusal]
        if channel.source:
            if verdicts:
                refusals = [
                    Refusal("no-verdicts-here", f"sets come to {name} from {channel.source}", "Give none")
                ]
                desk.refuse(refusals)
            images, refusals = moves.set_to_promote(channel, desk.channel(channel.source))
            if images:
                refusals += moves.check_there(images.image_ids, desk.images(images))
        else:
            read = _read(desk, verdicts or [])
            there = account.describe(desk.ec2, (each.image_id for each, _ in read))
            refusals = list(moves.check_verdicts(read, there, desk.now, most_days))
            images = None if refusals else moves.gathered(read)
        if images and channel.images and images.members == channel.images.members and not refusals:
            typer.echo(f"{name} holds {images.name} already")
            desk.complete(name, images)
            return
        if images:
            refusals += moves.check_promotion(channel, images, desk.now, most_days, drop or [])
        desk.refuse(refusals)
        desk.write(channel, "promote", images, why)


@app.command()
def rollback(name: Name, why: Why, where: Where = "ssm") -> None:
    """Put the last good set back that a channel held before. A pin does not hinder it."""
    with at_desk(where) as desk:
        channel = desk.channel(name)
        older, refusals = moves.set_to_return_to(channel, desk.images(*channel.earlier()))
        desk.refuse(refusals)
        desk.write(channel, "rollback", older, why)


@app.command()
def pin(name: Name, why: Why, where: Where = "ssm") -> None:
    """Let nothing be promoted into a channel until it is unpinned."""
    with at_desk(where) as desk:
        channel = desk.channel(name)
        desk.refuse(list(moves.check_pin(channel)))
        desk.write(channel, "pin", channel.images, why)


@app.command()
def unpin(name: Name, why: Why = "", where: Where = "ssm") -> None:
    """Let sets be promoted again."""
    with at_desk(where) as desk:
        channel = desk.channel(name)
        if not channel.pinned:
            desk.refuse(
                [Refusal("not-pinned", f"{name} is not pinned", "Nothing is in the way of a promotion")]
            )
        desk.write(channel, "unpin", channel.images, why)


@app.command("list")
def list_(
    log: Annotated[bool, typer.Option(help="Every record instead of what is there now.")] = False,
    where: Where = "ssm",
) -> None:
    """Show what each channel holds, or all that was ever done to it."""
    with at_desk(where) as desk:
        channels = [desk.channel(name) for name in CHANNELS]
        rows: list[tuple[str, ...]] = []
        for channel in channels:
            rows += [
                _shown(channel, record, log)
                for record in channel.records
                if log or record is channel.records[-1]
            ]
            if not channel.records:
                rows.append((channel.name, "empty", *[""] * 5))
        typer.echo("\n".join(table(("channel", "what", "set", "when", "images", "who", "why"), rows)))


def _shown(channel: Channel, record: Record, log: bool) -> tuple[str, ...]:
    """A record as a row; that a channel is pinned is said with what it holds."""
    pinned = channel.pinned and not log and record.action != "pin"
    held = sorted(record.images.members.items()) if record.images else []
    return (
        channel.name,
        f"{record.action}, pinned" if pinned else record.action,
        record.images.name if record.images else "-",
        f"{record.when:%Y-%m-%d %H:%M}",
        ", ".join(f"{image} {member.image_id}" for image, member in held),
        record.who,
        record.why,
    )


@app.command()
def prune(
    delete: Annotated[bool, typer.Option(help="Do it. Without this, it is only shown.")] = False,
    retention_days: Annotated[float, typer.Option(min=0, help="Keep what is younger, whoever uses it.")] = 30,
    where: Where = "ssm",
) -> None:
    """Show the AMIs that nothing needs, and with --delete remove them and their snapshots."""
    with at_desk(where) as desk:
        channels = [desk.channel(name) for name in CHANNELS]
        all_images = account.ours(desk.ec2)
        images = pruning.decide(all_images, channels, account.users(desk.ec2), desk.now, retention_days)
        rows = [
            (each.image_id, each.name, f"{each.created:%Y-%m-%d}", each.kept or "goes") for each in images
        ]
        typer.echo("\n".join(table(("image", "name", "made", "why it stays"), rows)))
        going = [image for image in images if not image.kept]
        orphans = pruning.left_over(account.snapshots(desk.ec2), all_images)
        if not delete:
            typer.echo(
                f"{len(going)} images and {len(orphans)} left-over snapshots would go: --delete removes them"
            )
            return
        for image in going:
            desk.ec2.deregister_image(ImageId=image.image_id)
            for snapshot in image.snapshots:
                desk.ec2.delete_snapshot(SnapshotId=snapshot)
            typer.echo(f"removed {image.image_id} and {len(image.snapshots)} snapshots")
        for snapshot in orphans:
            desk.ec2.delete_snapshot(SnapshotId=snapshot)
            typer.echo(f"removed {snapshot}, which no image had")


@app.command()
def share(
    name: Name,
    accounts: Annotated[list[str] | None, typer.Option("--account", help="Who may launch the set.")] = None,
    regions: Annotated[
        list[str] | None, typer.Option("--region", help="Where; this region if none is named.")
    ] = None,
    key: Annotated[
        str, typer.Option(help="Key of KMS, by id or alias, that copies are encrypted with.")
    ] = "",
    where: Where = "ssm",
) -> None:
    """Copy what a channel holds to regions, and let accounts launch it there."""
    with at_desk(where) as desk:
        channel = desk.channel(name)
        wanted_accounts = tuple(dict.fromkeys(accounts or []))
        known = [each["RegionName"] for each in desk.ec2.describe_regions()["Regions"]]
        refusals = list(sharing.check_wanted(wanted_accounts, regions or [], known))
        if not channel.images:
            why = f"{name} is empty"
            refusals.append(Refusal("channel-empty", why, f"First: ingot channel promote {name}"))
        desk.refuse(refusals)
        held = channel.images
        assert held is not None
        images = desk.images(held)
        desk.refuse(list(moves.check_there(held.image_ids, images)))
        plan = [
            (sharing.Wanted(wanted_accounts, region, desk.home, key), desk.region(region))
            for region in dict.fromkeys(regions or [desk.home])
        ]
        here = desk.region(desk.home)
        desk.refuse([one for wanted, there in plan for one in sharing.check(wanted, images, here, there)])
        done = [desk.share(wanted, there, name, images, held) for wanted, there in plan]
        why = "; ".join(told for told, _ in done)
        if any(new for _, new in done) or not any(record.why == why for record in channel.records):
            desk.write(channel, "share", held, why)
        else:
            typer.echo(f"{held.name} of {name} is shared like that already")


def _read(desk: Desk, paths: Sequence[Path]) -> list[tuple[verdict.Verdict, str]]:
    """The verdicts in some files; refused where one is none."""
    if not paths:
        desk.refuse(
            [
                Refusal(
                    "no-verdicts", "candidate takes a set by its verdicts", "Give verdict.json of each image"
                )
            ]
        )
    read, refusals = [], []
    for path in paths:
        try:
            read.append(verdict.read(path))
        except TableError as error:
            refusals.append(Refusal("no-verdict", error.why, error.do))
    desk.refuse(refusals)
    return read
