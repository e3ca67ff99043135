"""Differences between log-probabilities, and what is left of them to compare with a limit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ingot.gate.measured import Generated


def far(one: float, other: float) -> float:
    """How far apart two numbers are; infinitely where one is none."""
    apart = abs(one - other)
    return apart if math.isfinite(apart) else math.inf


def quantile(values: Sequence[float], part: float) -> float:
    """The value that this part of all is not above."""
    return sorted(values)[min(int(len(values) * part), len(values) - 1)]


@dataclass(frozen=True)
class Agreement:
    """Pairs of answers to the same questions: places that were compared, and how far they were apart.

    ``mean`` is that of all that was compared there, ``worst`` the furthest, with the ties where answers
    parted.
    """

    places: int
    mean: float
    worst: float

    def within(self, mean: float, worst: float) -> bool:
        """Whether that is near enough. One place may be as far as the furthest may be: few have no mean."""
        if not self.places:
            return False
        most = (mean * (self.places - 1) + worst) / self.places
        return self.mean <= most and self.worst <= worst

    def __str__(self) -> str:
        return f"{self.places} places, {self.mean:.3f} apart in the mean, {self.worst:.2f} at most"


def agreement(apart: Iterable[float]) -> Agreement:
    """Of one difference at each place."""
    values = list(apart)
    if not values:
        return Agreement(0, math.inf, math.inf)
    return Agreement(len(values), sum(values) / len(values), max(values))


def of_answers(pairs: Iterable[tuple[Generated, Generated]]) -> Agreement:
    """Answers, place by place for as long as they are the same, and where they part.

    At each place all tokens are compared that both name among the likeliest. Where answers part, these were a
    tie as wide as the gap between the two tokens by what either answer says of both; a token that an answer
    does not even name is infinitely far.
    """
    places: list[float] = []
    worst = 0.0
    for one, other in pairs:
        if len(one.tokens) != len(other.tokens):
            worst = math.inf
        for at, (mine, theirs) in enumerate(zip(one.tokens, other.tokens, strict=False)):
            here, there = one.top[at], other.top[at]
            apart = [far(here[token], there[token]) for token in here.keys() & there.keys()]
            places.append(sum(apart) / len(apart) if apart else math.inf)
            worst = max([worst, *apart])
            if mine != theirs:
                for top in (here, there):
                    worst = max(worst, far(top.get(mine, -math.inf), top.get(theirs, -math.inf)))
                break
    if not places:
        return Agreement(0, math.inf, math.inf)
    return Agreement(len(places), sum(places) / len(places), worst)
