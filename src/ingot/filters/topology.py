"""Face of ``ingot.topology`` for the role cpu_tuning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ingot import topology


def cpu_plan(facts: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """How many engines the node runs and where, or ``refused`` with the reason.

    A reason is returned, not raised: the role says it with the host's name, before it has changed anything.
    """
    try:
        return {"refused": "", **topology.as_dict(topology.plan(facts, **options))}
    except topology.TopologyError as error:
        return {"refused": str(error)}


FILTERS: dict[str, Callable[..., Any]] = {"ingot_cpu_plan": cpu_plan}
