"""What fits on a host: engine threads, Ray resources, KV cache, limits and timeouts.

Pure functions of the host's facts and the model's shape, so that the same arithmetic refuses a model before
anything is launched (from the instance type's figures) and configures a node (from its facts).
All sizes are bytes unless the name says otherwise; times are seconds.

The overheads were measured on the local EC2 with vLLM 0.32.0, Ray 2.60.0 and SmolLM2-135M on x86: resident
memory of each process of one replica. They are mostly imported code, so they hardly grow with the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

MIB = 1024**2
GIB = 1024**3

# Resident memory by process; of the engine's worker what is left without weights and KV cache.
WORKER_OVERHEAD = int(1.8 * GIB)
ENGINE_CORE_OVERHEAD = int(0.6 * GIB)
REPLICA_OVERHEAD = int(0.8 * GIB)  # Ray Serve replica actor, or vLLM's own API server
INGRESS_OVERHEAD = int(0.65 * GIB)  # Ray Serve LLM's OpenAI ingress, one a node
RAY_NODE_OVERHEAD = int(0.5 * GIB)  # raylet, agents, Serve proxy
SYSTEM_RESERVE = int(0.5 * GIB)  # systemd, sshd, journal, page cache that must not be starved

# The part of memory left after weights and overhead that the KV cache may take: activations, fragmentation
# and the page cache share the rest.
KV_SHARE = 0.7
BLOCK_TOKENS = 128  # vLLM's CPU backend allocates the KV cache in blocks of this many tokens

# vLLM's own ceiling for its CPU platform (vllm/platforms/cpu.py).
MAX_NUM_SEQS = 128
#: Hosts of so few cores leave none to the scheduler: on two, an engine on both made 1.3 to 1.5 times the
#: tokens of one that left a core free, from 16 requests at a time, and as many at one (docs/bench-cpu.md).
#: More cores were not measured.
CORES_WITHOUT_RESERVE = 2
# Requests are rarely as long as the model allows; this many of them may share one full-length budget.
SEQUENCES_PER_FULL_LENGTH = 4

OBJECT_STORE_MINIMUM = 80 * MIB  # Ray refuses less than 75 MiB
OBJECT_STORE_SHARE = 0.05  # Serve LLM passes messages, not tensors
OBJECT_STORE_MAXIMUM = 2 * GIB

# Start: three processes import torch and vLLM one after another (8 s each on an idle core, several times that
# on a busy one); weights come from EBS: gp3's baseline is 125 MiB/s, and lazily loaded blocks are slower.
START_BASE = 120
START_READ_BYTES_PER_SECOND = 50 * MIB
START_COMPILE = 240  # torch.compile with a cold cache on two cores
STOP_MARGIN = 30  # from the end of the drain to the last process gone

DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "int8": 1}


class SizingError(ValueError):
    """The input makes no sense, or what is asked does not fit. The message says what to do."""


class ModelDoesNotFitError(SizingError):
    """Weights, KV cache and overhead exceed the host's memory."""


@dataclass(frozen=True)
class Host:
    """One host, in what matters here."""

    cores: int
    memory_bytes: int
    shm_bytes: int | None = None  # size of /dev/shm, where known


@dataclass(frozen=True)
class Model:
    """The shape of a decoder-only transformer."""

    model_id: str
    weight_bytes: int
    layers: int
    kv_heads: int
    head_dim: int
    max_positions: int
    dtype: str = "bfloat16"

    @property
    def kv_bytes_per_token(self) -> int:
        """Key and value of one token in every layer."""
        return 2 * self.layers * self.kv_heads * self.head_dim * dtype_bytes(self.dtype)


@dataclass(frozen=True)
class Sizing:
    """What the roles write into units and configuration."""

    engine_cpus: int  # what one replica's bundle asks of Ray
    reserved_cpus: int  # left out of the engine's OpenMP pool, for the HTTP processes
    ray_num_cpus: int  # logical; may exceed the cores
    object_store_bytes: int
    kv_cache_bytes: int
    max_model_len: int
    max_num_seqs: int
    needed_bytes: int  # of the whole node
    engine_bytes: int  # of that, what an engine that starts adds to a running system
    start_timeout_s: int
    stop_timeout_s: int


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element of ``dtype``, by PyTorch's name (with or without ``torch.``)."""
    name = dtype.removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise SizingError(f"unknown dtype {dtype!r}: expected one of {', '.join(sorted(DTYPE_BYTES))}")
    return DTYPE_BYTES[name]


