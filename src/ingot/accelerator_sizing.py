"""What fits on GPUs and Neuron chips: tensor parallelism, KV cache and length against each device's memory.

``ingot.sizing`` is the same for CPUs. Formulas are the engines' own, with where they were read (vLLM 0.32.0,
the vllm-neuron plugin). The overheads are estimates: nobody has measured them on silicon.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ingot.accelerators import Gpu, Neuron
from ingot.models import ModelShape
from ingot.sizing import GIB, Model, ModelDoesNotFitError, SizingError, dtype_bytes

# Of a GPU's memory as EC2 states it, what CUDA counts: driver and ECC take the rest (estimate).
VISIBLE_SHARE = 0.98
# vLLM's default of --gpu-memory-utilization (vllm/config/cache.py).
UTILIZATION = 0.92
# CUDA context, NCCL's buffers, activations of the largest batch, CUDA graphs (estimate).
GPU_OVERHEAD = int(2.5 * GIB)
BLOCK_TOKENS = 16  # of the KV cache on CUDA

# The runtime, compiled programs and their scratch space, of each core (estimate).
NEURON_OVERHEAD = int(1.5 * GIB)
# The plugin's own batch where none is given (vllm_neuron/platform.py), and the batches that are compiled for.
NEURON_BATCHES = (32, 16, 8, 4, 2, 1)


@dataclass(frozen=True)
class Decoder(Model):
    """A model's shape, with what tensor parallelism divides."""

    attention_heads: int = 0

    def kv_bytes_per_token_of(self, tensor_parallel: int) -> int:
        """Key and value of one token on one of the devices.

        Each has kv_heads / tensor_parallel of the heads, and one where there are fewer heads than devices:
        then heads are there several times (``ModelConfig.get_num_kv_heads`` in vllm/config/model.py).
        """
        heads = max(1, math.ceil(self.kv_heads / tensor_parallel))
        return 2 * self.layers * heads * self.head_dim * dtype_bytes(self.dtype)


def decoder(model_id: str, shape: ModelShape, dtype: str) -> Decoder:
    """A model of the catalogue."""
    return Decoder(
        model_id=model_id,
        weight_bytes=shape.weight_bytes,
        layers=shape.layers,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_positions=shape.max_model_len,
        dtype=dtype,
        attention_heads=shape.attention_heads,
    )


@dataclass(frozen=True)
class DeviceSizing:
    """One engine on some of a host's devices. Sizes are bytes of one device (of Neuron: of one core)."""

    tensor_parallel: int
    engines: int  # that the host has devices for
    weight_bytes: int
    kv_cache_bytes: int
    overhead_bytes: int
    budget_bytes: int
    max_model_len: int
    kv_tokens: int  # that the cache holds at once
    max_num_seqs: int  # requests of that length at once

    @property
    def needed_bytes(self) -> int:
        return self.weight_bytes + self.kv_cache_bytes + self.overhead_bytes


def gpu_tensor_parallel(model: Decoder, count: int) -> list[int]:
    """How many of ``count`` GPUs an engine may spread over.

    The attention heads are divided without rest, and the KV heads too, or each is on as many devices
    (``QKVParallelLinear`` in vllm/model_executor/layers/linear.py).
    """
    return [
        degree
        for degree in range(1, count + 1)
        if model.attention_heads % degree == 0
        and (degree % model.kv_heads == 0 if degree >= model.kv_heads else model.kv_heads % degree == 0)
    ]


def neuron_tensor_parallel(model: Decoder, neuron: Neuron) -> list[int]:
    """How many cores an engine may spread over: degrees of the guide to NxD Inference that divide the heads.

    The plugin leaves out vLLM's own check of that (vllm_neuron/platform.py); whether heads that are not
    divided would be padded, nobody tried.
    """
    return [
        degree
        for degree in neuron.tensor_parallel
        if degree <= neuron.total_cores and model.attention_heads % degree == 0
    ]


def size_gpu(
    gpu: Gpu,
    model: Decoder,
    *,
    tensor_parallel: int | None = None,
    max_model_len: int | None = None,
    utilization: float = UTILIZATION,
) -> DeviceSizing:
    """Size one engine on a host's GPUs; the fewest that hold it, unless told how many.

    KV cache of one GPU = memory x utilization - weights / tensor_parallel - overhead, in blocks of 16 tokens
    (``determine_available_memory`` in vllm/v1/worker/gpu_worker.py). It must hold one request of the longest
    length, or vLLM does not start.

    Raises:
        ModelDoesNotFitError: with every figure of the sum, and what to do.
        SizingError: what is asked contradicts the model or the host.
    """
    length = _length(model, max_model_len)
    choices = _choices(
        gpu_tensor_parallel(model, gpu.count), tensor_parallel, model, f"{gpu.count} {gpu.name}"
    )
    budget = int(gpu.memory_bytes * VISIBLE_SHARE * utilization)
    tried = [_on_gpus(gpu, model, degree, length, budget) for degree in choices]
    fitting = next((one for one in tried if one.kv_tokens >= length), None)
    if fitting:
        return fitting
    best = max(tried, key=lambda one: (one.kv_tokens, one.tensor_parallel))
    memory = f"{_gib(gpu.memory_bytes)} x {VISIBLE_SHARE} x {utilization}"
    raise ModelDoesNotFitError(
        _does_not_fit(model, best, f"each of {best.tensor_parallel} {gpu.name}", memory, 1)
    )


