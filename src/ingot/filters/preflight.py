"""Faces of ingot.preflight, ingot.ray_up and ingot.report for the playbooks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ansible.module_utils.basic import _PY_MIN
from ansible.release import __version__ as core_version

from ingot import account, arguments, certificates, image_inputs, pools, ray_up, report
from ingot.preflight import cluster, node, programs, ray, refusal, variables


def cluster_refusals(
    hosts: Mapping[str, Mapping[str, Any]], groups: Mapping[str, Sequence[str]]
) -> list[refusal.Refusal]:
    """With those for the values of roles' variables, and for the head's certificate."""
    found = cluster.refusals(hosts, groups)
    for host in sorted({*groups.get("ray_head", []), *groups.get("ray_worker", [])}):
        found += arguments.refusals(hosts[host])
    for head in groups.get("ray_head", []):
        found += certificates.refusals(str(hosts[head].get("gateway_tls_certificate", "")))
    return list(dict.fromkeys(found))


def region(found: str) -> str:
    """The region, for an inventory that asks EC2.

    Ansible takes a file that one of its inventory plugins has failed on to the next, and shows the complaints
    of all: what was wrong is the first of three, and the last says nothing. So this ends it with the reason.
    """
    if refused := account.refusals(found):
        sys.exit("Refused: " + " ".join(str(refused[0]).split()))
    return found


def endpoint(head: Mapping[str, Any]) -> dict[str, str]:
    """Where the gateway is and what it must show."""
    return asdict(certificates.endpoint(head))


def node_refusals(
    probe: str, host: str, variables: Mapping[str, Any], ports: Mapping[str, str]
) -> list[refusal.Refusal]:
    """The node's Python is held against what the modules of this very ansible-core need."""
    return node.refusals(probe, host, variables, ports, _PY_MIN, core_version)


def phase(probe: str, variables: Mapping[str, Any]) -> str:
    """The phase of the roles that a node needs: `configure` where its image has all that is installed."""
    answer = node.parse_probe(probe)
    model = f"{node.MODELS}/{variables['serving_model_id']}"
    current = model in answer["paths"] and image_inputs.is_current(answer.get("inputs", ""), variables)
    return "configure" if current else "main"


FILTERS: dict[str, Callable[..., Any]] = {
    "ingot_refusal_report": refusal.report,
    "ingot_variable_refusals": variables.refusals,
    "ingot_cluster_refusals": cluster_refusals,
    "ingot_endpoint": endpoint,
    "ingot_node_refusals": node_refusals,
    "ingot_pool": pools.members,
    "ingot_other_pools": pools.others,
    "ingot_ray_refusals": ray.refusals,
    "ingot_compile_refusals": programs.compile_refusals,
    "ingot_image_record": image_inputs.record,
    "ingot_phase": phase,
    "ingot_region": region,
    "ingot_question": report.question,
    "ingot_launch_refusals": ray_up.launch_refusals,
    "ingot_launch_plan": report.planned,
    "ingot_launch_report": report.launched,
    "ingot_destroy_list": report.to_destroy,
    "ingot_site_report": report.answered,
    "ingot_ray_up_refusals": ray_up.refusals,
    "ingot_ray_up_plan": ray_up.planned,
    "ingot_ray_up_metadata": ray_up.metadata_options,
    "ingot_ray_up_size": ray_up.node_size,
}