def engine_cpus(cores: int) -> tuple[int, int]:
    """Split a host's cores into those of the engine and those kept for HTTP, tokenising and Ray.

    vLLM wants one core for its scheduler, which spins while requests run (``utils/ompmultiprocessing.py``),
    and gives that up where it would be left without threads; so do we, and on up to ``CORES_WITHOUT_RESERVE``
    cores. On x86 it then takes one thread of each physical core by itself. Which cores these are,
    ``ingot.topology`` says; here they are only counted.

    Returns:
        (cores of the engine, cores reserved).
    """
    if cores < 1:
        raise SizingError(f"a host has at least one core, not {cores}")
    reserved = 0 if cores <= CORES_WITHOUT_RESERVE else 1 if cores <= 32 else 2
    return cores - reserved, reserved


def ray_num_cpus(cores: int) -> int:
    """Logical CPUs that a node announces to Ray.

    A replica's first bundle holds the engine's CPUs and one more for the replica actor itself
    (``_merge_replica_actor_and_child_actor_bundles`` in ray.llm), so a node whose engine uses every core
    announces one CPU more than it has. Ray never binds them to real ones.
    """
    engine, _ = engine_cpus(cores)
    return max(cores, engine + 1)


def object_store_bytes(memory_bytes: int, shm_bytes: int | None = None) -> int:
    """Ray's object store: a small share of memory, never more than /dev/shm holds (else it goes to disk)."""
    wanted = min(OBJECT_STORE_MAXIMUM, int(memory_bytes * OBJECT_STORE_SHARE))
    if shm_bytes is not None:
        wanted = min(wanted, int(shm_bytes * 0.9))
    return max(OBJECT_STORE_MINIMUM, wanted)


def standing_bytes(mode: str, memory_bytes: int, shm_bytes: int | None = None) -> int:
    """Memory that a node uses before an engine starts."""
    if mode == "vllm":
        return SYSTEM_RESERVE
    if mode == "ray_serve":
        return SYSTEM_RESERVE + RAY_NODE_OVERHEAD + object_store_bytes(memory_bytes, shm_bytes)
    raise SizingError(f"unknown serving mode {mode!r}: expected ray_serve or vllm")


def overhead_bytes(mode: str, memory_bytes: int, shm_bytes: int | None = None, engines: int = 1) -> int:
    """Memory of a serving node besides weights and KV cache."""
    processes = engines * (WORKER_OVERHEAD + ENGINE_CORE_OVERHEAD) + REPLICA_OVERHEAD
    if mode == "ray_serve":
        processes += INGRESS_OVERHEAD
    return standing_bytes(mode, memory_bytes, shm_bytes) + processes


def start_timeout_s(weight_bytes: int, cores: int, *, eager: bool = False) -> int:
    """How long a replica may take from exec to its first answer."""
    compile_s = 0 if eager else START_COMPILE
    slow = max(1.0, 4 / cores)
    return math.ceil((START_BASE + compile_s) * slow + weight_bytes / START_READ_BYTES_PER_SECOND)


