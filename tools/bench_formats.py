"""Tries the number formats of weights on this machine's CPUs: which load, which are right, which are faster.

On a node of the local EC2, as `make bench-cpu`. `tools/format_probe.py` does the asking, on the node. Writes
docs/formats-cpu.json and the page docs/formats.md.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import signal
import sys
import time
from datetime import UTC, datetime
from typing import Any

from bench_node import PYTHON, SCRATCH, WEIGHTS, Node, commit, machine, prepared, transient
from format_probe import FORMATS
from format_results import Outcome, Trials, page
from steps import ROOT, ToolError, fail

DATA = ROOT / "docs/formats-cpu.json"
PAGE = ROOT / "docs/formats.md"
LIMIT_SECONDS = 300  # a format that works is done in 40; one that falls back to a loop in plain C is not


def trial(node: Node, name: str) -> Outcome:
    """One format, in a process of its own; what it died of, if it did."""
    limited = f"--property=RuntimeMaxSec={LIMIT_SECONDS}"
    command = [
        *transient(f"format-{name}", "--wait", "--pipe", "--collect", limited),
        *(PYTHON, f"{SCRATCH}/format_probe.py", name, WEIGHTS, SCRATCH),
    ]
    started = time.monotonic()
    said = node.root(f"{shlex.join(command)} 2>&1 || true")
    in_time = time.monotonic() - started < LIMIT_SECONDS
    kernels = sorted(set(re.findall(r"(?:Using|Selected) (\w+Kernel)\b", said)))
    result = re.search(r"^RESULT (.*)$", said, re.MULTILINE)
    if result is None:
        error = first_error(said) if in_time else f"not done after {LIMIT_SECONDS} s"
        return Outcome(name=name, kernels=kernels, error=error)
    found: dict[str, Any] = json.loads(result[1])
    return Outcome(name=name, kernels=kernels, **found)


def first_error(said: str) -> str:
    """The exception that was raised first: those after it are of processes that waited for that one."""
    before = r"^(?:\(\w+[^)]*\) )?(?:ERROR [^\n]*\] )?"  # the process, and vLLM's log
    raised = re.search(before + r"(\w*(?:Error|Exception)\b: .*)$", said, re.MULTILINE)
    return raised[1].strip()[:300] if raised else (said.strip().splitlines() or ["it said nothing"])[-1][:300]


def processor(node: Node) -> str:
    """The extension that vLLM loads on this processor, which says what it can use."""
    program = ROOT / "roles/vllm/files"
    sent = "/tmp/bench-engine"
    node.root(f"rm -rf {sent}; install -d {sent}/ingot_vllm")
    for path in (program / "engine.py", *(program / "ingot_vllm").glob("*.py")):
        node.root(f"cat > {sent}/{path.relative_to(program)}", stdin=path.read_text())
    return node.root(f"{PYTHON} {sent}/engine.py load; rm -rf {sent}").strip()


def main() -> int:
    """Try all of them, write, and say what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", choices=list(FORMATS), help="these formats instead of all")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the region is purged however this ends
    try:
        with prepared() as node:
            node.root("systemctl stop vllm")  # two engines would share the cores
            node.root(f"install -d -o ingot -g ingot {SCRATCH}")
            probe = (ROOT / "tools/format_probe.py").read_text()
            node.root(f"cat > {SCRATCH}/format_probe.py", stdin=probe)
            engine, extension = node.engine(), processor(node)
            outcomes = []
            for name in options.only or FORMATS:
                outcomes.append(trial(node, name))
                print(outcomes[-1].line(), flush=True)
            trials = Trials(
                date=f"{datetime.now(UTC):%Y-%m-%d}",
                commit=commit(),
                machine=machine(),
                engine=engine,
                extension=extension,
                outcomes=outcomes,
            )
    except ToolError as problem:
        return fail(problem)
    DATA.write_text(trials.model_dump_json(indent=1) + "\n")
    PAGE.write_text(page(trials))
    print(f"written: {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
