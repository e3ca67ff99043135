"""One row of the verdict on an image."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

PASSED, FAILED, LEFT_OUT = "passed", "failed", "left out"


@dataclass(frozen=True)
class Row:
    """A check, what came of it, what was seen, and what would have been allowed."""

    name: str
    verdict: str
    evidence: str
    limit: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def held(name: str, good: bool, evidence: str, limit: str) -> Row:
    """A check that was made."""
    return Row(name, PASSED if good else FAILED, evidence, limit)


def left_out(name: str, why: str, limit: str) -> Row:
    """A check that does not apply; ``why`` says so."""
    return Row(name, LEFT_OUT, why, limit)


def some(found: list[str], most: int = 12) -> str:
    """A list as evidence: not all of a thousand."""
    rest = len(found) - most
    return "; ".join(found[:most]) + (f"; and {rest} more" if rest > 0 else "")
