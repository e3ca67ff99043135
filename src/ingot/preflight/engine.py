"""Whether an image has the engine that a cluster is told to serve with, and the mode is for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ingot import images
from ingot.formats import ENGINE_NAMES
from ingot.images import Image
from ingot.preflight.devices import DEVICES
from ingot.preflight.refusal import Refusal

OTHER: Final = "tensorrt_llm"  # the role that brings it, and its word in serving_engine


def check_nodes(nodes: Mapping[str, Mapping[str, Any]]) -> list[Refusal]:
    """``nodes`` maps each host to its variables; what is wrong with several is said once."""
    found: list[Refusal] = []
    for variables in nodes.values():
        if image := images.of_groups(variables.get("group_names", ())):
            found += check(*image, variables)
    return list(dict.fromkeys(found))


def check(name: str, image: Image, variables: Mapping[str, Any]) -> list[Refusal]:
    """``name`` is what the image is called in messages."""
    asked = variables.get("serving_engine", "vllm")
    if asked not in ENGINE_NAMES:
        return [
            Refusal(
                "unknown-serving-engine",
                f"serving_engine is {asked!r}",
                f"Set it to one of {', '.join(ENGINE_NAMES)}",
            )
        ]
    if asked != OTHER:
        return []
    engine = ENGINE_NAMES[OTHER]
    if image.accelerator != "nvidia":
        there = DEVICES.get(image.accelerator, "CPUs")
        return [
            Refusal(
                "engine-needs-gpu",
                f"serving_engine is {OTHER}, and image {name} is for {there}: {engine} computes on NVIDIA's"
                " GPUs alone",
                "Set serving_engine: vllm, or launch an image for NVIDIA GPUs",
            )
        ]
    if OTHER not in image.roles:
        return [
            Refusal(
                "engine-not-on-image",
                f"serving_engine is {OTHER}, and image {name} was made without {engine}",
                f"Set serving_engine: vllm, or launch an image whose roles (packer/images.yml) have {OTHER}",
            )
        ]
    if variables.get("serving_mode") != "vllm":
        return [
            Refusal(
                "engine-in-ray",
                f"serving_engine is {OTHER} and serving_mode {variables.get('serving_mode')}, whose replicas"
                " have vLLM in their process",
                "Set serving_mode: vllm, with which each node has a unit of its own; or serving_engine: vllm",
            )
        ]
    return []
