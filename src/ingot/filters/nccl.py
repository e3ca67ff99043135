"""Faces of ingot.nccl for the role nccl_efa."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from ansible.errors import AnsibleFilterError

from ingot import instance_types, nccl
from ingot.preflight import nccl as checks


def plan(stack: Mapping[str, str]) -> dict[str, Any]:
    """What the set's installer brings, and its archive's sum."""
    installer = nccl.load().installers.get(str(stack.get("efa_installer")))
    if installer is None:
        raise AnsibleFilterError("\n".join(map(str, checks.check_stack(stack))))
    return installer.model_dump()


def network(instance_type: str, **options: Any) -> dict[str, Any]:
    """Over what an engine's nodes talk, its environment, and how many interfaces of EFA the type may have."""
    kind = instance_types.load().get(instance_type)
    return asdict(nccl.network(instance_type, **options)) | {"interfaces": kind.efa_interfaces if kind else 0}


FILTERS: dict[str, Callable[..., Any]] = {
    "ingot_nccl_refusals": checks.refusals,
    "ingot_nccl_plan": plan,
    "ingot_nccl_network": network,
    "ingot_efa_refusals": checks.check_efa,
}
