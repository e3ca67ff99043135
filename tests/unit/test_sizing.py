"""Sizing: what fits, what is refused, and that the figures hang together."""

from __future__ import annotations

import pytest

from ingot import sizing
from ingot.sizing import GIB, MIB, Host, Model, ModelDoesNotFitError, SizingError, size

SMOL = Model("SmolLM2-135M-Instruct", 270 * MIB, layers=30, kv_heads=3, head_dim=64, max_positions=8192)
LLAMA_8B = Model("Llama-3.1-8B", 16 * GIB, layers=32, kv_heads=8, head_dim=128, max_positions=131072)


def test_kv_bytes_per_token_counts_key_and_value_of_every_layer() -> None:
    assert SMOL.kv_bytes_per_token == 2 * 30 * 3 * 64 * 2
    assert LLAMA_8B.kv_bytes_per_token == 128 * 1024


@pytest.mark.parametrize("mode", ["ray_serve", "vllm"])
def test_the_rehearsal_model_fits_a_c7i_xlarge(mode: str) -> None:
    result = size(Host(cores=2, memory_bytes=8 * GIB), SMOL, mode=mode)
    assert result.needed_bytes <= 8 * GIB
    assert result.max_model_len == 8192
    assert result.engine_cpus == 2
    assert result.ray_num_cpus == 3, "the actor takes one CPU more than the bundle"


@pytest.mark.parametrize(
    ("cores", "memory", "mode"),
    [
        (cores, memory * GIB, mode)
        for cores in (1, 2, 4, 64, 192)
        for memory in (6, 16, 768)
        for mode in ("ray_serve", "vllm")
    ],
)
def test_whatever_is_sized_fits(cores: int, memory: int, mode: str) -> None:
    result = size(Host(cores, memory), SMOL, mode=mode)
    assert result.needed_bytes <= memory
    assert result.engine_cpus + result.reserved_cpus == cores
    assert result.ray_num_cpus > result.engine_cpus
    assert 1 <= result.max_num_seqs <= 128
    assert result.kv_cache_bytes >= SMOL.kv_bytes_per_token * result.max_model_len
    assert result.kv_cache_bytes % (128 * SMOL.kv_bytes_per_token) == 0


def test_a_model_that_does_not_fit_is_refused_with_the_whole_sum() -> None:
    with pytest.raises(ModelDoesNotFitError) as refusal:
        size(Host(cores=4, memory_bytes=8 * GIB), LLAMA_8B)
    message = str(refusal.value)
    assert "Llama-3.1-8B does not fit: it needs" in message
    assert "16.00 GiB weights" in message
    assert "KV cache (131072 tokens)" in message
    assert "overhead of ray_serve, and the host has 8.00 GiB" in message
    assert "serving_max_model_len" not in message, "no length makes 16 GiB of weights fit in 8"


def test_the_refusal_offers_a_length_that_does_fit() -> None:
    host = Host(cores=16, memory_bytes=32 * GIB)
    with pytest.raises(ModelDoesNotFitError) as refusal:
        size(host, LLAMA_8B)
    offered = int(str(refusal.value).split("serving_max_model_len to at most ")[1].split(",")[0])
    assert size(host, LLAMA_8B, max_model_len=offered).max_model_len == offered


def test_longer_than_trained_for_is_refused() -> None:
    with pytest.raises(SizingError, match="8192 positions"):
        size(Host(4, 32 * GIB), SMOL, max_model_len=16384)


def test_a_kv_cache_too_small_for_one_request_is_refused() -> None:
    with pytest.raises(SizingError, match="cannot hold one request of 8192 tokens"):
        size(Host(4, 32 * GIB), SMOL, kv_cache_bytes=10 * MIB)


def test_own_figures_are_kept() -> None:
    result = size(Host(4, 32 * GIB), SMOL, max_model_len=2048, max_num_seqs=7, kv_cache_bytes=GIB)
    assert (result.max_model_len, result.max_num_seqs, result.kv_cache_bytes) == (2048, 7, GIB)


def test_object_store_never_exceeds_shared_memory() -> None:
    assert sizing.object_store_bytes(64 * GIB, shm_bytes=GIB) <= GIB
    assert sizing.object_store_bytes(2 * GIB) >= 75 * MIB, "Ray refuses less"


def test_timeouts_grow_with_the_weights_and_shrink_without_compile() -> None:
    small, large = sizing.start_timeout_s(GIB, 8), sizing.start_timeout_s(100 * GIB, 8)
    assert large - small == pytest.approx(99 * GIB / (50 * MIB), abs=1)
    assert sizing.start_timeout_s(GIB, 8, eager=True) < small
    assert size(Host(2, 8 * GIB), SMOL, drain_s=300).stop_timeout_s > 300


@pytest.mark.parametrize(("dtype", "expected"), [("torch.bfloat16", 2), ("float32", 4)])
def test_dtype_bytes(dtype: str, expected: int) -> None:
    assert sizing.dtype_bytes(dtype) == expected


def test_unknown_dtype_and_mode_are_refused() -> None:
    with pytest.raises(SizingError, match="unknown dtype 'int3'"):
        sizing.dtype_bytes("int3")
    with pytest.raises(SizingError, match="unknown serving mode 'k8s'"):
        sizing.overhead_bytes("k8s", GIB)


@pytest.mark.parametrize("mode", ["ray_serve", "vllm"])
def test_engines_share_the_host(mode: str) -> None:
    host = Host(cores=192, memory_bytes=384 * GIB)
    one, two = (size(host, LLAMA_8B, mode=mode, max_model_len=8192, engines=count) for count in (1, 2))
    assert two.needed_bytes <= host.memory_bytes
    assert two.needed_bytes - one.needed_bytes == (
        LLAMA_8B.weight_bytes
        + sizing.WORKER_OVERHEAD
        + sizing.ENGINE_CORE_OVERHEAD
        + 2 * two.kv_cache_bytes
        - one.kv_cache_bytes
    )
    assert two.start_timeout_s > one.start_timeout_s, "twice the weights come from the same disk"


def test_two_engines_that_do_not_fit_are_refused_with_fewer_as_the_way_out() -> None:
    with pytest.raises(ModelDoesNotFitError) as refusal:
        size(Host(cores=64, memory_bytes=32 * GIB), LLAMA_8B, mode="vllm", max_model_len=2048, engines=2)
    message = str(refusal.value)
    assert "2 engines x 16.00 GiB weights + 2 engines x 0.25 GiB KV cache" in message
    assert "set cpu_tuning_engines to less than 2" in message
