"""Entries for the catalogue: what a model's files are and hash to, from a directory or from Hugging Face."""

from __future__ import annotations

import hashlib
import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Self

import yaml
from pydantic import BaseModel, Field, ValidationError, model_validator

from ingot import formats
from ingot.models import (
    WEIGHTS,
    Model,
    ModelError,
    ModelFile,
    ModelShape,
    ModelSource,
    check_model_id,
    sha256_of,
)
from ingot.table import in_words

# What a server reads beside the weights. Other formats of the same weights are left where they are.
WANTED = (".safetensors", ".json", ".txt", ".model", ".jinja")

# Where ModelOpt says what it made, in releases that say nothing in config.json.
MODELOPT = "hf_quant_config.json"


class _Config(BaseModel):
    """What a ``config.json`` must say of a decoder that can be sized. Of the rest nothing is asked."""

    num_hidden_layers: Annotated[int, Field(gt=0)]
    num_attention_heads: Annotated[int, Field(gt=0)]
    num_key_value_heads: Annotated[int, Field(gt=0)] | None = None
    hidden_size: Annotated[int, Field(gt=0)] | None = None
    head_dim: Annotated[int, Field(gt=0)] | None = None
    max_position_embeddings: Annotated[int, Field(gt=0)]
    dtype: str | None = None
    torch_dtype: str | None = None
    quantization_config: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _has_a_width(self) -> Self:
        if not self.head_dim and not self.hidden_size:
            raise ValueError("neither head_dim nor hidden_size")
        return self

    def shape(self, weight_bytes: int) -> ModelShape:
        return ModelShape(
            layers=self.num_hidden_layers,
            attention_heads=self.num_attention_heads,
            kv_heads=self.num_key_value_heads or self.num_attention_heads,
            head_dim=self.head_dim or (self.hidden_size or 0) // self.num_attention_heads,
            max_model_len=self.max_position_embeddings,
            weight_bytes=weight_bytes,
        )


def _config(text: bytes, where: str, modelopt: bytes | None = None) -> _Config:
    """A ``config.json``, and the file beside it in which ModelOpt says what it made.

    Raises:
        ModelError: it is no JSON, or not that of a decoder; each field that is wrong is named.
    """
    try:
        config = _Config.model_validate_json(text)
        made = json.loads(modelopt) if modelopt else None
    except ValidationError as error:
        raise ModelError(f"{where}: {in_words(error)}: this is no decoder that Ingot can size") from error
    except ValueError as error:
        raise ModelError(f"{MODELOPT} beside {where} is no JSON: {error}") from error
    if config.quantization_config is None and isinstance(made, dict):
        return config.model_copy(update={"quantization_config": made})
    return config


def _quantization(config: _Config) -> tuple[str, ...]:
    if config.quantization_config is None:
        return ()
    try:
        return tuple(formats.of_checkpoint(config.quantization_config))
    except formats.FormatError as error:
        raise ModelError(f"config.json: {error}") from error


def _file(path: str, size: int, sha256: str) -> ModelFile:
    try:
        return ModelFile(path=path, size=size, sha256=sha256)
    except ValidationError as error:
        raise ModelError(f"{path}: {in_words(error)}") from error


def _entry(
    revision: str, licence: str, config: _Config, source: ModelSource, files: list[ModelFile]
) -> Model:
    weight_bytes = sum(file.size for file in files if file.path.endswith(WEIGHTS))
    if not weight_bytes:
        raise ModelError("it has no .safetensors file: there are no weights to serve")
    try:
        return Model.model_validate(
            {
                "revision": revision,
                "licence": licence,
                "dtype": config.dtype or config.torch_dtype or "bfloat16",
                "quantization": _quantization(config),
                "source": source,
                "shape": config.shape(weight_bytes),
                "files": tuple(sorted(files, key=lambda file: file.path)),
            }
        )
    except ValidationError as error:
        raise ModelError(in_words(error)) from error


