"""Pools: nodes that serve the same model in the same way. The gateway goes by the model of a request."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

Hosts = Mapping[str, Mapping[str, Any]]


def kind(given: Mapping[str, Any]) -> tuple[str, str]:
    """What makes a pool: the model, and the mode that it is served in."""
    return str(given.get("serving_model_id", "")), str(given.get("serving_mode", ""))


def members(nodes: Sequence[str], hosts: Hosts, host: str) -> list[str]:
    """The nodes of the pool that ``host`` is in."""
    return [node for node in nodes if kind(hosts[node]) == kind(hosts[host])]


def others(nodes: Sequence[str], hosts: Hosts, head: str) -> list[dict[str, Any]]:
    """The pools that the head is not in, each with a name that a configuration may have."""
    found: dict[tuple[str, str], list[str]] = {}
    for node in nodes:
        if kind(hosts[node]) != kind(hosts[head]):
            found.setdefault(kind(hosts[node]), []).append(node)
    return [
        {
            "name": re.sub(r"[^a-z0-9]+", "_", model.lower()),
            "model_id": model,
            "mode": mode,
            "hosts": found[model, mode],
        }
        for model, mode in found
    ]
