"""What speaks against the network between GPUs: harmful variables, libraries that nobody tested together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from ingot import instance_types, nccl
from ingot.preflight.refusal import Refusal
from ingot.table import in_words

SUM = re.compile(r"[0-9a-f]{64}")


def refusals(variables: Mapping[str, Any]) -> list[Refusal]:
    """What is known before there is a machine. ``variables`` are those of the role nccl_efa.

    One that is not set yet is not judged.
    """
    stack = variables.get("nccl_efa_stack")
    if stack is None:
        return []
    if found := check_stack(stack):
        return found
    version = stack["efa_installer"]
    installer = nccl.load().installers[version]
    if not installer.packages:
        packaged = [name for name, one in nccl.load().installers.items() if one.packages]
        return [
            Refusal(
                "efa-installer-unknown",
                f"files/nccl.yml has no packages of EFA installer {version}, so nothing could be checked",
                f"Take {' or '.join(packaged)}, or add them with their source",
            )
        ]
    return check_sum(version, str(variables.get("nccl_efa_installer_sha256", installer.sha256)))


def check_sum(version: str, given: str) -> list[Refusal]:
    """The archive is held to a sum: it is run as root."""
    if SUM.fullmatch(given):
        return []
    return [
        Refusal(
            "efa-installer-sum",
            f"nccl_efa_installer_sha256 is {given!r}, which is no SHA-256 of the EFA installer {version}",
            "Take the one that AWS publishes (docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-verify.html)",
        )
    ]


def check_environment(nodes: Mapping[str, Mapping[str, Any]]) -> list[Refusal]:
    """``nodes`` maps each host to its variables, of which serving_environment may break what NCCL does."""
    found = []
    for variables in nodes.values():
        type_name = str(variables.get("ec2_instance_type", ""))
        for name, value in (variables.get("serving_environment") or {}).items():
            known = nccl.variable(name)
            rule = known.refused if known else None
            if rule and nccl.has(type_name, rule.where) and re.fullmatch(rule.value, str(value)):
                on = "" if rule.where == "any" else f" on {type_name}"
                found.append(
                    Refusal(
                        "nccl-variable-harms",
                        f"serving_environment sets {name} to {str(value)!r}{on}: {rule.why}",
                        "Leave it out; docs/nccl.md says what each variable does",
                    )
                )
    return list(dict.fromkeys(found))  # once for all nodes of a type


def check_stack(given: Mapping[str, str]) -> list[Refusal]:
    """The EFA installer, libfabric, aws-ofi-nccl and NCCL of ``given`` go together."""
    table = nccl.load()
    pinned = ", ".join(f"{name} {version}" for name, version in table.stack.model_dump().items())
    do = f"Take the pinned set ({pinned}), or add the release with its source to files/nccl.yml"
    try:
        wrong = nccl.problems(nccl.Stack.model_validate(dict(given)), table)
    except ValidationError as error:
        wrong = [in_words(error)]
    return [Refusal("efa-stack-untested", why, do) for why in wrong]


def check_efa(what: str, type_name: str, attached: int) -> list[Refusal]:
    """A node that is to use EFA is of a type that can, and has an interface for it."""
    known = instance_types.load()
    kind = known.get(type_name)
    if kind is None or (kind.efa_interfaces and attached):
        return []
    if not kind.efa_interfaces:
        family = instance_types.family(type_name)
        larger = [
            name
            for name, one in known.items()
            if instance_types.family(name) == family and one.efa_interfaces
        ]
        choices = ", ".join(larger) or "another family; no size of this one has it"
        return [Refusal("no-efa", f"{what} is {type_name}, which has no EFA", f"Choose {choices}")]
    return [
        Refusal(
            "efa-not-attached",
            f"{what} is {type_name}, which may have {kind.efa_interfaces} interfaces for EFA, and has none",
            "Launch it with interfaces of type efa, in a security group that allows all traffic from itself"
            " and to itself",
        )
    ]
