"""Tries the number formats of weights on CPUs: which load, which are right, which are faster.

    bench_formats.py                    on this machine's processor
    bench_formats.py --image graviton3  on an emulated Neoverse-V1: what loads and is right, without times

On a node of the local EC2, as `make bench-cpu`. `tools/format_probe.py` does the asking, on the node. Writes
docs/formats-cpu.json and the page docs/formats.md after each format; what was found elsewhere stays there.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import signal
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import graviton
from bench_node import ALONE, PYTHON, SCRATCH, WEIGHTS, Node, commit, machine, prepared, transient
from format_probe import FORMATS
from format_results import Outcome, Run, Trials, page
from ingot.formats import Place
from steps import ROOT, ToolError, cache_dir, fail

DATA = ROOT / "docs/formats-cpu.json"
PAGE = ROOT / "docs/formats.md"


@dataclass(frozen=True)
class Way:
    """How formats are tried on an image's node.

    ``limit``: seconds for one format. ``emulated``: the core, or empty; such a one gets 64 tokens of the text
    instead of all, for each costs it seconds, and is not timed.
    """

    variables: dict[str, Any]
    limit: int
    emulated: str = ""

    @property
    def options(self) -> list[str]:
        """For the probe."""
        return ["--tokens", "64", "--untimed"] if self.emulated else []


WAYS = {
    # A format that works is done in 40; one that falls back to a loop in plain C is not.
    "x86": Way(ALONE, 300),
    # 50 to 100 times as long: starting the engine alone takes ten minutes.
    "graviton3": Way({}, 3600, "Neoverse-V1"),
}


def trial(node: Node, way: Way, name: str, run: Run) -> Outcome:
    """One format, in a process of its own; what it died of, if it did."""
    waits = ("VLLM_ENGINE_READY_TIMEOUT_S", "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS")
    command = [
        *transient(f"format-{name}", "--wait", "--pipe", "--collect"),
        f"--property=RuntimeMaxSec={way.limit}",
        *(f"--setenv={wait}={way.limit}" for wait in waits),
        *(PYTHON, f"{SCRATCH}/format_probe.py", name, WEIGHTS, SCRATCH, *way.options),
    ]
    started = time.monotonic()
    said = node.root(f"{shlex.join(command)} 2>&1 || true")
    in_time = time.monotonic() - started < way.limit
    kernels = sorted(set(re.findall(r"(?:Using|Selected) (\w+Kernel)\b", said)))
    result = re.search(r"^RESULT (.*)$", said, re.MULTILINE)
    if result is None:
        error = first_error(said) if in_time else f"not done after {way.limit} s"
        return Outcome(name=name, run=run, kernels=kernels, error=error)
    found: dict[str, Any] = json.loads(result[1])
    return Outcome(name=name, run=run, kernels=kernels, **found)


def first_error(said: str) -> str:
    """The exception that was raised first: those after it are of processes that waited for that one."""
    before = r"^(?:\(\w+[^)]*\) )?(?:ERROR [^\n]*\] )?"  # the process, and vLLM's log
    raised = re.search(before + r"(\w*(?:Error|Exception)\b: .*)$", said, re.MULTILINE)
    return raised[1].strip()[:300] if raised else (said.strip().splitlines() or ["it said nothing"])[-1][:300]


def extension(node: Node) -> str:
    """The extension that vLLM loads on this processor, which says what it can use."""
    program = ROOT / "roles/vllm/files"
    sent = "/tmp/bench-engine"
    node.root(f"rm -rf {sent}; install -d {sent}/ingot_vllm")
    for path in (program / "engine.py", *(program / "ingot_vllm").glob("*.py")):
        node.root(f"cat > {sent}/{path.relative_to(program)}", stdin=path.read_text())
    return node.root(f"{PYTHON} {sent}/engine.py load; rm -rf {sent}").strip()


def place_of(cpuinfo: str) -> Place:
    """Where a node computes, in the words of files/formats.yml, by its /proc/cpuinfo."""
    words = set(cpuinfo.split())
    if "asimd" in words:
        return "arm"
    if "amx_tile" in words:
        return "x86-64-amx"
    return "x86-64-v4" if "avx512f" in words else "x86-64-v3"


def require_wheel(image: str) -> None:
    """An image whose vLLM would have to be compiled first is not for this tool to bake."""
    store = cache_dir() / "wheels"
    if image in graviton.IMAGES and not graviton.stored(store, graviton.wanted(image))[0]:
        raise ToolError(
            f"the wheel store ({store}) has no vLLM for {image}, and compiling it takes hours: run"
            f" `.venv/bin/python tools/graviton.py --image {image}` first"
        )


def keep(place: Place, outcome: Outcome) -> None:
    """Put it into the data and the page."""
    trials = Trials.read(DATA).with_outcome(place, outcome)
    DATA.write_text(trials.model_dump_json(indent=1) + "\n")
    PAGE.write_text(page(trials, FORMATS))


def main() -> int:
    """Try all of them, write, and say what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--image", choices=list(WAYS), default="x86", help="the image of the node")
    parser.add_argument("--only", action="append", choices=list(FORMATS), help="these formats instead of all")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the region is purged however this ends
    way = WAYS[options.image]
    try:
        require_wheel(options.image)
        with prepared(options.image, way.variables) as node:
            node.root("systemctl stop vllm")  # two engines would share the cores
            node.root(f"install -d -o ingot -g ingot {SCRATCH}")
            probe = (ROOT / "tools/format_probe.py").read_text()
            node.root(f"cat > {SCRATCH}/format_probe.py", stdin=probe)
            place = place_of(node.root("cat /proc/cpuinfo"))
            run = Run(
                date=f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}",
                commit=commit(),
                machine=machine(),
                emulated=way.emulated,
                engine=node.engine(),
                extension=extension(node),
            )
            for name in options.only or FORMATS:
                outcome = trial(node, way, name, run)
                print(outcome.line(), flush=True)
                keep(place, outcome)
    except ToolError as problem:
        return fail(problem)
    print(f"written: {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
