"""The catalogue of models: which files a model has, what each must hash to, and what sizing needs to know.

``files/models.yml`` is the catalogue of the repository; an inventory may give another. A model's files are
named by revision and sha256, so that a node serves exactly what somebody chose, wherever it comes from.
"""

from __future__ import annotations

import hashlib
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_WEIGHTS = (".safetensors",)
# What a server reads beside the weights. Other formats of the same weights are left where they are.
_WANTED = (".safetensors", ".json", ".txt", ".model", ".jinja")


class ModelError(ValueError):
    """A model, or the catalogue, cannot be used; the message names it and says why."""


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


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelFile(_Strict):
    """One file. ``path`` is its name below the model's directory."""

    path: str
    size: Annotated[int, Field(gt=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

    @model_validator(mode="after")
    def _stays_inside(self) -> Self:
        check_file_name(self.path)
        return self


class ModelShape(_Strict):
    """What sizing computes memory from."""

    layers: Annotated[int, Field(gt=0)]
    attention_heads: Annotated[int, Field(gt=0)]
    kv_heads: Annotated[int, Field(gt=0)]
    head_dim: Annotated[int, Field(gt=0)]
    max_model_len: Annotated[int, Field(gt=0)]
    weight_bytes: Annotated[int, Field(gt=0)]


class ModelSource(_Strict):
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
        ModelError: the kind is unknown, or the location does not fit it.
    """
    values: dict[str, Any] = _plain(source)
    if values.get("location"):
        values["location"] = f"{values['location'].rstrip('/')}/{check_model_id(model_id)}"
    try:
        return ModelSource.model_validate(values)
    except ValidationError as error:
        raise ModelError("the source is not valid: " + "; ".join(d["msg"] for d in error.errors())) from error


class Model(_Strict):
    """One model of the catalogue."""

    revision: Annotated[str, Field(min_length=1)]
    licence: str
    dtype: Literal["bfloat16", "float16", "float32"]
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
        if not any(name.endswith(_WEIGHTS) for name in names):
            raise ValueError("no .safetensors file is listed: there are no weights to serve")
        return self

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


class Catalog(_Strict):
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


def _plain(data: Any) -> Any:
    """The data in Python's own containers: Ansible's lazy ones show their content only to Python code."""
    if isinstance(data, Mapping):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_plain(value) for value in data]
    return data


def parse_catalog(data: Any, name: str = "the catalogue") -> Catalog:
    """A catalogue from parsed YAML, which is either ``{models: {…}}`` or the mapping of models itself."""
    try:
        data = _plain(data)
        return Catalog.model_validate(
            data if isinstance(data, dict) and "models" in data else {"models": data}
        )
    except ValidationError as error:
        places = [".".join(map(str, detail["loc"][1:])) or "models" for detail in error.errors()]
        details = [f"{place}: {detail['msg']}" for place, detail in zip(places, error.errors(), strict=True)]
        raise ModelError(f"{name} is not valid: {'; '.join(details)}") from error


def load_catalog(path: Path) -> Catalog:
    """The catalogue in a file."""
    return parse_catalog(yaml.safe_load(path.read_text(encoding="utf-8")), str(path))


def sha256_of(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def shape_of(config: dict[str, Any], weight_bytes: int) -> ModelShape:
    """The shape that a ``config.json`` describes."""
    heads = config["num_attention_heads"]
    return ModelShape(
        layers=config["num_hidden_layers"],
        attention_heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        max_model_len=config["max_position_embeddings"],
        weight_bytes=weight_bytes,
    )


def _entry(
    revision: str, licence: str, config: dict[str, Any], source: ModelSource, files: list[ModelFile]
) -> Model:
    weight_bytes = sum(file.size for file in files if file.path.endswith(_WEIGHTS))
    try:
        return Model.model_validate(
            {
                "revision": revision,
                "licence": licence,
                "dtype": config.get("dtype") or config.get("torch_dtype") or "bfloat16",
                "source": source,
                "shape": shape_of(config, weight_bytes),
                "files": tuple(sorted(files, key=lambda file: file.path)),
            }
        )
    except KeyError as error:
        raise ModelError(
            f"its config.json has no {error}: this is not a decoder that Ingot can size"
        ) from error
    except ValidationError as error:
        raise ModelError("; ".join(detail["msg"] for detail in error.errors())) from error


def lock_directory(directory: Path, revision: str, licence: str, source: ModelSource | None = None) -> Model:
    """The entry of a model whose files are in a directory here."""
    if not (directory / "config.json").is_file():
        raise ModelError(f"{directory} has no config.json: it is not a model's directory")
    files = [
        ModelFile(
            path=path.relative_to(directory).as_posix(), size=path.stat().st_size, sha256=sha256_of(path)
        )
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.suffix in _WANTED
    ]
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return _entry(
        revision,
        licence,
        config,
        source or ModelSource(kind="directory", location=str(directory.absolute())),
        files,
    )


def _get(url: str, token: str | None) -> bytes:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return bytes(response.read())
    except urllib.error.HTTPError as error:
        hint = ": it is gated or private, give a token" if error.code in (401, 403) else ""
        raise ModelError(f"{url} answered {error.code}{hint}") from error
    except (urllib.error.URLError, TimeoutError) as error:
        raise ModelError(f"{url} cannot be reached: {error}") from error


def lock_huggingface(
    model_id: str,
    revision: str = "main",
    token: str | None = None,
    endpoint: str = "https://huggingface.co",
    progress: Callable[[str], None] = lambda _: None,
) -> Model:
    """The entry of a model on Hugging Face, at the commit that ``revision`` is now.

    The hub states the sha256 of large files; the small ones are fetched and hashed.
    """
    check_model_id(model_id)
    api = f"{endpoint.rstrip('/')}/api/models/{model_id}/revision/{urllib.parse.quote(revision, safe='')}"
    info = json.loads(_get(f"{api}?blobs=true", token))
    source, commit = ModelSource(endpoint=endpoint), info["sha"]
    files: list[ModelFile] = []
    config: dict[str, Any] | None = None
    for sibling in info["siblings"]:
        path = sibling["rfilename"]
        if "/" in path or PurePosixPath(path).suffix not in _WANTED:
            continue
        large = sibling.get("lfs")
        if large:
            files.append(ModelFile(path=path, size=large["size"], sha256=large["sha256"]))
        else:
            progress(f"hashing {path}")
            content = _get(source.url(model_id, commit, path), token)
            files.append(ModelFile(path=path, size=len(content), sha256=hashlib.sha256(content).hexdigest()))
            if path == "config.json":
                config = json.loads(content)
    if config is None:
        raise ModelError(f"{model_id} has no config.json: vLLM cannot serve it")
    licence = str((info.get("cardData") or {}).get("license") or "unknown")
    return _entry(commit, licence, config, source, files)


def render_entry(model_id: str, model: Model) -> str:
    """The entry as YAML, to be put under ``models:`` in a catalogue."""
    document = {model_id: model.model_dump(mode="json", exclude_none=True, exclude_defaults=True)}
    return yaml.dump(document, Dumper=_IndentedDumper, sort_keys=False, width=200)


class _IndentedDumper(yaml.SafeDumper):
    """Lists indented below their key, as in the rest of the repository."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)
