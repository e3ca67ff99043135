"""The verdict of the gate on one engine, row by row."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.gate import checks
from ingot.gate.limits import Limits
from ingot.gate.measured import Measured
from ingot.gate.reference import Reference
from ingot.verify.rows import Row


def rows(found: Measured, reference: Reference, limits: Limits, formats: Sequence[str]) -> list[Row]:
    """All rows. ``formats`` are those of the model's weights, by their names in files/formats.yml."""
    of = limits.of(formats)
    return [
        checks.mean(found.alone, reference, of),
        checks.quantiles(found.alone, reference, of),
        checks.top(found.alone, reference, of),
        checks.long_context(found.long, found.limit, reference.long, of),
        checks.batch(found.alone, found.together, of),
        checks.decode(found.alone, found.rescored, of),
        checks.prefix_cache(found.cache, of),
        checks.chunked_prefill(found.pieces.length, found.pieces.whole, found.pieces.pieces, of),
        checks.worn(found.alone, found.worn, found.requests, of),
        checks.streamed(found, of),
        checks.greedy(found.repeats, of),
        checks.sampling(found.drawn, reference, limits.drawn),
        checks.chat_template(found, reference, of),
        checks.tokenizer(found, reference),
    ]