def lock_directory(directory: Path, revision: str, licence: str, source: ModelSource | None = None) -> Model:
    """The entry of a model whose files are in a directory here.

    Raises:
        ModelError: it is no model's, or something of it cannot be read.
    """
    try:
        if not (directory / "config.json").is_file():
            raise ModelError(f"{directory} has no config.json: it is not a model's directory")
        files = [
            _file(path.relative_to(directory).as_posix(), path.stat().st_size, sha256_of(path))
            for path in sorted(directory.rglob("*"))
            if path.is_file() and path.suffix in WANTED
        ]
        beside = directory / MODELOPT
        config = _config(
            (directory / "config.json").read_bytes(),
            str(directory / "config.json"),
            beside.read_bytes() if beside.is_file() else None,
        )
    except OSError as error:
        raise ModelError(f"{error.filename} cannot be read: {error.strerror}") from error
    return _entry(
        revision,
        licence,
        config,
        source or ModelSource(kind="directory", location=str(directory.absolute())),
        files,
    )


def _get(url: str, token: str | None) -> bytes:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=60) as response:
            return bytes(response.read())
    except urllib.error.HTTPError as error:
        # Of a model that does not exist the hub says 401, too, to who has no token.
        hint = {
            401: ": it is gated or private (give a token), or there is no such model",
            403: ": it is gated or private, and the token does not let into it",
            404: ": there is no such model, or no such revision",
        }
        raise ModelError(f"{url} answered {error.code}{hint.get(error.code, '')}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:  # the last: what is no URL
        raise ModelError(f"{url} cannot be reached: {error}") from error


class _HubFile(BaseModel):
    """One file, as the hub lists it; ``lfs`` says more of a large one."""

    class Large(BaseModel):
        size: int
        sha256: str

    rfilename: str
    lfs: Large | None = None


class _HubModel(BaseModel):
    """What the hub's API says of a model."""

    sha: str
    siblings: list[_HubFile]
    cardData: dict[str, Any] | None = None  # noqa: N815  (the hub's word)


def lock_huggingface(
    model_id: str,
    revision: str = "main",
    token: str | None = None,
    endpoint: str = "https://huggingface.co",
    progress: Callable[[str], None] = lambda _: None,
) -> Model:
    """The entry of a model on Hugging Face, at the commit that ``revision`` is now.

    The hub states the sha256 of large files; the small ones are fetched and hashed.

    Raises:
        ModelError: the hub does not have it or cannot be asked, or it is nothing that Ingot can size.
    """
    check_model_id(model_id)
    api = f"{endpoint.rstrip('/')}/api/models/{model_id}/revision/{urllib.parse.quote(revision, safe='')}"
    try:
        info = _HubModel.model_validate_json(_get(f"{api}?blobs=true", token))
    except ValidationError as error:
        raise ModelError(
            f"{api} answered what no hub does ({in_words(error)}): is HF_ENDPOINT right?"
        ) from error
    source = ModelSource(endpoint=endpoint)
    files: list[ModelFile] = []
    said: dict[str, bytes] = {}
    for sibling in info.siblings:
        path = sibling.rfilename
        if "/" in path or PurePosixPath(path).suffix not in WANTED:
            continue
        if sibling.lfs:
            files.append(_file(path, sibling.lfs.size, sibling.lfs.sha256))
        else:
            progress(f"hashing {path}")
            content = _get(source.url(model_id, info.sha, path), token)
            files.append(_file(path, len(content), hashlib.sha256(content).hexdigest()))
            if path in ("config.json", MODELOPT):
                said[path] = content
    if "config.json" not in said:
        raise ModelError(f"{model_id} has no config.json: vLLM cannot serve it")
    config = _config(said["config.json"], f"the config.json of {model_id}", said.get(MODELOPT))
    licence = str((info.cardData or {}).get("license") or "unknown")
    return _entry(info.sha, licence, config, source, files)


def render_entry(model_id: str, model: Model) -> str:
    """The entry as YAML, to be put under ``models:`` in a catalogue."""
    document = {model_id: model.model_dump(mode="json", exclude_none=True, exclude_defaults=True)}
    return yaml.dump(document, Dumper=_IndentedDumper, sort_keys=False, width=200)


class _IndentedDumper(yaml.SafeDumper):
    """Lists indented below their key, as in the rest of the repository."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)
