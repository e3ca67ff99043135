"""Measures tuned against stock `vllm serve` on this machine, and what each setting is worth.

On a node of the local EC2, of an image that Packer baked with a compiler, in a region of its own, purged at
the end. Variants are what an inventory would say, set up by site.yml; `stock` is the same build, started by
hand with nothing but the model's path and the size of its KV cache. The load is `vllm bench serve`. Writes
docs/bench-cpu.json, the page docs/bench-cpu.md and its plots.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import yaml

from bench_node import (
    ALONE,
    MODEL,
    PYTHON,
    SCRATCH,
    WEIGHTS,
    Node,
    commit,
    machine,
    parsed,
    prepared,
    transient,
)
from bench_results import (
    STOCK,
    TUNED,
    Results,
    Run,
    Start,
    goals,
    of_compile_cache,
    page,
    plot,
)
from ingot.graphs import origin
from steps import ROOT, ToolError, fail, run, seconds
from venvs import uv

CONFIG = "/etc/ingot/vllm.yaml"
PORT = 8000
READY_SECONDS = 900
INPUT_TOKENS, OUTPUT_TOKENS = 128, 64
LOADS = {1: 8, 4: 24, 16: 64, 64: 128}
"""Requests at a time, and how many in all: seconds each, and every slot is used at least twice."""

BENCH_SERVE = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""`vllm bench serve`. The command itself asks for the version of a distribution `vllm`, and the CPU wheel of
PyPI has another name."""

DATA = ROOT / "docs/bench-cpu.json"
PAGE = ROOT / "docs/bench-cpu.md"
PLOTS = ROOT / "docs/bench-cpu"


@dataclass(frozen=True)
class Variant:
    """How an engine is set up: variables for site.yml, or none and started by hand."""

    description: str
    variables: dict[str, Any] = field(default_factory=dict)


VARIANTS = {
    TUNED: Variant("as `site.yml` sets it up"),
    STOCK: Variant("the same build with its model, the same size of KV cache, and nothing else"),
    "no allocator": Variant("allocator (`cpu_tuning_allocator: none`)", {"cpu_tuning_allocator": "none"}),
    "reserve": Variant(
        "every core a thread (`cpu_tuning_reserved_cores: 1`)", {"cpu_tuning_reserved_cores": 1}
    ),
    "nobind": Variant(
        "threads on chosen cores (`cpu_tuning_threads_bind: nobind`)", {"cpu_tuning_threads_bind": "nobind"}
    ),
    "eager": Variant("compilation (`serving_enforce_eager: true`)", {"serving_enforce_eager": True}),
}


class Bench:
    """The engines of one node, one at a time."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def start(self, name: str) -> str:
        """Start a variant's engine, and no other. Returns the address that it listens on."""
        if name != STOCK:
            self.node.root("systemctl stop bench-stock 2>/dev/null || true")
            self.node.playbook("site.yml", VARIANTS[name].variables)
        address = self.node.root("hostname -I").split()[0]
        if name == STOCK:
            self.node.root("systemctl stop vllm")
            settings = yaml.safe_load(self.node.root(f"cat {CONFIG}"))
            self.node.root(shlex.join(stock_command(address, settings["kv-cache-memory-bytes"])))
            health = f"http://{address}:{PORT}/health"
            self.node.root(f"ingot wait bench-stock --timeout {READY_SECONDS} --url {health}")
        return address

    def graphs(self, variant: str) -> str:
        """Where the compiled graphs of the engine that runs came from, by its log."""
        if variant == STOCK:
            return ""  # its unit is gone with its log, and its cache is the same vLLM's
        unit = "_SYSTEMD_INVOCATION_ID=$(systemctl show --property InvocationID --value vllm)"
        return origin(self.node.root(f"journalctl --output cat {unit}"))

    def load(self, address: str, concurrency: int, seed: int) -> dict[str, Any]:
        """Ask the engine that listens there; what `vllm bench serve` measured."""
        self.node.root(f"rm -rf {SCRATCH}; install -d -o ingot -g ingot {SCRATCH}")
        self.node.root(shlex.join(load_command(address, concurrency, seed)))
        measured: dict[str, Any] = json.loads(self.node.root(f"cat {SCRATCH}/result.json"))
        return measured

    def triad(self) -> float:
        """Bytes a second that as many threads move as the tuned engine has."""
        plan = json.loads(self.node.root("cat /etc/ingot/tuning.json"))
        threads = len(plan["engines"][0]["threads"])
        program = (ROOT / "tools/triad.py").read_text()
        return float(self.node.root(f"{PYTHON} - {threads}", stdin=program))


def stock_command(address: str, kv_cache: int) -> list[str]:
    """`vllm serve MODEL`, by the module, for the CPU wheel's own command does not start.

    With the bytes of KV cache that the tuned engine has: what vLLM takes by itself, 92 % of the memory, does
    not start where a machine has less of it than /sys says, as those of the local EC2 do.
    """
    server = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", WEIGHTS]
    return [
        *transient("bench-stock", "--collect"),
        *server,
        *("--served-model-name", MODEL, "--host", address, "--port", str(PORT)),
        *("--kv-cache-memory-bytes", str(kv_cache)),
    ]


