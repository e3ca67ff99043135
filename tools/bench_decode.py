"""Measures how much of the memory's bandwidth decoding one request takes, by the size of the model.

    bench_decode.py

Each token reads all weights once, so memory bounds how many a second there can be; what is left of that is
the engine's own time for each token, and the smaller the model, the more of it. On a node as that of `make
bench-cpu`, with weights of the shapes of real models and random values, for the values do not change the
time. Writes docs/bench-decode.json and the page docs/bench-decode.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from bench_cpu import CONFIG, INPUT_TOKENS, OUTPUT_TOKENS, READY_SECONDS, Bench
from bench_node import ALONE, PYTHON, SCRATCH, WEIGHTS, Node, commit, machine, parsed, prepared
from bench_results import GOAL_BANDWIDTH, verdict
from ingot.table import Strict
from steps import ROOT, ToolError, fail

DATA = ROOT / "docs/bench-decode.json"
PAGE = ROOT / "docs/bench-decode.md"
MADE = f"{SCRATCH}-model"

SHAPES = {
    # hidden_size, layers, heads, heads of keys and values, intermediate_size: of each model's config.json.
    "SmolLM2-135M": (576, 30, 9, 3, 1536),
    "SmolLM2-360M": (960, 32, 15, 5, 2560),
    "Llama-3.2-1B": (2048, 16, 32, 8, 8192),
    "SmolLM2-1.7B": (2048, 24, 32, 32, 8192),
}
"""All of them share the table of words with the last layer, which so is read for each token as well. The
vocabulary is SmolLM2's (49,152), since its tokenizer is the one at hand."""

MAKE = """
import json, shutil, sys
from pathlib import Path
import torch
from transformers import AutoConfig, AutoModelForCausalLM
source, made, shape = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
config = AutoConfig.from_pretrained(source)
config.update(shape)
torch.manual_seed(0)
torch.set_default_dtype(torch.bfloat16)
AutoModelForCausalLM.from_config(config).save_pretrained(made)
for path in source.glob("*token*"):
    shutil.copy(path, made)
"""
"""Weights of a shape, and the tokenizer that is there."""


class Decoded(Strict):
    """One model, asked for one thing at a time: milliseconds a token, and bytes a second of a triad then."""

    shape: str
    weight_bytes: int
    itl_ms: list[float]
    triad_bytes_s: list[float]

    @property
    def time(self) -> float:
        """Milliseconds a token."""
        return statistics.median(self.itl_ms)

    @property
    def reading(self) -> float:
        """Milliseconds that reading all weights takes at the triad's speed."""
        return 1000 * self.weight_bytes / self.bandwidth

    @property
    def bandwidth(self) -> float:
        """Bytes a second of the triad."""
        return statistics.median(self.triad_bytes_s)

    @property
    def share(self) -> float:
        """Of the tokens a second that the bandwidth allows."""
        return self.reading / self.time


class Results(Strict):
    """What was measured, and on what."""

    date: str
    commit: str
    machine: str
    vllm: str
    input_tokens: int
    output_tokens: int
    models: list[Decoded]


def config_of(shape: str) -> dict[str, int]:
    """What of SmolLM2's config.json is another for a shape."""
    hidden, layers, heads, kv_heads, intermediate = SHAPES[shape]
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": hidden // heads,
        "intermediate_size": intermediate,
    }


def serve(node: Node, shape: str) -> tuple[str, int]:
    """Have the node's engine serve weights of a shape: its address, and how many bytes they are."""
    node.root(f"systemctl stop vllm; rm -rf {MADE}; install -d -o ingot -g ingot {MADE}")
    node.root(f"cat > {MADE}.py", stdin=MAKE)
    node.root(f"{PYTHON} {MADE}.py {WEIGHTS} {MADE} '{json.dumps(config_of(shape))}' && chmod -R a+rX {MADE}")
    node.root(f"sed -i 's|^model: .*|model: {MADE}|' {CONFIG} && systemctl reset-failed vllm")
    node.root("systemctl start vllm")
    address = node.root("hostname -I").split()[0]
    node.root(f"ingot wait vllm --timeout {READY_SECONDS} --url http://{address}:8000/health")
    return address, int(node.root(f"cat {MADE}/*.safetensors | wc -c"))


def measure(node: Node, rounds: int) -> Iterator[list[Decoded]]:
    """Every shape ``rounds`` times; gives what there is after each shape."""
    bench = Bench(node)
    models: list[Decoded] = []
    for shape in SHAPES:
        address, size = serve(node, shape)
        bench.load(address, 1, seed=1)  # compiles what the first request compiles
        times = [bench.load(address, 1, seed=2 + number)["median_itl_ms"] for number in range(rounds)]
        node.root("systemctl stop vllm")
        triads = [bench.triad() for _ in range(rounds)]
        models.append(
            Decoded(
                shape=shape,
                weight_bytes=size,
                itl_ms=[round(time, 3) for time in times],
                triad_bytes_s=[round(triad) for triad in triads],
            )
        )
        print(f"{shape}: {models[-1].share:.2f} of what memory allows", flush=True)
        yield models


def row(model: Decoded) -> str:
    """Of the page's table."""
    figures = [
        f"{model.weight_bytes / 1e6:.0f}",
        f"{model.bandwidth / 1e9:.1f}",
        f"{1000 / model.time:.1f}",
        f"{model.time:.1f}",
        f"{model.time - model.reading:.1f}",
        f"{model.share:.2f} ({verdict(model.share, GOAL_BANDWIDTH)})",
    ]
    return f"| {model.shape} | {' | '.join(figures)} |"


def page(results: Results) -> str:
    """docs/bench-decode.md."""
    return "\n".join(
        [
            "# One request at a time, on CPUs",
            "",
            "Written by `make bench-decode`; do not edit. Native x86-64 on the local EC2: no figure is of EC2"
            " or of Graviton.",
            "",
            f"- {results.date}, commit `{results.commit}`, {results.machine}",
            f"- {results.vllm}, bfloat16, as `site.yml` sets it up; {results.input_tokens} tokens in,"
            f" {results.output_tokens} out, one request at a time; the client runs on the same cores",
            "- weights have the shapes of these models and random values, with a vocabulary of 49,152",
            "- memory: STREAM's triad on the engine's threads, right after it was asked. Medians",
            "",
            "Each token reads all weights once, so that bandwidth over their size is the most tokens a second"
            " that there can be. What is left of it is the engine's own time for each token, which does not"
            " grow with the weights: a small model pays it in full.",
            "",
            "| shape of | weights, MB | triad, GB/s | tokens/s | ms a token | of these not reading"
            " | share of what memory allows |",
            "|---|---|---|---|---|---|---|",
            *map(row, results.models),
            "",
        ]
    )


def write(node: Node, models: Sequence[Decoded]) -> None:
    """Data and page."""
    results = Results(
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        commit=commit(),
        machine=machine(),
        vllm=node.engine(),
        input_tokens=INPUT_TOKENS,
        output_tokens=OUTPUT_TOKENS,
        models=list(models),
    )
    DATA.write_text(results.model_dump_json(indent=1) + "\n")
    PAGE.write_text(page(results))


def main() -> int:
    """Measure, and write after each shape."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options = parsed(parser)
    try:
        with prepared("x86", ALONE) as node:
            for models in measure(node, options.rounds):
                write(node, models)
    except ToolError as problem:
        return fail(problem)
    except KeyboardInterrupt:
        return 130
    print(f"written: {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
