"""The catalogue of models: which files a model has, what each must hash to, and what sizing needs to know.

``files/models.yml`` is the catalogue of the repository; an inventory may give another. A model's files are
named by revision and sha256, so that a node serves exactly what somebody chose, wherever it comes from.
"""

from __future__ import annotations

import hashlib
import re
import urllib.parse
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from ingot import formats
from ingot.plain import plain
from ingot.table import Strict, check, read

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
WEIGHTS = (".safetensors",)
MEND = "Mend it; `ingot models lock` makes an entry as it must be"
SOURCE = "Correct it; the README of the role model_store says what it takes"


class ModelError(ValueError):
    """A model cannot be used; the message names it and says why."""


def check_model_id(model_id: str) -> str:
    """The id, if it names a place below the store and nothing else.

    Raises:
        ModelError: it is absolute, climbs out of the store, or holds something that no hub allows in a name.
    """
    if model_id.startswith("/"):
        raise ModelError(f"model id {model_id!r} is an absolute path: it would leave the model store")
    parts = model_id.split("/")
    if ".." in parts:
        raise ModelError(f"model id {model_id!r} has '..' in it: it would leave the model store")
    if len(parts) > 2 or not all(_PART.fullmatch(part) for part in parts):
        raise ModelError(f"model id {model_id!r} is not of the form 'owner/name'")
    return model_id


def check_file_name(name: str) -> str:
    """A file's name within its model: a relative path whose parts are plain names."""
    if name != PurePosixPath(name).as_posix() or not all(_PART.fullmatch(part) for part in name.split("/")):
        raise ModelError(f"file name {name!r} is not a plain path below its model's directory")
    return name


class ModelFile(Strict):
    """One file. ``path`` is its name below the model's directory."""

    path: str
    size: Annotated[int, Field(gt=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

    @model_validator(mode="after")
    def _stays_inside(self) -> Self:
        check_file_name(self.path)
        return self


class ModelShape(Strict):
    """What sizing computes memory from."""

    layers: Annotated[int, Field(gt=0)]
    attention_heads: Annotated[int, Field(gt=0)]
    kv_heads: Annotated[int, Field(gt=0)]
    head_dim: Annotated[int, Field(gt=0)]
    max_model_len: Annotated[int, Field(gt=0)]
    weight_bytes: Annotated[int, Field(gt=0)]


class ModelSource(Strict):
    """Where the files are.

    ``huggingface``: at ``endpoint``, by id and revision. ``http``: below ``location``. ``s3``: below
    ``location``, which is ``s3://bucket/prefix``. ``directory``: a directory on the controller, ``location``.
    """

    kind: Literal["huggingface", "http", "s3", "directory"] = "huggingface"
    location: str | None = None
    endpoint: str = "https://huggingface.co"

    @model_validator(mode="after")
    def _has_a_location(self) -> Self:
        schemes = {"http": ("http://", "https://"), "s3": ("s3://",), "directory": ("/",)}
        wanted = schemes.get(self.kind)
        if wanted and not (self.location or "").startswith(wanted):
            raise ValueError(f"source {self.kind!r} needs a location that begins with {' or '.join(wanted)}")
        return self

    def url(self, model_id: str, revision: str, path: str) -> str:
        """Where one file is, for the kinds that a node fetches by URL."""
        quoted = urllib.parse.quote(path)
        if self.kind == "huggingface":
            commit = urllib.parse.quote(revision, safe="")
            return f"{self.endpoint.rstrip('/')}/{model_id}/resolve/{commit}/{quoted}"
        return f"{(self.location or '').rstrip('/')}/{quoted}"


def override_source(model_id: str, source: Mapping[str, Any]) -> ModelSource:
    """A source for whichever model: its ``location`` holds a directory for each, called like its id.

    Raises:
        TableError: the kind is unknown, or the location does not fit it.
    """
    values: dict[str, Any] = plain(source)
    if values.get("location"):
        values["location"] = f"{values['location'].rstrip('/')}/{check_model_id(model_id)}"
    return check(values, ModelSource, "model_store_source_override", SOURCE)


class Model(Strict):
    """One model of the catalogue.

    ``dtype`` is what it computes in, and what its weights are in unless ``quantization`` names other formats
    (of files/formats.yml), several where its layers differ.
    """

    revision: Annotated[str, Field(min_length=1)]
    licence: str
    dtype: Literal["bfloat16", "float16", "float32"]
    quantization: tuple[str, ...] = ()
    source: ModelSource = ModelSource()
    shape: ModelShape
    files: Annotated[tuple[ModelFile, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        names = [file.path for file in self.files]
        if len(set(names)) != len(names):
            raise ValueError("a file is listed twice")
        for needed in ("config.json", "tokenizer_config.json"):
            if needed not in names:
                raise ValueError(f"{needed} is not among the files: vLLM cannot serve the model without it")
        if not any(name.endswith(WEIGHTS) for name in names):
            raise ValueError("no .safetensors file is listed: there are no weights to serve")
        known = formats.load().formats
        if unknown := [name for name in self.quantization if name not in known]:
            raise ValueError(
                f"files/formats.yml has no format {', '.join(unknown)}; it has {', '.join(known)}"
            )
        return self

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


class Catalog(Strict):
    """Models by id."""

    models: dict[str, Model]

    @model_validator(mode="after")
    def _ids_stay_inside(self) -> Self:
        for model_id in self.models:
            check_model_id(model_id)
        return self

    def model(self, model_id: str) -> Model:
        """The entry of a model.

        Raises:
            ModelError: the id is not a model's, or no model of the catalogue has it.
        """
        check_model_id(model_id)
        try:
            return self.models[model_id]
        except KeyError:
            known = ", ".join(sorted(self.models)) or "none"
            raise ModelError(
                f"model {model_id!r} is not in the catalogue (it has: {known}); "
                f"make its entry with `ingot models lock {model_id}`"
            ) from None


def parse_catalog(data: Any, name: str = "model_store_catalog") -> Catalog:
    """A catalogue from parsed YAML, which is either ``{models: {…}}`` or the mapping of models itself.

    Raises:
        TableError: it is no catalogue; each field that is wrong is named.
    """
    whole = data if isinstance(data, Mapping) and "models" in data else {"models": data}
    return check(whole, Catalog, name, MEND)


def load_catalog(path: Path) -> Catalog:
    """The catalogue in a file.

    Raises:
        TableError: it cannot be read, or is no catalogue.
    """
    return read(path, Catalog, MEND)


def sha256_of(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
