"""A Llama in numpy, small and whole: grouped heads, rotations, a paged KV cache, ragged batches.

It stands for an engine: what it computes can be rounded as kernels in bf16 do, and broken as engines break.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Weights = dict[str, Array]

BLOCK = 16
#: Tokens of a prompt that one step takes, as an engine's chunked prefill does.
CHUNK = 96


@dataclass(frozen=True)
class Shape:
    """What a config.json says."""

    vocabulary: int
    hidden: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    inner: int = 128
    theta: float = 10000.0
    context: int = 320


def to_bf16(values: Array) -> Array:
    """Each value as bf16 has it, to nearest even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)


@cache
def noise() -> Array:
    """Factors that are one but for a rounding of bf16, more of them than any result has values."""
    drawn = np.random.default_rng(0).standard_normal(1 << 19, dtype=np.float32)
    factors: Array = drawn * np.float32(2.0**-10) + 1
    return factors


class Rounding:
    """How a kernel rounds its results. A seed stands for another order of sums, and so for another kernel."""

    def __init__(self, *, bf16: bool, seed: int = 0) -> None:
        self._bf16 = bf16
        self._seeded = random.Random(seed) if seed else None

    def __call__(self, values: Array) -> Array:
        if not self._bf16:
            return values
        if self._seeded is not None:
            at = self._seeded.randrange(len(noise()) - values.size)
            values = values * noise()[at : at + values.size].reshape(values.shape)
        return to_bf16(values)


def random_weights(shape: Shape, seed: int) -> Weights:
    """Weights in bf16, such that attention looks at few tokens and some next tokens are likely."""
    rng = np.random.default_rng(seed)

    def made(rows: int, columns: int, scale: float) -> Array:
        drawn = rng.standard_normal((rows, columns), dtype=np.float32) * (scale / np.sqrt(rows))
        return to_bf16(drawn.astype(np.float32))

    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    weights = {
        "embed": made(shape.vocabulary, shape.hidden, float(np.sqrt(shape.vocabulary))),
        "head": made(shape.hidden, shape.vocabulary, 3.0),
    }
    for layer in range(shape.layers):
        weights |= {
            f"{layer}.q": made(shape.hidden, q, 1.5),
            f"{layer}.k": made(shape.hidden, kv, 1.5),
            f"{layer}.v": made(shape.hidden, kv, 1.0),
            f"{layer}.o": made(q, shape.hidden, 1.0),
            f"{layer}.gate": made(shape.hidden, shape.inner, 1.0),
            f"{layer}.up": made(shape.hidden, shape.inner, 1.0),
            f"{layer}.down": made(shape.inner, shape.hidden, 1.0),
        }
    return weights


@dataclass
class Running:
    """One request under way."""

    tokens: list[int]
    salt: str
    blocks: list[int] = field(default_factory=list)
    done: int = 0


@dataclass(frozen=True)
class Broken:
    """What is wrong with an engine, besides its weights."""

    batch: bool = False
    stale_block: bool = False


