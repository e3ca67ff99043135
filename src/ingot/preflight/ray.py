"""One Ray cluster is one Ray version and one Python minor on every node: else a node fails as it joins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from ingot import images
from ingot.checkout import ROOT
from ingot.preflight.node import parse_probe
from ingot.preflight.refusal import Refusal

RAY = "ray_serve"
ALONE = (
    "Launch it from an image that has the head's, or serve from it beside the cluster: with serving_mode vllm"
    " and a serving_model_id of its own for its group, it is a pool behind the same gateway"
)


def refusals(hosts: Mapping[str, Mapping[str, Any]], nodes: Sequence[str], head: str) -> list[Refusal]:
    """What keeps these nodes from being one cluster.

    ``hosts`` has each node's variables, with its answer to ``playbooks/files/probe.sh`` in ``__probe``.
    """
    members = [host for host in nodes if hosts[host]["serving_mode"] == RAY]
    if head not in members:
        return []
    found = [
        Refusal(
            "image-without-ray",
            f"{host} was made from image {made[0]}, which has no Ray, and is to be a node of a Ray cluster",
            ALONE,
        )
        for host in members
        if (made := images.of_groups(hosts[host]["group_names"])) and "ray" not in made[1].roles
    ]
    versions = {host: version(str(hosts[host]["__probe"]["stdout"])) for host in members}
    wanted = versions[head]
    return found + [
        Refusal("ray-differs", f"{host} has {_said(has)}, and the head {head} has {_said(wanted)}", ALONE)
        for host, has in versions.items()
        if has != wanted and not any(host in refusal.why for refusal in found)
    ]


def version(probe: str) -> tuple[str, str]:
    """The node's Ray, and its Python's minor version; of one without an environment, what it would get."""
    answer = parse_probe(probe)
    ray, _, python = str(answer.get("ray", "")).partition(" ")
    if ray and python:
        return ray, python
    pins = yaml.safe_load((ROOT / "files/versions.yml").read_text(encoding="utf-8"))
    return str(pins["ray"]), ".".join(str(answer.get("python", "")).split(".")[:2])


def _said(found: tuple[str, str]) -> str:
    return f"Ray {found[0]} on Python {found[1] or 'of no version'}"
