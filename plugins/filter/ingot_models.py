"""Face of ingot.models for the role model_store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

try:
    from ingot import models
except ImportError as error:  # an ansible-playbook from outside the project's environment
    raise AnsibleFilterError(
        "Ingot's own Python package is not importable by this ansible-playbook: run it from the project's"
        " virtual environment (.venv/bin/ansible-playbook; `uv sync` makes it)"
    ) from error


def catalogued(model_id: str, catalog: object, source: Mapping[str, Any]) -> dict[str, Any]:
    """A model's entry as plain data, with the place of each file: its own source's, or that of ``source``."""
    try:
        model = models.parse_catalog(catalog).model(model_id)
        chosen = models.override_source(model_id, source) if source else model.source
    except models.ModelError as error:
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


class FilterModule:
    """Filters of the role model_store."""

    def filters(self) -> dict[str, object]:
        return {
            "ingot_catalogued": catalogued,
            "ingot_description": description,
            "ingot_manifest_file": manifest_file,
        }
