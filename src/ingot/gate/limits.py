"""How far an engine may be off: ``files/gate.yml``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from ingot import formats
from ingot.checkout import ROOT
from ingot.table import Strict, read

TABLE = ROOT / "files" / "gate.yml"

Nats = Annotated[float, Field(gt=0)]


class Figures(Strict):
    """In nats; the head of the table says what each is."""

    mean: Nats
    median: Nats
    p99: Nats
    confident: Nats
    again: Nats
    parted: Nats


class Class(Strict):
    """Number formats whose kernels round alike."""

    formats: Annotated[tuple[str, ...], Field(min_length=1)]
    figures: Figures
    source: Annotated[str, Field(min_length=1)]


class Limits(Strict):
    """The table."""

    measures: dict[str, str]
    classes: dict[str, Class]
    drawn: Annotated[float, Field(gt=0)]

    @model_validator(mode="after")
    def _has_each_format_once(self) -> Self:
        named = [name for one in self.classes.values() for name in one.formats]
        known = formats.load().formats
        if wrong := sorted(set(named) ^ set(known)) or sorted(
            {name for name in named if named.count(name) > 1}
        ):
            raise ValueError(
                f"each format of files/formats.yml must be in one class: {', '.join(wrong)} is not so"
            )
        if set(self.measures) != set(Figures.model_fields):
            raise ValueError(f"measures must explain each of {', '.join(Figures.model_fields)}")
        return self

    def of(self, names: Sequence[str]) -> Figures:
        """The figures for a model whose layers are in these formats: those of the widest.

        Raises:
            KeyError: the table of formats has no such name.
        """
        found = [one.figures for one in self.classes.values() if set(names) & set(one.formats)]
        if not found:
            raise KeyError(f"no format of files/formats.yml: {', '.join(names) or 'none named'}")
        return max(found, key=lambda figures: figures.p99)


def load(path: Path = TABLE) -> Limits:
    """The table.

    Raises:
        TableError: it cannot be read, or is wrong; each field that is wrong is named.
    """
    return read(path, Limits)
