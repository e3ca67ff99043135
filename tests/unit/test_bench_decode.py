"""What `make bench-decode` makes of its measurements."""

from __future__ import annotations

import pytest

from bench_decode import MAKE, SHAPES, Decoded, Results, config_of, page


def decoded(*, itl: float, triad: float = 40e9) -> Decoded:
    """A model of 200 MB, which 40 GB/s read in 5 ms."""
    return Decoded(shape="S", weight_bytes=200_000_000, itl_ms=[itl, 99, 1], triad_bytes_s=[triad])


@pytest.mark.parametrize(
    ("itl", "said"),
    [(10, "| 100.0 | 10.0 | 5.0 | 0.50 (goal 0.7: missed) |"), (6.25, "0.80 (goal 0.7: reached)")],
)
def test_the_time_that_is_not_reading_is_told_and_the_share_held_against_the_goal(
    itl: float, said: str
) -> None:
    results = Results(
        date="2026-12-01",
        commit="abc",
        machine="2 cores",
        vllm="vLLM",
        input_tokens=128,
        output_tokens=64,
        models=[decoded(itl=itl)],
    )
    assert said in page(results)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_is_one_that_attention_can_be_computed_for(shape: str) -> None:
    config = config_of(shape)
    heads = config["num_attention_heads"]
    assert config["head_dim"] * heads == config["hidden_size"]
    assert heads % config["num_key_value_heads"] == 0


def test_the_program_that_makes_the_weights_is_one() -> None:
    compile(MAKE, "make", "exec")
