"""Face of ingot.models for the role model_store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ingot import models
from ingot.table import TableError


def catalogued(model_id: str, catalog: object, source: Mapping[str, Any]) -> dict[str, Any]:
    """A model's entry as plain data, with the place of each file: its own source's, or that of ``source``."""
    try:
        model = models.parse_catalog(catalog).model(model_id)
        chosen = models.override_source(model_id, source) if source else model.source
    except (models.ModelError, TableError) as error:
        raise AnsibleFilterError(str(error)) from error
    files = [
        file.model_dump() | {"location": chosen.url(model_id, model.revision, file.path)}
        for file in model.files
    ]
    return {
        "id": model_id,
        "revision": model.revision,
        "source": chosen.kind,
        "files": files,
        "manifest": [manifest_file(file) for file in files],
    }


def manifest_file(file: Mapping[str, Any]) -> dict[str, Any]:
    """What must be true of a file, without where it is."""
    return {key: file[key] for key in ("path", "size", "sha256")}


def description(model: Mapping[str, Any]) -> dict[str, Any]:
    """What an image's manifest says of a model."""
    return {
        "revision": model["revision"],
        "sha256": {file["path"]: file["sha256"] for file in model["files"]},
    }


FILTERS: dict[str, Callable[..., Any]] = {
    "ingot_catalogued": catalogued,
    "ingot_description": description,
    "ingot_manifest_file": manifest_file,
}
