"""A model against the memory of what it would compute on; each defect planted."""

from __future__ import annotations

from typing import Any

import pytest
from refusals import MODEL, names

from ingot import models, sizing
from ingot.preflight import devices
from ingot.preflight.refusal import Refusal

HOST = sizing.Host(cores=4, memory_bytes=16 * sizing.GIB)


@pytest.fixture
def check(catalog: models.Catalog) -> Any:
    def _check(type_name: str, accelerator: str, model: str = MODEL, **serving: Any) -> list[Refusal]:
        variables = {"serving_mode": "vllm", **serving}
        return devices.check_memory(
            f"instance type {type_name}",
            type_name,
            accelerator,
            HOST,
            model,
            catalog.models[model],
            variables,
        )

    return _check


@pytest.mark.parametrize(
    ("type_name", "accelerator"),
    [("m7i.xlarge", ""), ("g5.xlarge", "nvidia"), ("inf2.xlarge", "neuron"), ("", "nvidia")],
)
def test_what_fits_is_let_through(check: Any, type_name: str, accelerator: str) -> None:
    assert check(type_name, accelerator) == []


def test_the_memory_of_the_device_counts_and_not_the_hosts(check: Any) -> None:
    (refusal,) = check("g5.xlarge", "nvidia", "big/model")
    assert refusal.name == "model-does-not-fit"
    assert "each of 1 A10G needs" in refusal.why and "140.00 GiB weights" in refusal.why
    assert "It would fit" in refusal.do
    offered = refusal.do.rpartition("It would fit ")[2].split(", ")
    assert offered and all(check(name, "nvidia", "big/model") == [] for name in offered)


def test_what_fits_nowhere_says_so_by_saying_nothing(check: Any) -> None:
    (refusal,) = check("inf2.xlarge", "neuron", "big/model")
    assert refusal.name == "model-does-not-fit"
    assert "It would fit" not in refusal.do, "9 heads are divided by no degree but 1, and 140 GiB fit no core"


@pytest.mark.parametrize(
    ("serving", "name"),
    [
        ({"serving_max_model_len": 10**6}, "sizing-contradicts"),
        ({"serving_engine_flags": {"tensor-parallel-size": 2}}, "sizing-contradicts"),
        ({"serving_engine_flags": {"gpu-memory-utilization": 0.1}}, "model-does-not-fit"),
    ],
)
def test_what_is_set_is_held_against_the_model(check: Any, serving: dict[str, Any], name: str) -> None:
    assert names(check("g5.12xlarge", "nvidia", **serving)) == [name]


def test_a_batch_too_large_for_a_core_is_refused(check: Any) -> None:
    assert check("inf2.xlarge", "neuron", serving_max_num_seqs=32) == []
    assert names(check("inf2.xlarge", "neuron", serving_max_num_seqs=128)) == ["model-does-not-fit"]


@pytest.mark.parametrize(
    ("type_name", "accelerator", "said"),
    [
        ("m7i.large", "nvidia", "g5, g6"),
        ("inf2.xlarge", "nvidia", "p5"),
        ("g5.xlarge", "neuron", "inf2"),
        ("trn2.48xlarge", "neuron", "inf2"),
    ],
)
def test_an_image_for_what_is_not_there_is_refused(
    check: Any, type_name: str, accelerator: str, said: str
) -> None:
    (refusal,) = check(type_name, accelerator)
    assert refusal.name == "no-accelerator"
    assert said in refusal.do