def load_command(address: str, concurrency: int, seed: int) -> list[str]:
    """One run of `vllm bench serve`. Each has prompts of its own, or the prefix cache would answer them."""
    options = {
        "backend": "openai",
        "base-url": f"http://{address}:{PORT}",
        "model": MODEL,
        "tokenizer": WEIGHTS,
        "dataset-name": "random",
        "random-input-len": INPUT_TOKENS,
        "random-output-len": OUTPUT_TOKENS,
        "num-prompts": LOADS[concurrency],
        "max-concurrency": concurrency,
        "num-warmups": 2,
        "seed": seed,
        "ready-check-timeout-sec": READY_SECONDS,
        "result-dir": SCRATCH,
        "result-filename": "result.json",
    }
    flags = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    return [
        *transient("bench-load", "--wait", "--pipe", "--collect"),
        "--property=LoadCredential=api-key:/etc/ingot/credentials/api-key",
        *("/usr/bin/ingot", "launch", "--check=processor", "--credential", "OPENAI_API_KEY=api-key", "--"),
        *(PYTHON, "-c", BENCH_SERVE),
        *flags,
        *("--ignore-eos", "--save-result", "--disable-tqdm"),
    ]


def as_run(number: int, variant: str, concurrency: int, measured: dict[str, Any]) -> Run:
    """What is kept of a result; refused where requests failed, for the others would look fast."""
    asked, answered = LOADS[concurrency], int(measured["completed"])
    if answered != asked:
        raise ToolError(f"{variant}, {concurrency} at a time: {answered} of {asked} requests were answered")
    return Run(
        round=number,
        variant=variant,
        concurrency=concurrency,
        requests=answered,
        output_tokens_s=round(measured["output_throughput"], 2),
        ttft_ms=round(measured["median_ttft_ms"], 2),
        ttft_p99_ms=round(measured["p99_ttft_ms"], 2),
        itl_ms=round(measured["median_itl_ms"], 3),
        itl_p99_ms=round(measured["p99_itl_ms"], 3),
    )


def order(names: Sequence[str], number: int) -> list[str]:
    """Each round begins with another variant, so that what warms up or slows down meets all alike."""
    turn = (number - 1) % len(names)
    return [*names[turn:], *names[:turn]]


@dataclass
class Measured:
    """What a bench has measured so far."""

    vllm: str
    weight_bytes: int
    runs: list[Run] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    triads: dict[int, float] = field(default_factory=dict)

    def results(self, names: Sequence[str]) -> Results | None:
        """Of the rounds in which every variant met every load; None if there is no such round."""
        met = Counter(run.round for run in self.runs)
        whole = [number for number, count in met.items() if count == len(names) * len(LOADS)]
        if not whole:
            return None
        return Results(
            date=f"{datetime.now(UTC):%Y-%m-%d}",
            commit=commit(),
            machine=machine(),
            vllm=self.vllm,
            model=MODEL,
            weight_bytes=self.weight_bytes,
            input_tokens=INPUT_TOKENS,
            output_tokens=OUTPUT_TOKENS,
            variants={name: VARIANTS[name].description for name in names},
            triad_bytes_s=[round(self.triads[number]) for number in whole if number in self.triads],
            runs=[run for run in self.runs if run.round in whole],
            starts=[start for start in self.starts if start.round in whole],
        )


def measure(node: Node, rounds: int, names: Sequence[str]) -> Iterator[Measured]:
    """Every variant under every load, ``rounds`` times; gives what there is after each run."""
    bench = Bench(node)
    weights = node.root(f"stat -L -c %s {WEIGHTS}/*.safetensors")
    done = Measured(node.engine(), sum(map(int, weights.split())))
    for number in range(1, rounds + 1):
        for variant in order(names, number):
            address = bench.start(variant)
            done.starts.append(Start(round=number, variant=variant, graphs=bench.graphs(variant)))
            for concurrency in LOADS:
                started = time.monotonic()
                measured = bench.load(address, concurrency, seed=len(done.runs) + 1)
                done.runs.append(as_run(number, variant, concurrency, measured))
                print(
                    f"round {number}/{rounds}, {variant}, {concurrency} at a time:"
                    f" {done.runs[-1].output_tokens_s:.1f} tokens/s ({seconds(time.monotonic() - started)})",
                    flush=True,
                )
                if variant == TUNED and concurrency == max(LOADS):
                    node.root("systemctl stop vllm")
                    done.triads[number] = bench.triad()
                yield done


def write(results: Results) -> None:
    """Data, page and plots."""
    DATA.write_text(results.model_dump_json(indent=1) + "\n")
    PAGE.write_text(page(results, [f"{PLOTS.name}/{name}" for name in plot(results, PLOTS)]))


def main() -> int:
    """Measure, write, and say what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--only", action="append", choices=list(VARIANTS), help="these variants instead of all"
    )
    options = parsed(parser)
    names = [name for name in VARIANTS if not options.only or name in options.only]
    results = None
    status = 0
    try:
        run([uv(), "sync", "--quiet", "--locked", "--inexact", "--group", "bench"])  # what draws the plots
        with prepared("x86", ALONE) as node:
            for measured in measure(node, options.rounds, names):
                results = measured.results(names)
    except ToolError as problem:
        status = fail(problem)
    except KeyboardInterrupt:
        status = 130
    if results:  # whole rounds before an end like that are as good as any
        write(results)
        print("\n".join([*goals(results), of_compile_cache(results), f"written: {PAGE.relative_to(ROOT)}"]))
    return status


if __name__ == "__main__":
    sys.exit(main())
