"""The least IAM policies in ``files/iam``, held against the calls that the local EC2 saw."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from ingot.checkout import ROOT

POLICIES = ROOT / "files" / "iam"

POLICY_OF = {
    "Packer": "packer.json",
    "packer-plugin-amazon": "packer.json",
    "ingot-ray-head": "ray-head.json",  # as the role ray names it
}
"""Callers, as ``calls.json`` names them, with their policies; all others run under deploy.json."""

WITHOUT_PERMISSION = frozenset({"sts:GetCallerIdentity"})
"""Allowed to everybody, whatever the policies say."""


def actions(policy: Path) -> list[str]:
    """The actions that a policy allows, in its own order."""
    found: list[str] = []
    for statement in json.loads(policy.read_text(encoding="utf-8"))["Statement"]:
        if statement["Effect"] != "Allow":
            raise ValueError(f"{policy.name}: only Allow is understood, not {statement['Effect']}")
        listed = statement["Action"]
        found += [listed] if isinstance(listed, str) else listed
    return found


def lacking(allowed: Iterable[str], seen: Iterable[str]) -> list[str]:
    """Actions that were called and that nothing allows. IAM's names are case-insensitive; ``*`` matches."""
    patterns = [pattern.lower() for pattern in allowed]
    return sorted(
        action
        for action in set(seen) - WITHOUT_PERMISSION
        if not any(fnmatchcase(action.lower(), pattern) for pattern in patterns)
    )


def complaints(calls: Mapping[str, Iterable[str]], policies: Path = POLICIES) -> list[str]:
    """A line for each action of ``calls.json`` that its caller's policy does not allow."""
    lines = []
    for agent, seen in sorted(calls.items()):
        name = POLICY_OF.get(agent, "deploy.json")
        lines += [
            f"{name} does not allow {action}, which {agent} called"
            for action in lacking(actions(policies / name), seen)
        ]
    return lines


def since(before: Mapping[str, Iterable[str]], now: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """What ``calls.json`` has now and had not before: not what somebody tried out in the region earlier."""
    return {agent: sorted(set(seen) - set(before.get(agent, ()))) for agent, seen in now.items()}
