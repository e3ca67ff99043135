"""The correctness gate on a TinyLlama behind a server: what it measures, and its rows."""

from __future__ import annotations

from functools import cache

import tiny_server
from tiny_llama import Broken, Rounding, Shape, TinyLlama, Weights, random_weights
from tiny_server import Served, Tokenizer

from ingot.gate import ask, judge, limits
from ingot.gate.measured import Measured
from ingot.gate.reference import Reference, Texts, load_texts
from ingot.verify.rows import FAILED, Row

#: Few of the gate's texts, so that many runs take seconds.
NAMES = ("counting", "record", "letter", "french", "short")
#: Those of a server; in the table a checkpoint of bf16.
FORMATS = ("bf16",)
REQUESTS = 4


@cache
def texts(names: tuple[str, ...] = NAMES) -> Texts:
    """Some of the gate's texts, in this order."""
    whole = load_texts()
    by_name = {text.name: text for text in whole.texts}
    return whole.model_copy(update={"texts": tuple(by_name[name] for name in names)})


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer(texts())


@cache
def shape() -> Shape:
    return Shape(vocabulary=tokenizer().size)


@cache
def weights(seed: int = 1) -> Weights:
    return random_weights(shape(), seed)


@cache
def reference(names: tuple[str, ...] = NAMES, seed: int = 1) -> Reference:
    return tiny_server.reference(shape(), weights(seed), tokenizer(), texts(names))


def engine(
    *,
    of_shape: Shape | None = None,
    of_weights: Weights | None = None,
    of_tokenizer: Tokenizer | None = None,
    rounding: Rounding | None = None,
    broken: Broken = Broken(),  # noqa: B008
    temperature: float | None = None,
) -> Served:
    """One that serves the model right, but for what is given."""
    model = TinyLlama(
        of_shape or shape(), of_weights or weights(), rounding or Rounding(bf16=True, seed=7), broken
    )
    return Served(model, of_tokenizer or tokenizer(), temperature=temperature)


def measure(
    served: Served, known: Reference, requests: int = REQUESTS, key: str = tiny_server.KEY
) -> Measured:
    """What ask.py finds."""
    with tiny_server.serving(served) as url:
        asked = ask.Engine(url, tiny_server.MODEL, key, 60)
        return Measured.model_validate(ask.measure(asked, known.model_dump(mode="json"), requests))


def rows(served: Served, known: Reference | None = None) -> list[Row]:
    known = known or reference()
    return judge.rows(measure(served, known), known, limits.load(), FORMATS)


def failed(found: list[Row]) -> dict[str, str]:
    """The evidence of each check that failed."""
    return {row.name: row.evidence for row in found if row.verdict == FAILED}