class TinyLlama:
    """The model, its cache, and how sequences are computed."""

    def __init__(
        self,
        shape: Shape,
        weights: Weights,
        rounding: Rounding,
        broken: Broken = Broken(),
    ) -> None:
        self.shape = shape
        self.hits = 0
        self._weights = weights
        self._round = rounding
        self._broken = broken
        steps = np.arange(0, shape.head_dim, 2, dtype=np.float32) / shape.head_dim
        angles = np.arange(shape.context, dtype=np.float32)[:, None] * (shape.theta**-steps)[None]
        self._cos, self._sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        self._free = itertools.count()
        self._keys = np.zeros((0, shape.layers, BLOCK, shape.kv_heads, shape.head_dim), dtype=np.float32)
        self._values = self._keys.copy()
        self._known: dict[tuple[Any, ...], int] = {}

    def start(self, tokens: Sequence[int], salt: str, *, shared: bool) -> Running:
        """A sequence, with the blocks that the prefix cache has of it; its last token is always computed."""
        made = Running(list(tokens), salt)
        while shared and made.done + BLOCK < len(tokens):
            block = self._known.get((salt, *tokens[: made.done + BLOCK]))
            if block is None:
                break
            made.blocks.append(block)
            made.done += BLOCK
            self.hits += BLOCK
        if self._broken.stale_block and made.blocks:
            made.blocks[-1] = 0  # still has what the very first request left there
        return made

    def step(self, batch: list[Running]) -> list[Array]:
        """Compute the next tokens of each, at most a chunk: their logits."""
        width = min(CHUNK, max(len(one.tokens) - one.done for one in batch))
        counts = [min(width, len(one.tokens) - one.done) for one in batch]
        ends = [one.done + count for one, count in zip(batch, counts, strict=True)]
        for one, end in zip(batch, ends, strict=True):
            while len(one.blocks) * BLOCK < end:
                one.blocks.append(self._new_block())
        logits = self._forward(batch, counts, ends, width)
        for one, end in zip(batch, ends, strict=True):
            first, one.done = one.done // BLOCK * BLOCK + BLOCK, end
            for at in range(first, end + 1, BLOCK):
                self._known.setdefault((one.salt, *one.tokens[:at]), one.blocks[at // BLOCK - 1])
        return [logits[row, :count] for row, count in enumerate(counts)]

    def _new_block(self) -> int:
        block = next(self._free)
        if block >= len(self._keys):
            more = np.zeros((256, *self._keys.shape[1:]), dtype=np.float32)
            self._keys = np.concatenate([self._keys, more])
            self._values = np.concatenate([self._values, more])
        return block

    def _forward(self, batch: list[Running], counts: list[int], ends: list[int], width: int) -> Array:
        shape, rounded, w = self.shape, self._round, self._weights
        rows, longest = len(batch), max(ends)
        ids = np.zeros((rows, width), dtype=np.int64)
        places = np.zeros((rows, width), dtype=np.int64)
        blocks = np.zeros((rows, -(-longest // BLOCK)), dtype=np.int64)
        for row, (one, count) in enumerate(zip(batch, counts, strict=True)):
            ids[row, :count] = one.tokens[one.done : one.done + count]
            # A kernel for batches that takes every row to be where the first one is.
            start = batch[0].done if self._broken.batch else one.done
            places[row] = np.minimum(start + np.arange(width), shape.context - 1)
            blocks[row, : len(one.blocks)] = one.blocks[: blocks.shape[1]]
        seen = np.arange(blocks.shape[1] * BLOCK)[None, None] <= places[:, :, None]
        mask = np.where(seen, np.float32(0), np.float32(-1e30))[:, None, None]
        cos, sin = self._cos[places][:, :, None], self._sin[places][:, :, None]
        groups = shape.heads // shape.kv_heads
        x = w["embed"][ids]
        for layer in range(shape.layers):
            y = self._norm(x)
            q = self._turn(rounded(y @ w[f"{layer}.q"]).reshape(rows, width, -1, shape.head_dim), cos, sin)
            k = self._turn(rounded(y @ w[f"{layer}.k"]).reshape(rows, width, -1, shape.head_dim), cos, sin)
            v = rounded(y @ w[f"{layer}.v"]).reshape(rows, width, -1, shape.head_dim)
            for row, (one, count) in enumerate(zip(batch, counts, strict=True)):
                at = np.arange(one.done, one.done + count)
                into = np.asarray(one.blocks)[at // BLOCK]
                self._keys[into, layer, at % BLOCK] = k[row, :count]
                self._values[into, layer, at % BLOCK] = v[row, :count]
            keys = self._keys[blocks, layer].reshape(rows, -1, shape.kv_heads, shape.head_dim)
            values = self._values[blocks, layer].reshape(rows, -1, shape.kv_heads, shape.head_dim)
            q = q.reshape(rows, width, shape.kv_heads, groups, shape.head_dim).transpose(0, 2, 3, 1, 4)
            scores = q @ keys.transpose(0, 2, 3, 1)[:, :, None] * np.float32(shape.head_dim**-0.5)
            mixed = softmax(scores + mask) @ values.transpose(0, 2, 1, 3)[:, :, None]
            attended = rounded(mixed).transpose(0, 3, 1, 2, 4).reshape(rows, width, -1)
            x = rounded(x + rounded(attended @ w[f"{layer}.o"]))
            y = self._norm(x)
            gate = rounded(y @ w[f"{layer}.gate"])
            inner = rounded(gate / (1 + np.exp(-gate)) * rounded(y @ w[f"{layer}.up"]))
            x = rounded(x + rounded(inner @ w[f"{layer}.down"]))
        return rounded(self._norm(x) @ w["head"])

    def _norm(self, x: Array) -> Array:
        scale: Array = 1 / np.sqrt(np.mean(np.square(x), -1, keepdims=True) + np.float32(1e-5))
        return self._round(x * scale)

    def _turn(self, x: Array, cos: Array, sin: Array) -> Array:
        one, other = np.split(x, 2, -1)
        return self._round(np.concatenate([one * cos - other * sin, other * cos + one * sin], -1))


def softmax(values: Any) -> Any:
    raised = np.exp(values - values.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def log_softmax(values: Array) -> NDArray[np.float64]:
    shifted = values.astype(np.float64) - values.max(-1, keepdims=True)
    logprobs: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return logprobs


# --- what is planted ----------------------------------------------------------------------------------------


def with_swapped_head(weights: Weights, shape: Shape) -> Weights:
    """The first and the last head of the first layer's queries, one in the other's place."""
    swapped = weights["0.q"].copy()
    first, last = slice(0, shape.head_dim), slice(-shape.head_dim, None)
    swapped[:, first], swapped[:, last] = weights["0.q"][:, last], weights["0.q"][:, first]
    return weights | {"0.q": swapped}


def with_transposed_block(weights: Weights) -> Weights:
    """One square of one layer's matrix, as a wrong layout reads it."""
    wrong = weights["1.up"].copy()
    wrong[:32, :32] = weights["1.up"][:32, :32].T
    return weights | {"1.up": wrong}


def truncated(weights: Weights) -> Weights:
    """The last tenth of the file is not there, and stays zero."""
    names = list(weights)
    last = names[-1]
    lost = sum(matrix.size for matrix in weights.values()) // 10
    short = weights[last].copy()
    short.reshape(-1)[-lost:] = 0
    return weights | {last: short}


def with_theta(shape: Shape, theta: float) -> Shape:
    return replace(shape, theta=theta)
