"""Faces of ingot.preflight and ingot.report for the playbooks."""

from __future__ import annotations

from ansible.errors import AnsibleFilterError

try:
    from ingot import preflight, report
except ImportError as error:  # an ansible-playbook from outside the project's environment
    raise AnsibleFilterError(
        "Ingot's own Python package is not importable by this ansible-playbook: run it from the project's"
        " virtual environment (.venv/bin/ansible-playbook; `uv sync` makes it)"
    ) from error


class FilterModule:
    """Filters of playbooks/{site,launch,destroy}.yml."""

    def filters(self) -> dict[str, object]:
        return {
            "ingot_refusal_report": preflight.report,
            "ingot_variable_refusals": preflight.variable_refusals,
            "ingot_cluster_refusals": preflight.cluster_refusals,
            "ingot_node_refusals": preflight.node_refusals,
            "ingot_launch_refusals": preflight.launch_refusals,
            "ingot_launch_report": report.launched,
            "ingot_destroy_list": report.to_destroy,
            "ingot_site_report": report.answered,
        }
