"""Where the logs of channels are kept: parameters of SSM, or a directory.

Both can make a record only if there is none of its number. So of two who change a channel at once, one
writes and the other is told; no lock is left behind by somebody who was killed.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

PREFIX = "/ingot"


class TakenError(Exception):
    """Somebody else has written the record of that number."""


class Store(Protocol):
    """Records by channel and number, and for each image the AMI that a channel holds."""

    def log(self, channel: str) -> list[str]:
        """The records of a channel, the first first."""

    def add(self, channel: str, number: int, text: str) -> None:
        """Write a record. Raises TakenError: there is one of that number."""

    def pointers(self, channel: str) -> dict[str, str]:
        """AMI by image, as others read it."""

    def point(self, channel: str, wanted: Mapping[str, str]) -> list[str]:
        """Make them so; the images whose pointer was changed."""


class Directory:
    """``<channel>/<number>.json`` below a directory, such as one of a repository; no pointers but these."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def log(self, channel: str) -> list[str]:
        return [path.read_text(encoding="utf-8") for path in sorted((self.root / channel).glob("*.json"))]

    def add(self, channel: str, number: int, text: str) -> None:
        directory = self.root / channel
        directory.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=directory, prefix=".", suffix=".partial")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(0o644)
            os.link(name, directory / f"{number:06}.json")
        except FileExistsError:
            raise TakenError from None
        finally:
            with contextlib.suppress(FileNotFoundError):
                Path(name).unlink()

    def pointers(self, channel: str) -> dict[str, str]:
        return {}

    def point(self, channel: str, wanted: Mapping[str, str]) -> list[str]:
        return []


class Ssm:
    """``/ingot/channels/<channel>/<number>`` for the log, ``/ingot/<image>/<channel>`` for each AMI.

    The second is what a launch template takes as ``resolve:ssm:/ingot/x86/stable``.
    """

    def __init__(self, client: Any) -> None:
        self.client = client

    def log(self, channel: str) -> list[str]:
        found = self._below(f"{PREFIX}/channels/{channel}")
        return [found[name] for name in sorted(found)]

    def add(self, channel: str, number: int, text: str) -> None:
        try:
            self.client.put_parameter(
                Name=f"{PREFIX}/channels/{channel}/{number:06}",
                Description=f"A record of Ingot's channel {channel}: never to be changed",
                Type="String",
                Tier="Intelligent-Tiering",
                Value=text,
                Overwrite=False,
            )
        except self.client.exceptions.ParameterAlreadyExists:
            raise TakenError from None

    def pointers(self, channel: str) -> dict[str, str]:
        found = self._below(PREFIX)
        parts = {tuple(name.removeprefix(f"{PREFIX}/").split("/")): value for name, value in found.items()}
        return {name[0]: value for name, value in parts.items() if len(name) == 2 and name[1] == channel}

    def point(self, channel: str, wanted: Mapping[str, str]) -> list[str]:
        there = self.pointers(channel)
        changed = []
        for image, image_id in wanted.items():
            if there.get(image) != image_id:
                self.client.put_parameter(
                    Name=f"{PREFIX}/{image}/{channel}",
                    Description=f"The AMI of {image} in Ingot's channel {channel}",
                    Type="String",
                    DataType="aws:ec2:image",
                    Value=image_id,
                    Overwrite=True,
                )
                changed.append(image)
        for image in sorted(there.keys() - wanted.keys()):
            self.client.delete_parameter(Name=f"{PREFIX}/{image}/{channel}")
            changed.append(image)
        return changed

    def _below(self, path: str) -> dict[str, str]:
        pages = self.client.get_paginator("get_parameters_by_path").paginate(Path=path, Recursive=True)
        return {item["Name"]: item["Value"] for page in pages for item in page["Parameters"]}
