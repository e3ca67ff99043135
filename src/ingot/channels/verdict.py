"""A verdict on one image, as ``playbooks/verify.yml`` writes it."""

from __future__ import annotations

import hashlib
from datetime import datetime
from pathlib import Path

from pydantic import AwareDatetime

from ingot import table
from ingot.verify.rows import FAILED, Row


class Verdict(table.Strict):
    """What was found out about an AMI; ``tags`` are those that it had then."""

    image_id: str
    tags: dict[str, str]
    finished: AwareDatetime
    sbom: str
    rows: tuple[Row, ...]

    @property
    def image(self) -> str:
        """Its name in packer/images.yml."""
        return self.tags.get("ingot:image", "")

    @property
    def commit(self) -> str:
        return self.tags.get("ingot:commit", "")

    @property
    def failed(self) -> list[str]:
        """The checks that were not passed; a verdict without a single row has not been come to."""
        return [row.name for row in self.rows if row.verdict == FAILED] if self.rows else ["(no checks)"]

    def age_days(self, now: datetime) -> float:
        return (now - self.finished).total_seconds() / 86400


def read(path: Path) -> tuple[Verdict, str]:
    """A verdict, and the SHA-256 of its file.

    Raises:
        ingot.table.TableError: it is none.
    """
    verdict = table.read(path, Verdict, "Let playbooks/verify.yml write it")
    return verdict, hashlib.sha256(path.read_bytes()).hexdigest()
