"""Faces of ingot.preflight and ingot.report for the playbooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible.module_utils.basic import _PY_MIN
from ansible.release import __version__ as core_version

from ingot import image_inputs, preflight, report


def node_refusals(
    probe: str, host: str, variables: Mapping[str, Any], ports: Mapping[str, str]
) -> list[preflight.Refusal]:
    """The node's Python is held against what the modules of this very ansible-core need."""
    return preflight.node_refusals(probe, host, variables, ports, _PY_MIN, core_version)


def phase(probe: str, variables: Mapping[str, Any]) -> str:
    """The phase of the roles that a node needs: `configure` where its image has all that is installed."""
    answer = preflight.parse_probe(probe)
    model = f"{preflight.MODELS}/{variables['serving_model_id']}"
    current = model in answer["paths"] and image_inputs.is_current(answer.get("inputs", ""), variables)
    return "configure" if current else "main"


FILTERS: dict[str, Callable[..., Any]] = {
    "ingot_refusal_report": preflight.report,
    "ingot_variable_refusals": preflight.variable_refusals,
    "ingot_cluster_refusals": preflight.cluster_refusals,
    "ingot_node_refusals": node_refusals,
    "ingot_image_record": image_inputs.record,
    "ingot_phase": phase,
    "ingot_question": report.question,
    "ingot_launch_refusals": preflight.launch_refusals,
    "ingot_launch_plan": report.planned,
    "ingot_launch_report": report.launched,
    "ingot_destroy_list": report.to_destroy,
    "ingot_site_report": report.answered,
}
