"""What fits on GPUs and Neuron chips, held against figures that were computed by hand."""

from __future__ import annotations

import pytest

from ingot import accelerators
from ingot.accelerator_sizing import (
    Decoder,
    gpu_tensor_parallel,
    neuron_tensor_parallel,
    size_gpu,
    size_neuron,
)
from ingot.sizing import GIB, MIB, ModelDoesNotFitError, SizingError

# 2 x 32 layers x 8 KV heads x 128 x 2 bytes = 128 KiB a token
LLAMA_8B = Decoder("8B", 16 * GIB, 32, 8, 128, 131072, attention_heads=32)
# 2 x 80 x 8 x 128 x 2 = 320 KiB a token
LLAMA_70B = Decoder("70B", 140 * GIB, 80, 8, 128, 131072, attention_heads=64)
SMOL = Decoder("135M", 256 * MIB, 30, 3, 64, 8192, attention_heads=9)


def gpu(instance_type: str) -> accelerators.Gpu:
    found = accelerators.gpu_of(instance_type)
    assert found
    return found


def neuron(instance_type: str) -> accelerators.Neuron:
    found = accelerators.neuron_of(instance_type)
    assert found
    return found


@pytest.mark.parametrize(
    ("model", "count", "degrees"),
    [
        (LLAMA_8B, 1, [1]),
        (LLAMA_8B, 4, [1, 2, 4]),
        (LLAMA_8B, 8, [1, 2, 4, 8]),
        (LLAMA_70B, 16, [1, 2, 4, 8, 16]),  # 16: each KV head twice
        (SMOL, 8, [1, 3]),
        (SMOL, 9, [1, 3, 9]),
        (Decoder("m", GIB, 1, 2, 64, 128, attention_heads=12), 12, [1, 2, 4, 6, 12]),  # 3 does not divide 2
    ],
)
def test_tensor_parallelism_divides_the_heads(model: Decoder, count: int, degrees: list[int]) -> None:
    assert gpu_tensor_parallel(model, count) == degrees


@pytest.mark.parametrize(
    ("model", "instance_type", "degrees"),
    [
        (LLAMA_8B, "inf2.xlarge", [1, 2]),
        (LLAMA_8B, "inf2.24xlarge", [1, 2, 4, 8]),
        (LLAMA_8B, "inf2.48xlarge", [1, 2, 4, 8]),
        (Decoder("m", GIB, 1, 8, 128, 128, attention_heads=48), "inf2.48xlarge", [1, 2, 4, 8, 24]),
        (SMOL, "inf2.48xlarge", [1]),
    ],
)
def test_neuron_has_fixed_degrees(model: Decoder, instance_type: str, degrees: list[int]) -> None:
    assert neuron_tensor_parallel(model, neuron(instance_type)) == degrees


@pytest.mark.parametrize(("degree", "kib"), [(1, 128), (2, 64), (8, 16), (16, 16), (32, 16)])
def test_kv_heads_are_divided_and_then_repeated(degree: int, kib: int) -> None:
    assert LLAMA_8B.kv_bytes_per_token_of(degree) == kib * 1024


def test_eight_billion_on_an_a10g() -> None:
    # 22888 MiB x 0.98 x 0.92 = 20635.8 MiB; less 16384 of weights and 2560 of overhead: 1691.8 MiB,
    # which are 845 blocks of 16 tokens x 128 KiB = 2 MiB: 13520 tokens.
    sizing = size_gpu(gpu("g5.xlarge"), LLAMA_8B, max_model_len=8192)
    assert sizing.budget_bytes // MIB == 20635
    assert (sizing.tensor_parallel, sizing.engines) == (1, 1)
    assert sizing.kv_cache_bytes == 845 * 2 * MIB
    assert (sizing.kv_tokens, sizing.max_num_seqs) == (13520, 1)
    assert sizing.needed_bytes <= sizing.budget_bytes


def test_what_is_too_long_is_refused_with_the_sum_and_the_length_that_fits() -> None:
    with pytest.raises(ModelDoesNotFitError) as refusal:
        size_gpu(gpu("g5.xlarge"), LLAMA_8B)
    message = str(refusal.value)
    assert (
        "each of 1 A10G needs 34.50 GiB = 16.00 GiB weights (16.00 GiB / 1)"
        " + 16.00 GiB KV cache (131072 tokens of 131072 bytes) + 2.50 GiB overhead,"
        " and has 20.15 GiB (22.35 GiB x 0.98 x 0.92)"
    ) in message
    assert "serving_max_model_len to at most 13520" in message
    assert size_gpu(gpu("g5.xlarge"), LLAMA_8B, max_model_len=13520).max_num_seqs == 1
    with pytest.raises(ModelDoesNotFitError):
        size_gpu(gpu("g5.xlarge"), LLAMA_8B, max_model_len=13521)


def test_seventy_billion_takes_the_fewest_gpus_that_hold_it() -> None:
    # An H100 has 80 x 0.98 x 0.92 = 72.128 GiB. With 2: 70 + 2.5 > 72.128. With 4: 72.128 - 35 - 2.5 = 34.628
    # GiB, which at 80 KiB a token (320 / 4) are 28367 blocks of 16 tokens, 1.25 MiB each.
    sizing = size_gpu(gpu("p5.48xlarge"), LLAMA_70B)
    assert (sizing.tensor_parallel, sizing.engines) == (4, 2)
    assert sizing.weight_bytes == 35 * GIB
    assert sizing.kv_tokens == 28367 * 16
    assert sizing.max_num_seqs == 3