def _on_gpus(gpu: Gpu, model: Decoder, degree: int, length: int, budget: int) -> DeviceSizing:
    weights = math.ceil(model.weight_bytes / degree)
    block = BLOCK_TOKENS * model.kv_bytes_per_token_of(degree)
    blocks = max(0, budget - weights - GPU_OVERHEAD) // block
    return DeviceSizing(
        tensor_parallel=degree,
        engines=gpu.count // degree,
        weight_bytes=weights,
        kv_cache_bytes=blocks * block,
        overhead_bytes=GPU_OVERHEAD,
        budget_bytes=budget,
        max_model_len=length,
        kv_tokens=blocks * BLOCK_TOKENS,
        max_num_seqs=blocks * BLOCK_TOKENS // length,
    )


def size_neuron(
    neuron: Neuron,
    model: Decoder,
    *,
    tensor_parallel: int | None = None,
    max_model_len: int | None = None,
    max_num_seqs: int | None = None,
) -> DeviceSizing:
    """Size one engine on a host's Neuron cores, of which each has its share of a chip's memory.

    The KV cache is whole from the start: max_num_seqs x max_model_len tokens, since the plugin makes blocks
    as long as the longest request (vllm_neuron/platform.py). The fewest cores that hold it, with the largest
    batch that they hold, unless told which.

    Raises:
        ModelDoesNotFitError: with every figure of the sum, and what to do.
        SizingError: what is asked contradicts the model or the host.
    """
    length = _length(model, max_model_len)
    cores = f"{neuron.total_cores} cores of {neuron.count} {neuron.name}"
    choices = _choices(neuron_tensor_parallel(model, neuron), tensor_parallel, model, cores)
    batches = (max_num_seqs,) if max_num_seqs else NEURON_BATCHES
    best = None
    for degree in choices:
        for batch in batches:
            best = _on_cores(neuron, model, degree, length, batch)
            if best.needed_bytes <= best.budget_bytes:
                return best
    assert best is not None  # there is a choice, and a batch
    memory = f"{_gib(neuron.memory_bytes)} a chip / {neuron.cores} cores"
    each = f"each of {best.tensor_parallel} cores of {neuron.name}"
    raise ModelDoesNotFitError(_does_not_fit(model, best, each, memory, best.max_num_seqs))


def _on_cores(neuron: Neuron, model: Decoder, degree: int, length: int, batch: int) -> DeviceSizing:
    return DeviceSizing(
        tensor_parallel=degree,
        engines=neuron.total_cores // degree,
        weight_bytes=math.ceil(model.weight_bytes / degree),
        kv_cache_bytes=batch * length * model.kv_bytes_per_token_of(degree),
        overhead_bytes=NEURON_OVERHEAD,
        budget_bytes=neuron.memory_bytes // neuron.cores,
        max_model_len=length,
        kv_tokens=batch * length,
        max_num_seqs=batch,
    )


def _length(model: Decoder, asked: int | None) -> int:
    if asked is not None and asked > model.max_positions:
        raise SizingError(
            f"max_model_len {asked} exceeds the {model.max_positions} positions that"
            f" {model.model_id} was trained for"
        )
    return asked or model.max_positions


def _choices(possible: Sequence[int], asked: int | None, model: Decoder, devices: str) -> Sequence[int]:
    """The degrees to try: the one that was asked for, if it is possible."""
    if asked is None:
        return possible
    if asked in possible:
        return [asked]
    raise SizingError(
        f"tensor-parallel-size {asked} does not go with {model.model_id} ({model.attention_heads} attention"
        f" heads, {model.kv_heads} KV heads) on {devices}: set it to {' or '.join(map(str, possible))}"
    )


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"


def _does_not_fit(model: Decoder, best: DeviceSizing, each: str, memory: str, requests: int) -> str:
    per_token = model.kv_bytes_per_token_of(best.tensor_parallel)
    kv = requests * best.max_model_len * per_token
    needed = best.weight_bytes + kv + best.overhead_bytes
    free = best.budget_bytes - best.weight_bytes - best.overhead_bytes
    shorter = max(0, free) // per_token // requests // BLOCK_TOKENS * BLOCK_TOKENS
    advice = ["take an instance type with more memory in each device, or more devices", "a smaller model"]
    if shorter >= 1024:
        advice.insert(0, f"set serving_max_model_len to at most {shorter}")
    if requests > 1:
        advice.insert(0, f"set serving_max_num_seqs to less than {requests}")
    times = f"{requests} x " if requests > 1 else ""
    return (
        f"{model.model_id} does not fit: {each} needs {_gib(needed)} ="
        f" {_gib(best.weight_bytes)} weights ({_gib(model.weight_bytes)} / {best.tensor_parallel})"
        f" + {_gib(kv)} KV cache ({times}{best.max_model_len} tokens of {per_token} bytes)"
        f" + {_gib(best.overhead_bytes)} overhead, and has {_gib(best.budget_bytes)} ({memory})."
        f" What helps: {', or '.join(advice)}."
    )
