"""The log of a channel: what was in it, who put it there, when and why.

The log is the channel: what it holds is what its last record says, so a change is one write, which is made
wholly or not at all. Each record has the hash of the one before it, and so none can be changed or taken out
unseen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import AwareDatetime, Field, ValidationError

from ingot.channels import CHANNELS
from ingot.table import Strict

Name = Literal["candidate", "beta", "stable"]
Action = Literal["promote", "rollback", "pin", "unpin", "share"]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class LogError(Exception):
    """The log of a channel is not what was written. The message says where."""


class Member(Strict):
    """An image of a set, by its AMI, and the hash of the verdict that let it in."""

    image_id: Annotated[str, Field(pattern=r"^ami-[0-9a-f]+$")]
    verdict: Sha256


class ImageSet(Strict):
    """Images of one commit, by their names in packer/images.yml; ``proved``: when the oldest verdict was."""

    commit: str
    proved: AwareDatetime
    members: Annotated[dict[str, Member], Field(min_length=1)]

    @property
    def image_ids(self) -> list[str]:
        """Its AMIs, sorted."""
        return sorted(member.image_id for member in self.members.values())

    @property
    def name(self) -> str:
        """The same for the same AMIs, whenever they were proved."""
        ids = " ".join(self.image_ids)
        return f"{self.commit[:12]}-{hashlib.sha256(ids.encode()).hexdigest()[:8]}"


class Record(Strict):
    """One change of a channel, and what it held from then on."""

    number: Annotated[int, Field(ge=1)]
    channel: Name
    action: Action
    who: str
    when: AwareDatetime
    why: str
    images: ImageSet | None
    previous: Annotated[
        str, Field(pattern=r"^([0-9a-f]{64})?$")
    ]  # hash of the record before; the first has none

    def text(self) -> str:
        """As it is stored, and hashed."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))

    def digest(self) -> str:
        return hashlib.sha256(self.text().encode()).hexdigest()


@dataclass(frozen=True)
class Channel:
    """A channel, by its log."""

    name: str
    records: tuple[Record, ...] = ()

    @classmethod
    def read(cls, name: str, texts: Sequence[str]) -> Self:
        """From the records as they are stored, the first first.

        Raises:
            LogError: one was changed, or one is missing.
        """
        records: list[Record] = []
        for number, text in enumerate(texts, start=1):
            try:
                record = Record.model_validate_json(text)
            except ValidationError as error:
                raise LogError(f"record {number} of {name} is none: {error.errors()[0]['msg']}") from error
            before = records[-1].digest() if records else ""
            if (record.number, record.channel, record.previous) != (number, name, before):
                raise LogError(
                    f"record {number} of {name} does not follow the one before it: the log was changed."
                    " Compare it with a copy; nothing is promoted from a log that cannot be trusted"
                )
            records.append(record)
        return cls(name, tuple(records))

    @property
    def images(self) -> ImageSet | None:
        """The set that it holds now."""
        return self.records[-1].images if self.records else None

    @property
    def pinned(self) -> Record | None:
        """The record that pinned it, if it is."""
        pins = [record for record in self.records if record.action in ("pin", "unpin")]
        return pins[-1] if pins and pins[-1].action == "pin" else None

    @property
    def source(self) -> str:
        """The channel that sets come from; empty for the first, whose sets come from verdicts."""
        index = CHANNELS.index(self.name)
        return CHANNELS[index - 1] if index else ""

    def given_up(self, images: ImageSet) -> Record | None:
        """The record by which this set was taken out for another; none if its verdicts are new since."""
        found = None
        for before, record in zip(self.records, self.records[1:], strict=False):
            if record.action == "rollback" and before.images and before.images.members == images.members:
                found = record
        return found

    def earlier(self) -> list[ImageSet]:
        """The sets that it held before this one and that were not taken out for another, the last first."""
        now, found = self.images, dict[str, ImageSet]()
        for record in reversed(self.records):
            images = record.images
            if images and now and images.name != now.name and not self.given_up(images):
                found.setdefault(images.name, images)
        return list(found.values())

    def next(
        self, action: Action, images: ImageSet | None, who: str, when: AwareDatetime, why: str
    ) -> Record:
        """The record of a change."""
        last = self.records[-1] if self.records else None
        return Record(
            number=len(self.records) + 1,
            channel=self.name,  # type: ignore[arg-type]  # pydantic refuses another
            action=action,
            who=who,
            when=when,
            why=why,
            images=images,
            previous=last.digest() if last else "",
        )