def test_seventy_billion_on_four_l4s_is_refused_as_a_whole() -> None:
    with pytest.raises(ModelDoesNotFitError) as refusal:
        size_gpu(gpu("g6.12xlarge"), LLAMA_70B, max_model_len=2048)
    message = str(refusal.value)
    assert "each of 4 L4 needs 37.66 GiB = 35.00 GiB weights (140.00 GiB / 4)" in message
    assert "serving_max_model_len" not in message, "no length makes 35 GiB fit in 20"


@pytest.mark.parametrize(
    ("degree", "said"),
    [(3, "set it to 1 or 2 or 4 or 8"), (16, "8 H100"), (6, "32 attention heads, 8 KV heads")],
)
def test_a_degree_that_does_not_go_is_refused_with_those_that_do(degree: int, said: str) -> None:
    with pytest.raises(SizingError, match=said):
        size_gpu(gpu("p5.48xlarge"), LLAMA_8B, tensor_parallel=degree)


def test_what_is_asked_for_is_taken() -> None:
    sizing = size_gpu(gpu("p5.48xlarge"), LLAMA_8B, tensor_parallel=8, utilization=0.5)
    assert (sizing.tensor_parallel, sizing.engines, sizing.weight_bytes) == (8, 1, 2 * GIB)
    assert sizing.budget_bytes == int(80 * GIB * 0.98 * 0.5)


@pytest.mark.parametrize("sized", [size_gpu, size_neuron])
def test_longer_than_trained_for_is_refused(sized: object) -> None:
    with pytest.raises(SizingError, match="8192 positions"):
        if sized is size_gpu:
            size_gpu(gpu("g5.xlarge"), SMOL, max_model_len=8193)
        else:
            size_neuron(neuron("inf2.xlarge"), SMOL, max_model_len=8193)


def test_eight_billion_on_the_two_cores_of_a_chip() -> None:
    # A core has 32 / 2 = 16 GiB: 8 of weights, 1.5 of overhead, 6.5 for the cache; a request of 8192 tokens
    # at 64 KiB takes 0.5 GiB of it, so that 13 fit, and 8 is the batch that is compiled for.
    sizing = size_neuron(neuron("inf2.xlarge"), LLAMA_8B, max_model_len=8192)
    assert (sizing.tensor_parallel, sizing.engines, sizing.max_num_seqs) == (2, 1, 8)
    assert sizing.budget_bytes == 16 * GIB
    assert sizing.kv_cache_bytes == 4 * GIB
    assert sizing.needed_bytes == 13.5 * GIB
    assert size_neuron(neuron("inf2.xlarge"), LLAMA_8B, max_model_len=8192, max_num_seqs=13)


def test_one_request_more_than_fits_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(ModelDoesNotFitError) as refusal:
        size_neuron(neuron("inf2.xlarge"), LLAMA_8B, max_model_len=8192, max_num_seqs=14)
    message = str(refusal.value)
    assert (
        "each of 2 cores of Inferentia2 needs 16.50 GiB = 8.00 GiB weights (16.00 GiB / 2)"
        " + 7.00 GiB KV cache (14 x 8192 tokens of 65536 bytes) + 1.50 GiB overhead,"
        " and has 16.00 GiB (32.00 GiB a chip / 2 cores)"
    ) in message
    assert "serving_max_num_seqs to less than 14" in message
    assert "serving_max_model_len to at most 7600" in message
    assert size_neuron(neuron("inf2.xlarge"), LLAMA_8B, max_model_len=7600, max_num_seqs=14)


def test_seventy_billion_does_not_fit_eight_cores() -> None:
    # 140 / 8 = 17.5 GiB of weights a core, and 24 cores do not divide 64 heads.
    with pytest.raises(ModelDoesNotFitError, match=r"17\.50 GiB weights \(140\.00 GiB / 8\)"):
        size_neuron(neuron("inf2.48xlarge"), LLAMA_70B, max_model_len=2048)
    with pytest.raises(SizingError, match="24 cores of 12 Inferentia2: set it to 1 or 2 or 4 or 8"):
        size_neuron(neuron("inf2.48xlarge"), LLAMA_70B, tensor_parallel=24)


@pytest.mark.parametrize("model", [SMOL, LLAMA_8B, LLAMA_70B])
def test_whatever_is_sized_fits(model: Decoder) -> None:
    for kind in ("g5.xlarge", "g6e.48xlarge", "p4d.24xlarge", "p5.48xlarge", "p6-b200.48xlarge"):
        for length in (1024, 8192):
            try:
                sizing = size_gpu(gpu(kind), model, max_model_len=length)
            except ModelDoesNotFitError:
                continue
            assert sizing.needed_bytes <= sizing.budget_bytes
            assert sizing.kv_tokens >= length
            assert sizing.tensor_parallel * sizing.engines <= gpu(kind).count
