"""The lengths that a model is compiled for, and what compiling takes; each defect planted."""

from __future__ import annotations

import pytest

from ingot import neuron_buckets
from ingot.neuron_buckets import Buckets
from ingot.sizing import GIB, SizingError


def test_without_a_choice_there_are_powers_of_two_up_to_the_longest_request() -> None:
    assert neuron_buckets.choose([], [], 1024).context == (128, 256, 512, 1024)
    assert neuron_buckets.choose([], [], 1000).generation == (128, 256, 512, 1000)
    assert neuron_buckets.choose([], [], 100) == Buckets((100,), (100,))


def test_a_choice_is_taken_as_it_is() -> None:
    chosen = neuron_buckets.choose([512, 2048], [2048], 2048)
    assert (chosen.context, chosen.generation) == ((512, 2048), (2048,))
    assert (chosen.programs, chosen.longest) == (3, 2048)


@pytest.mark.parametrize(
    ("context", "said"),
    [
        ([128, 1024], "ends with 1024, and requests may have 2048 tokens"),
        ([128, 4096], "ends with 4096, and requests may have 2048 tokens at most"),
        ([2048, 128], "write each length once, the shortest first"),
        ([128, 128, 2048], "write each length once, the shortest first"),
        ([0, 2048], "each must be a number of tokens, 1 or more"),
        ([True, 2048], "each must be a number of tokens, 1 or more"),
        (["128", 2048], "each must be a number of tokens, 1 or more"),
    ],
    ids=["too short", "too long", "not ascending", "twice", "no length", "a truth", "a text"],
)
def test_buckets_that_cannot_be_are_refused(context: list[int], said: str) -> None:
    with pytest.raises(SizingError) as refused:
        neuron_buckets.choose(context, [], 2048)
    assert said in str(refused.value) and "neuron_context_buckets" in str(refused.value)
    with pytest.raises(SizingError, match="neuron_generation_buckets"):
        neuron_buckets.choose([], context, 2048)


def test_a_host_that_is_known_to_have_been_too_small_is_estimated_so() -> None:
    """aws-neuron-sdk#1222: Llama-3.1-8B, 32 GiB, two programs."""
    takes = neuron_buckets.estimate(15 * GIB, Buckets((32,), (64,)), 8)
    assert takes.memory_bytes == (3 * 15 + 2 * 2 + 1) * GIB > 32 * GIB
    assert takes.why == "3 x 15.0 GiB of weights + 2 compilers of 2 GiB + 1 GiB, a rule of thumb"


def test_compilers_run_at_once_as_far_as_there_are_cpus_and_programs() -> None:
    seven = neuron_buckets.choose([], [], 8192)
    assert neuron_buckets.estimate(GIB, seven, 4).compilers == 4
    assert neuron_buckets.estimate(GIB, seven, 4).seconds == 4 * neuron_buckets.PROGRAM_SECONDS
    assert neuron_buckets.estimate(GIB, seven, 64).compilers == seven.programs == 14
    assert neuron_buckets.estimate(GIB, seven, 64).disk_bytes == GIB + 14 * neuron_buckets.PROGRAM_BYTES
