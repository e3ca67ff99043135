"""Where channels are changed: the store, the account, and whoever asks."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import typer

from ingot import account as credentials
from ingot.channels import CHANNELS, account, sharing
from ingot.channels.records import Action, Channel, ImageSet, LogError
from ingot.channels.stores import Directory, Ssm, Store, TakenError
from ingot.preflight.refusal import Refusal, report


class Desk:
    """The store, the account, and whoever asks."""

    def __init__(self, where: str) -> None:
        import boto3  # takes a third of a second, which other commands need not pay

        self.refuse(credentials.refusals(os.environ.get("AWS_REGION", "")))
        self.home = os.environ["AWS_REGION"]
        self.client: Callable[..., Any] = partial(boto3.client, region_name=self.home)
        self.ec2 = self.client("ec2")
        self.store: Store = Ssm(self.client("ssm")) if where == "ssm" else Directory(Path(where))
        self.now = datetime.now(UTC).replace(microsecond=0)

    def who(self) -> str:
        """Whose the keys are, and from where."""
        arn = self.client("sts").get_caller_identity()["Arn"]
        return f"{arn} ({getpass.getuser()}@{socket.gethostname()})"

    def channel(self, name: str) -> Channel:
        if name not in CHANNELS:
            self.refuse(
                [Refusal("no-such-channel", f"there is no channel {name}", f"One of {', '.join(CHANNELS)}")]
            )
        return Channel.read(name, self.store.log(name))

    def images(self, *sets: ImageSet) -> dict[str, dict[str, Any]]:
        """What EC2 has of the AMIs of some sets."""
        return account.describe(self.ec2, (image_id for each in sets for image_id in each.image_ids))

    def refuse(self, refusals: Sequence[Refusal]) -> None:
        if refusals:
            typer.echo(report(refusals), err=True)
            raise typer.Exit(1)

    def write(self, channel: Channel, action: Action, images: ImageSet | None, why: str) -> None:
        """One record, then the pointers, which the next change completes if this one is ended before."""
        record = channel.next(action, images, self.who(), self.now, why)
        try:
            self.store.add(channel.name, record.number, record.text())
        except TakenError:
            other = self.channel(channel.name).records[-1]
            why = f"{other.who} changed {channel.name} meanwhile: {other.action}, {other.when:%H:%M:%S}"
            do = "Look at it (ingot channel list), and ask again if that is still wanted"
            self.refuse([Refusal("changed-meanwhile", why, do)])
        held = images.name if images else "nothing"
        typer.echo(f"{action}: {channel.name} holds {held} (record {record.number})")
        self.complete(channel.name, images)

    def region(self, name: str) -> sharing.Region:
        """The account in a region."""
        return sharing.Region(*(self.client(service, region_name=name) for service in ("ec2", "kms")))

    def share(
        self,
        wanted: sharing.Wanted,
        there: sharing.Region,
        name: str,
        images: Mapping[str, Any],
        held: ImageSet,
    ) -> tuple[str, bool]:
        """Copy and share a set in one region: what there is then, in words, and whether it was new."""
        copies = there.copies(wanted, held) if wanted.copied else dict(zip(images, images, strict=True))
        new = False
        for source in held.image_ids:
            if source not in copies:
                copies[source] = there.copy(wanted, images[source])
                new = True
                typer.echo(f"  {source} is copied to {wanted.region} as {copies[source]}")
        # An hour and more, for gigabytes to another continent.
        there.ec2.get_waiter("image_available").wait(
            ImageIds=sorted(copies.values()), WaiterConfig={"Delay": 15, "MaxAttempts": 720}
        )
        for copy in copies.values():
            if added := there.share(copy, wanted.accounts):
                new = True
                typer.echo(f"  {copy} in {wanted.region} can be launched by {', '.join(added)}")
        by_image = {image: copies[member.image_id] for image, member in sorted(held.members.items())}
        if wanted.region != self.home and isinstance(self.store, Ssm):
            new = bool(Ssm(self.client("ssm", region_name=wanted.region)).point(name, by_image)) or new
        told = ", ".join(f"{image} {copy}" for image, copy in by_image.items())
        return f"{wanted.region}: {told}" + (
            f" for {', '.join(wanted.accounts)}" if wanted.accounts else ""
        ), new

    def complete(self, name: str, images: ImageSet | None) -> None:
        """Let the pointers follow the log."""
        wanted = {image: member.image_id for image, member in images.members.items()} if images else {}
        for image in self.store.point(name, wanted):
            typer.echo(f"  {image}: {wanted.get(image, 'no longer there')}")


@contextmanager
def at_desk(where: str) -> Iterator[Desk]:
    """The desk; what AWS and the log say there is told in a line."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield Desk(where)
    except (BotoCoreError, ClientError) as error:
        typer.secho(
            f"AWS says: {error}. What was written is in the log: ingot channel list", fg="red", err=True
        )
        raise typer.Exit(1) from error
    except LogError as error:
        typer.secho(f"{error}.", fg="red", err=True)
        raise typer.Exit(1) from error
