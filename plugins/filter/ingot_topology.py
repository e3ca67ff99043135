"""Face of ``ingot.topology`` for the role cpu_tuning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

try:
    from ingot import topology
except ImportError as error:  # an ansible-playbook from outside the project's environment
    raise AnsibleFilterError(
        "Ingot's own Python package is not importable by this ansible-playbook: run it from the project's"
        " virtual environment (.venv/bin/ansible-playbook; `uv sync` makes it)"
    ) from error


def cpu_plan(facts: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """How many engines the node runs and where, or ``refused`` with the reason.

    A reason is returned, not raised: the role says it with the host's name, before it has changed anything.
    """
    try:
        return {"refused": "", **topology.as_dict(topology.plan(facts, **options))}
    except topology.TopologyError as error:
        return {"refused": str(error)}


class FilterModule:
    """Filters of the role cpu_tuning."""

    def filters(self) -> dict[str, object]:
        return {"ingot_cpu_plan": cpu_plan}
