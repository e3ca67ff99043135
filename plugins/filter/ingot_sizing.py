"""Jinja face of ``ingot.sizing``: what fits on a host, for roles and playbooks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ingot import sizing


def ingot_sizing(model: Mapping[str, Any], cores: int, memory_bytes: int, **options: Any) -> dict[str, int]:
    """Size a replica of ``model`` (see ``ingot_model``) for a host.

    ``options`` are those of ``ingot.sizing.size`` and ``shm_bytes``; empty strings and zeros count as not
    given, so that a role can pass its own variables through.
    """
    given = {key: value for key, value in options.items() if value not in ("", 0, None)}
    shm = given.pop("shm_bytes", None)
    host = sizing.Host(
        cores=int(cores), memory_bytes=int(memory_bytes), shm_bytes=None if shm is None else int(shm)
    )
    try:
        return sizing.as_dict(sizing.size(host, sizing.Model(**model), **given))
    except (sizing.SizingError, TypeError) as error:
        raise AnsibleFilterError(str(error)) from error


def ingot_model(
    config: str | Mapping[str, Any], model_id: str, weight_bytes: int, dtype: str = "bfloat16"
) -> dict[str, Any]:
    """The shape of a model from its ``config.json``, parsed or as text, for ``ingot_sizing``."""
    parsed = json.loads(config) if isinstance(config, str) else config
    try:
        return vars(sizing.model_from_config(model_id, parsed, weight_bytes, dtype)).copy()
    except sizing.SizingError as error:
        raise AnsibleFilterError(str(error)) from error


def ingot_ray_num_cpus(cores: int) -> int:
    """Logical CPUs that a node of this many cores announces to Ray."""
    return sizing.ray_num_cpus(int(cores))


def ingot_object_store_bytes(memory_bytes: int, shm_bytes: int | None = None) -> int:
    """Size of Ray's object store on a host."""
    return sizing.object_store_bytes(int(memory_bytes), None if shm_bytes is None else int(shm_bytes))


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {
            "ingot_model": ingot_model,
            "ingot_object_store_bytes": ingot_object_store_bytes,
            "ingot_ray_num_cpus": ingot_ray_num_cpus,
            "ingot_sizing": ingot_sizing,
        }
