"""What a model says, computed in fp32: what an engine that serves it is held against.

A reference is made by ``fp32.py`` on a node, once for each model and each state of ``files/gate-texts.yml``,
and lies in the model store under a name that tells both.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from ingot.checkout import ROOT
from ingot.models import Model
from ingot.neuron_artifacts import model_hash
from ingot.table import Strict, TableError, check, read

TEXTS = ROOT / "files" / "gate-texts.yml"
#: Below the root of the model store.
FOLDER = ".references"
MEND = "Remove the file, and make it again: ansible-playbook playbooks/gate_reference.yml"

Token = Annotated[int, Field(ge=0)]


class Message(Strict):
    role: str
    content: str


class Text(Strict):
    name: str
    text: str


class Texts(Strict):
    """``files/gate-texts.yml``."""

    texts: Annotated[tuple[Text, ...], Field(min_length=1)]
    conversation: Annotated[tuple[Message, ...], Field(min_length=1)]
    strings: Annotated[tuple[str, ...], Field(min_length=1)]


class Scored(Strict):
    """A text, token by token. Each list has an entry for each token but the first.

    ``top`` is the likeliest token there, ``top_logprob`` its log-probability, and ``margin`` how far the
    second is below it. ``entropy`` is the mean surprisal (minus the log-probability) of a token that is drawn
    there, ``variance`` its variance.
    """

    name: str
    tokens: Annotated[tuple[Token, ...], Field(min_length=2)]
    logprobs: tuple[float, ...]
    top: tuple[Token, ...]
    top_logprob: tuple[float, ...]
    margin: tuple[float, ...]
    entropy: tuple[float, ...]
    variance: tuple[float, ...]

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        for name in ("logprobs", "top", "top_logprob", "margin", "entropy", "variance"):
            if len(getattr(self, name)) != len(self.tokens) - 1:
                raise ValueError(f"{name} has not one entry for each token but the first")
        return self


class Spelled(Strict):
    """A string, its tokens, and what the tokens read as, by the model's own tokenizer."""

    text: str
    tokens: tuple[Token, ...]
    read: str


class Chat(Strict):
    """The conversation, and its tokens with an answer's beginning. ``dated``: the template tells the day."""

    messages: tuple[Message, ...]
    tokens: tuple[Token, ...]
    dated: bool


class Reference(Strict):
    """All that an engine is held against. ``long`` is a text as long as the model can read, up to a bound."""

    model_id: str
    key: str
    made_with: str
    texts: Annotated[tuple[Scored, ...], Field(min_length=1)]
    long: Scored
    strings: tuple[Spelled, ...]
    chat: Chat | None


def load_texts(path: Path = TEXTS) -> Texts:
    """The texts of the gate.

    Raises:
        TableError: the file cannot be read, or is wrong; each field that is wrong is named.
    """
    return read(path, Texts)


def key(model: Model, texts: Path = TEXTS) -> str:
    """The name of a model's reference: another file of the model or another text makes another."""
    return f"{model_hash(model)[:32]}-{hashlib.sha256(texts.read_bytes()).hexdigest()[:12]}"


def parse(data: object, wanted: str) -> Reference:
    """A reference, as it lies in the store.

    Raises:
        TableError: it is none, or is that of another model.
    """
    found = check(data, Reference, f"the reference {wanted}", MEND)
    if found.key != wanted:
        raise TableError(
            f"the reference {wanted} is that of another model or of other texts, {found.key}", MEND
        )
    return found
