"""The lengths that a model is compiled for on Neuron chips, and what compiling takes.

A program is made for each length of a prompt (context) and each length of a request while it generates
(generation); what is shorter is padded to the next. NxD Inference wants the last of both to be the longest
request, and vLLM refuses what is longer than --max-model-len with HTTP 400 (vllm 0.13.0,
vllm/entrypoints/openai/serving_engine.py), so the three are one number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ingot.sizing import GIB, SizingError

# The shortest of those that are chosen here, as NxD Inference's own begin with it.
SHORTEST = 128

# What compiling takes of the host. Nobody has measured it here, so these are rules of thumb, with the reports
# that bound them from below:
# - Llama-3.1-8B (15 GiB of bfloat16 weights) was killed for memory on a host of 32 GiB, with programs of 32
#   and 64 tokens: aws-neuron-sdk#1222. Weights in float32, which is twice that, and once more as the shards
#   that are written, come to 45 GiB.
WEIGHTS = 3
# - One compiler of a long program; that neuronx-cc is killed on small hosts, its own error F137 says.
COMPILER_BYTES = 2 * GIB
BASE_BYTES = 1 * GIB  # Python, torch, the tracer
# - "minutes" for Llama-2-7B, and three hours where the compiler had a fault: transformers-neuronx#48.
PROGRAM_SECONDS = 300
# Programs beside the sharded weights.
PROGRAM_BYTES = GIB // 4


@dataclass(frozen=True)
class Buckets:
    """Lengths in tokens, ascending."""

    context: tuple[int, ...]
    generation: tuple[int, ...]

    @property
    def programs(self) -> int:
        return len(self.context) + len(self.generation)

    @property
    def longest(self) -> int:
        """The longest request."""
        return self.generation[-1]


@dataclass(frozen=True)
class Estimate:
    """What compiling takes, roughly."""

    memory_bytes: int
    disk_bytes: int
    seconds: int
    compilers: int
    why: str


def choose(context: Sequence[int], generation: Sequence[int], longest: int) -> Buckets:
    """The buckets that are given, or those of NxD Inference: powers of two up to the longest request.

    Raises:
        SizingError: lengths that are no lengths, not ascending, or whose last is not the longest request.
    """
    own = tuple(1 << power for power in range(SHORTEST.bit_length() - 1, longest.bit_length()))
    default = (*(length for length in own if length < longest), longest)
    return Buckets(
        _checked("neuron_context_buckets", context, longest) or default,
        _checked("neuron_generation_buckets", generation, longest) or default,
    )


def _checked(name: str, lengths: Sequence[int], longest: int) -> tuple[int, ...]:
    given = tuple(lengths)
    if not given:
        return ()
    said = ", ".join(map(str, given))
    if any(not isinstance(length, int) or isinstance(length, bool) or length < 1 for length in given):
        raise SizingError(f"{name} is {said}: each must be a number of tokens, 1 or more")
    if list(given) != sorted(set(given)):
        raise SizingError(f"{name} is {said}: write each length once, the shortest first")
    if given[-1] < longest:
        raise SizingError(
            f"{name} ends with {given[-1]}, and requests may have {longest} tokens (serving_max_model_len): a"
            f" longer one would have no program. Add {longest}, or set serving_max_model_len to {given[-1]}"
        )
    if given[-1] > longest:
        raise SizingError(
            f"{name} ends with {given[-1]}, and requests may have {longest} tokens at most"
            f" (serving_max_model_len, or what the model was trained for): no request would use that program."
            f" Take out what is longer than {longest}"
        )
    return given


def estimate(weight_bytes: int, buckets: Buckets, cpus: int) -> Estimate:
    """What compiling takes of a host with so many CPUs."""
    compilers = max(1, min(buckets.programs, cpus))
    memory = WEIGHTS * weight_bytes + compilers * COMPILER_BYTES + BASE_BYTES
    disk = weight_bytes + buckets.programs * PROGRAM_BYTES
    why = (
        f"{WEIGHTS} x {weight_bytes / GIB:.1f} GiB of weights + {compilers} compilers of"
        f" {COMPILER_BYTES / GIB:.0f} GiB + {BASE_BYTES / GIB:.0f} GiB, a rule of thumb"
    )
    rounds = math.ceil(buckets.programs / compilers)
    return Estimate(memory, disk, rounds * PROGRAM_SECONDS, compilers, why)
