"""What ``ask.py`` has measured, as data."""

from __future__ import annotations

from ingot.table import Strict


class Generated(Strict):
    """Tokens that the engine has chosen, what it said of them, and the likeliest at each place."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    top: tuple[dict[int, float], ...]


class Place(Strict):
    """What the engine said of a token that it was given: of it, and of the likeliest there."""

    logprob: float
    top: int
    top_logprob: float


class Reading(Strict):
    """A text, scored and continued."""

    scores: tuple[Place, ...]
    generated: Generated


class Asked(Strict):
    """An answer where the cache may be read, and where it may not."""

    name: str
    found: Generated
    afresh: Generated


class Cached(Strict):
    """``hits``: tokens that the cache spared; none where the engine does not say."""

    length: int
    hits: int | None
    asked: tuple[Asked, ...]


class Pieces(Strict):
    length: int
    whole: Generated
    pieces: Generated


class Streamed(Strict):
    whole: Generated
    whole_text: str
    stream: Generated
    stream_text: str


class LongEnd(Strict):
    length: int
    generated: Generated


class Drawn(Strict):
    """A token that was drawn after the entry ``at`` of a text's tokens."""

    text: str
    at: int
    token: int
    logprob: float


class Chatted(Strict):
    """``tokens``: what the conversation became, where the server tells. ``meant`` follows the right ones."""

    tokens: tuple[int, ...] | None
    count: int
    answered: Generated
    meant: Generated


class Spelled(Strict):
    text: str
    tokens: tuple[int, ...]
    read: str


class Measured(Strict):
    limit: int
    alone: dict[str, Reading]
    together: dict[str, Reading]
    rescored: dict[str, tuple[float, ...]]
    cache: Cached
    pieces: Pieces
    streamed: Streamed
    long: tuple[LongEnd, ...]
    repeats: tuple[Generated, ...]
    drawn: tuple[Drawn, ...]
    chat: Chatted | None
    strings: tuple[Spelled, ...] | None
    requests: int
    worn: dict[str, Reading]
