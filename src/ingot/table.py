"""Tables of data, as people write them in YAML: what their schemas are made of, and how one is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from ingot.plain import plain

Schema = TypeVar("Schema", bound=BaseModel)

MEND = "Mend it; the head of the file explains each field"


class Strict(BaseModel):
    """A part of a table: nothing that is not named here, and no change afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TableError(ValueError):
    """A table is wrong. ``why`` names it and each field that is, ``do`` says what helps."""

    def __init__(self, why: str, do: str) -> None:
        super().__init__(f"{why}. {do}.")
        self.why = why
        self.do = do


def read(path: Path, schema: type[Schema], do: str = MEND) -> Schema:
    """The table in a file.

    Raises:
        TableError: it cannot be read, or has a field that is unknown, missing or wrong; each is named.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise TableError(f"{path} cannot be read: {error}", do) from error
    return check(data, schema, str(path), do)


def check(data: Any, schema: type[Schema], what: str, do: str) -> Schema:
    """The same of data from anywhere, Ansible included; ``what`` it is called in messages.

    Raises:
        TableError: as for ``read``.
    """
    try:
        return schema.model_validate(plain(data))
    except ValidationError as error:
        raise TableError(f"{what}: {in_words(error)}", do) from error


def problems(error: ValidationError) -> dict[str, str]:
    """What is wrong, by the field that it is about; what is wrong with the whole has no name."""
    return {
        ".".join(str(part) for part in detail["loc"]): _message(detail["type"], detail["msg"])
        for detail in error.errors()
    }


def in_words(error: ValidationError) -> str:
    """All of that in one line."""
    return "; ".join(": ".join(filter(None, problem)) for problem in problems(error).items())


def _message(kind: str, text: str) -> str:
    """Without words that are of use to programmers only."""
    known = {"extra_forbidden": "unknown field", "model_type": "it is no mapping of names to values"}
    return known.get(kind, text.removeprefix("Value error, "))
