"""One row of the verdict on an image."""

from __future__ import annotations

from typing import Final, Literal

from ingot.table import Strict

PASSED: Final = "passed"
FAILED: Final = "failed"
LEFT_OUT: Final = "left out"


class Row(Strict):
    """A check, what came of it, what was seen, and what would have been allowed."""

    name: str
    verdict: Literal["passed", "failed", "left out"]
    evidence: str
    limit: str


def held(name: str, good: bool, evidence: str, limit: str) -> Row:
    """A check that was made."""
    return Row(name=name, verdict=PASSED if good else FAILED, evidence=evidence, limit=limit)


def left_out(name: str, why: str, limit: str) -> Row:
    """A check that does not apply; ``why`` says so."""
    return Row(name=name, verdict=LEFT_OUT, evidence=why, limit=limit)


def some(found: list[str], most: int = 12) -> str:
    """A list as evidence: not all of a thousand."""
    rest = len(found) - most
    return "; ".join(found[:most]) + (f"; and {rest} more" if rest > 0 else "")
