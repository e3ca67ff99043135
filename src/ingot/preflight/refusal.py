"""A refusal, and how several are told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """What is refused (``name`` is stable, for tests and for looking it up), why, and what to do about it."""

    name: str
    why: str
    do: str

    def __str__(self) -> str:
        return f"{self.name}: {self.why}.\n    {self.do}."


def report(refusals: Iterable[Refusal]) -> str:
    """What the person reads. The same thing found on several hosts arrives as several refusals."""
    lines = [str(refusal) for refusal in refusals]
    count = "One thing stands" if len(lines) == 1 else f"{len(lines)} things stand"
    return "\n".join([f"Refused: {count} in the way. Nothing was changed.", *lines])
