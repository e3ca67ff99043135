"""Which cores an engine gets on a node with these chips, held against figures that were computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from ingot import neuron_cores
from ingot.filters import FILTERS
from ingot.sizing import SizingError

GIB = 1 << 30
DEVICES = ["Inferentia2"]
# 2 x 32 layers x 8 KV heads x 128 x 2 bytes = 128 KiB a token, half of it on each of two cores
SHAPE: dict[str, Any] = {
    "layers": 32,
    "attention_heads": 32,
    "kv_heads": 8,
    "head_dim": 128,
    "max_model_len": 8192,
    "weight_bytes": 16 * GIB,
}


def chips(count: int, cores: int = 2, memory: int = 32 * GIB) -> list[dict[str, Any]]:
    return [{"index": index, "cores": cores, "memory": memory, "commands": []} for index in range(count)]


def planned(count: int, **asked: int) -> dict[str, Any]:
    return neuron_cores.plan(chips(count), DEVICES, "made/up", SHAPE, "bfloat16", **asked)


def test_an_engine_gets_the_fewest_cores_that_hold_it() -> None:
    """8 GiB of weights and 8 x 0.5 GiB of KV cache and 1.5 GiB beside them on each of two cores of 16 GiB."""
    plan = planned(1)
    assert plan["visible_cores"] == "0-1"
    assert plan["flags"] == {
        "tensor-parallel-size": 2,
        "max-model-len": 8192,
        "max-num-seqs": 8,
        "num-gpu-blocks-override": 8,
        "no-enable-prefix-caching": True,
    }
    assert (plan["chips"], plan["cores"], plan["idle_cores"]) == (1, 2, 0)


def test_cores_that_are_left_over_are_counted() -> None:
    plan = planned(6)
    assert (plan["visible_cores"], plan["cores"], plan["idle_cores"]) == ("0-1", 12, 10)
    assert planned(6, tensor_parallel=8)["visible_cores"] == "0-7"


def test_one_core_is_no_range() -> None:
    small = SHAPE | {"weight_bytes": GIB}
    plan = neuron_cores.plan(chips(1), DEVICES, "made/up", small, "bfloat16", max_model_len=1024)
    assert (plan["visible_cores"], plan["flags"]["max-model-len"]) == ("0", 1024)


@pytest.mark.parametrize(
    ("there", "asked", "said"),
    [
        (chips(1), {"tensor_parallel": 4}, "tensor-parallel-size 4 does not go with made/up"),
        (
            chips(1),
            {"max_num_seqs": 32},
            "made/up does not fit: each of 2 cores of Inferentia2 needs 25.50 GiB",
        ),
        ([], {}, "the node has no chips, and its Neuron set is for Inferentia2"),
        (chips(16, 8, 96 * GIB), {}, "the node has chips of 8 cores with 96 GiB"),
        (
            [*chips(1), *chips(1, cores=1)],
            {},
            "the node has chips of 1 cores with 32 GiB and chips of 2 cores with 32 GiB",
        ),
    ],
    ids=["too few cores", "too little memory", "no chip", "another chip", "a broken chip"],
)
def test_what_does_not_go_with_the_chips_is_refused(
    there: list[dict[str, Any]], asked: dict[str, int], said: str
) -> None:
    with pytest.raises(SizingError) as refused:
        neuron_cores.plan(there, DEVICES, "made/up", SHAPE, "bfloat16", **asked)
    assert said in str(refused.value)
    told = FILTERS["ingot_neuron_cores"](there, DEVICES, "made/up", SHAPE, "bfloat16", **asked)
    assert said in told["refused"], "the role is told so"


def test_the_role_is_told_the_plan() -> None:
    told = FILTERS["ingot_neuron_cores"](chips(1), DEVICES, "made/up", SHAPE, "bfloat16", tensor_parallel=0)
    assert told == planned(1) | {"refused": ""}