def size(
    host: Host,
    model: Model,
    *,
    mode: str = "ray_serve",
    eager: bool = False,
    drain_s: int = 120,
    max_model_len: int | None = None,
    max_num_seqs: int | None = None,
    kv_cache_bytes: int | None = None,
    engines: int = 1,
) -> Sizing:
    """Size one host: for one engine, or for one on each NUMA node, with weights and a KV cache each.

    Args:
        host: the smallest host of the cluster, since one deployment serves all.
        model: what is served.
        mode: ``ray_serve`` or ``vllm``.
        eager: no torch.compile, so a shorter start.
        drain_s: time that running requests get when a node stops.
        max_model_len, max_num_seqs, kv_cache_bytes: the user's own figures, checked but not changed.
        engines: how many share the host (data parallel). Length, requests and KV cache are each one's.

    Raises:
        ModelDoesNotFitError: with every figure of the sum, and what to do.
        SizingError: the user's figures contradict the model.
    """
    if max_model_len is not None and max_model_len > model.max_positions:
        raise SizingError(
            f"max_model_len {max_model_len} exceeds the {model.max_positions} positions that "
            f"{model.model_id} was trained for"
        )
    length = max_model_len or model.max_positions
    overhead = overhead_bytes(mode, host.memory_bytes, host.shm_bytes, engines)
    per_token = model.kv_bytes_per_token
    left = (host.memory_bytes - overhead) // engines - model.weight_bytes

    kv_minimum = _kv_for(length, per_token)
    if kv_cache_bytes is not None:
        if kv_cache_bytes < kv_minimum:
            raise SizingError(
                f"kv_cache_memory_bytes {_gib(kv_cache_bytes)} cannot hold one request of {length} tokens "
                f"({_gib(kv_minimum)}): raise it, or lower max_model_len"
            )
        kv = kv_cache_bytes
    else:
        kv_wanted = _kv_for(length, per_token) * math.ceil(MAX_NUM_SEQS / SEQUENCES_PER_FULL_LENGTH)
        kv = max(kv_minimum, min(kv_wanted, int(left * KV_SHARE)))
        kv -= kv % (BLOCK_TOKENS * per_token)
    needed = engines * (model.weight_bytes + kv) + overhead
    if needed > host.memory_bytes:
        raise ModelDoesNotFitError(_does_not_fit(host, model, kv, overhead, length, mode, engines))

    concurrent = kv * SEQUENCES_PER_FULL_LENGTH // (per_token * length)
    engine, reserved = engine_cpus(host.cores)
    return Sizing(
        engine_cpus=engine,
        reserved_cpus=reserved,
        ray_num_cpus=ray_num_cpus(host.cores),
        object_store_bytes=object_store_bytes(host.memory_bytes, host.shm_bytes),
        kv_cache_bytes=kv,
        max_model_len=length,
        max_num_seqs=max_num_seqs or max(1, min(MAX_NUM_SEQS, concurrent)),
        needed_bytes=needed,
        engine_bytes=needed - standing_bytes(mode, host.memory_bytes, host.shm_bytes),
        start_timeout_s=start_timeout_s(
            engines * model.weight_bytes, max(1, host.cores // engines), eager=eager
        ),
        stop_timeout_s=drain_s + STOP_MARGIN,
    )


def as_dict(sizing: Sizing) -> dict[str, int]:
    """Plain values, for Ansible."""
    return asdict(sizing)


def _kv_for(tokens: int, per_token: int) -> int:
    return math.ceil(tokens / BLOCK_TOKENS) * BLOCK_TOKENS * per_token


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"


def _does_not_fit(
    host: Host, model: Model, kv: int, overhead: int, length: int, mode: str, engines: int
) -> str:
    needed = engines * (model.weight_bytes + kv) + overhead
    times = f"{engines} engines x " if engines > 1 else ""
    advice = [
        f"take an instance type with at least {math.ceil(needed / GIB)} GiB of memory",
        "a smaller model",
    ]
    if engines > 1:
        advice.insert(0, f"set cpu_tuning_engines to less than {engines}")
    free = (host.memory_bytes - overhead) // engines - model.weight_bytes
    shorter = free // (model.kv_bytes_per_token * BLOCK_TOKENS) * BLOCK_TOKENS
    if 1024 <= shorter < length:
        advice.insert(0, f"set serving_max_model_len to at most {shorter}")
    return (
        f"{model.model_id} does not fit: it needs {_gib(needed)} = "
        f"{times}{_gib(model.weight_bytes)} weights + {times}{_gib(kv)} KV cache ({length} tokens) + "
        f"{_gib(overhead)} overhead of {mode}, and the host has {_gib(host.memory_bytes)}. "
        f"What helps: {', or '.join(advice)}."
    )
