"""Variables: each is known to somebody, those that are needed are there, and each value is of its kind."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ingot import values
from ingot.checkout import ROOT
from ingot.preflight.refusal import Refusal

DOCUMENTED = "inventories/aws/group_vars/all.yml"


def refusals(variables: Mapping[str, Any], *, launching: bool = True) -> list[Refusal]:
    """Names that nothing reads, and names that the playbooks read and nobody set.

    Without ``launching``, as with a static inventory, what only launch.yml reads may be absent. What
    gate.yml and verify.yml alone read is asked for there.
    """
    known = playbook_options()
    needed = {
        name
        for name in known
        if not name.startswith(("gate_", "verify_"))
        and (launching or not (name.startswith("launch_") or name in ("ingot_ssh_key", "ingot_connect")))
    }
    known |= {"destroy_confirm"}  # of the command line only
    return [
        *check_variables(variables, role_options(), known),
        *check_missing(variables, needed),
        *check_values(variables),
    ]


def role_options(roles: Path = ROOT / "roles") -> dict[str, frozenset[str]]:
    """The options of every role, from its argument specification."""
    return {role: frozenset(options) for role, options in specified(roles).items()}


def public_role_options(roles: Path = ROOT / "roles") -> frozenset[str]:
    """The options of all roles that are no secrets."""
    return frozenset(
        name
        for options in specified(roles).values()
        for name, option in options.items()
        if not option.get("no_log")
    )


@cache
def specified(roles: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """Every role's options with what their specification says of them. Read once, though every node asks."""
    found = {}
    for spec in sorted(roles.glob("*/meta/argument_specs.yml")):
        entries = yaml.safe_load(spec.read_text(encoding="utf-8"))["argument_specs"]
        found[spec.parent.parent.name] = {
            name: option for entry in entries.values() for name, option in entry.get("options", {}).items()
        }
    return found


def playbook_options(defaults: Path = ROOT / DOCUMENTED) -> frozenset[str]:
    """The variables that the playbooks read: those that the AWS inventory documents."""
    return frozenset(yaml.safe_load(defaults.read_text(encoding="utf-8")))


def check_variables(
    names: Iterable[str], roles: Mapping[str, frozenset[str]], playbooks: frozenset[str]
) -> list[Refusal]:
    """No variable looks like one of ours and is none: a mistyped name would be ignored without a word."""
    known = playbooks.union(*roles.values()) if roles else playbooks
    prefixes = {f"{role}_" for role in roles} | {"launch_", "destroy_", "ingot_", "gate_", "verify_"}
    refusals = []
    for name in sorted(set(names) - known):
        if name.startswith(("ansible_", "ec2_", "__", "packer_")):
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
        owner = next((prefix for prefix in prefixes if name.startswith(prefix)), None)
        # Without one of our prefixes it is the person's own variable, unless it is all but one of ours.
        if owner is None and not difflib.get_close_matches(name, known, n=1, cutoff=0.9):
            continue
        refusals.append(
            Refusal(
                "unknown-variable",
                f"nothing reads the variable {name!r}",
                f"Write {near[0]!r} if that is meant"
                if near
                else "Remove it; the README of each role lists what it reads",
            )
        )
    return refusals


def check_missing(names: Iterable[str], needed: Iterable[str]) -> list[Refusal]:
    """Every variable that the playbooks read is there."""
    return [
        Refusal(
            "missing-variable",
            f"the inventory does not set {name!r}",
            "Take it over from inventories/aws/group_vars/all.yml, where each is explained",
        )
        for name in sorted(set(needed) - set(names))
    ]


def check_values(variables: Mapping[str, Any]) -> list[Refusal]:
    """Every value is of its kind and within its range."""
    return [
        Refusal("bad-value", f"{name} is {problem}", "Correct it; docs/variables.md says what it means")
        for name, problem in values.problems(variables).items()
    ]
