"""Which engine an image can serve with; each defect planted."""

from __future__ import annotations

from typing import Any

import pytest

from ingot import images
from ingot.images import Image
from ingot.preflight import engine
from ingot.preflight.refusal import Refusal

X86 = images.load().images["x86"]
WITHOUT = X86.model_copy(update={"accelerator": "nvidia", "roles": ["nvidia", "serving", "image_hygiene"]})
WITH = WITHOUT.model_copy(update={"roles": ["nvidia", "tensorrt_llm", "serving", "image_hygiene"]})


def check(image: Image, **variables: Any) -> list[Refusal]:
    return engine.check("demo", image, {"serving_mode": "vllm", **variables})


@pytest.mark.parametrize("image", [X86, WITHOUT, WITH])
def test_vllm_is_let_through_and_is_the_default(image: Image) -> None:
    assert check(image, serving_engine="vllm") == []
    assert check(image, serving_mode="ray_serve") == []


def test_another_engine_is_let_through_where_it_is() -> None:
    assert check(WITH, serving_engine="tensorrt_llm") == []


@pytest.mark.parametrize(
    ("image", "mode", "name", "why", "do"),
    [
        (X86, "vllm", "engine-needs-gpu", "image demo is for CPUs", "NVIDIA GPUs"),
        (
            X86.model_copy(update={"accelerator": "neuron"}),
            "vllm",
            "engine-needs-gpu",
            "image demo is for Neuron chips",
            "NVIDIA GPUs",
        ),
        (WITHOUT, "vllm", "engine-not-on-image", "made without TensorRT-LLM", "packer/images.yml"),
        (WITH, "ray_serve", "engine-in-ray", "serving_mode ray_serve", "serving_mode: vllm"),
    ],
)
def test_another_engine_is_refused_where_it_cannot_serve(
    image: Image, mode: str, name: str, why: str, do: str
) -> None:
    (refusal,) = check(image, serving_engine="tensorrt_llm", serving_mode=mode)
    assert refusal.name == name
    assert why in refusal.why
    assert do in refusal.do
    assert "serving_engine: vllm" in refusal.do


def test_what_is_wrong_with_several_nodes_is_said_once() -> None:
    node = {"group_names": ["x86"], "serving_engine": "tensorrt_llm", "serving_mode": "vllm"}
    assert [one.name for one in engine.check_nodes({"a": node, "b": node})] == ["engine-needs-gpu"]
