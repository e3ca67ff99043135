"""Runs what CI runs, cheapest checks first, and stops at the first failure.

make test       this program
make test-full  this program with --full: the long checks too, and a report in docs/test-full-report.md

A full run takes hours, so what fails on machines there ends its own group and what needs it, and the other
groups still run. With --resume it goes on where a run of the same commit was stopped. Everything that needs
machines runs in a local region of its own (``ci``), which is purged at the end however that comes: success,
failure, or Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ci_report import Report, all_well, committed_times, estimate, table, totals
from ci_runner import BIN, NO_MACHINES, REGION, Check, Runner, purge, tool
from ingot.verify import canary
from steps import ROOT, cache_dir, seconds, tracked


def in_region(*argv: str) -> tuple[str, ...]:
    """A command put into the local region."""
    return tool("ingot", "local", "run", "--", *argv)


def shell_scripts() -> list[str]:
    """Files whose first line names a shell."""
    shells = (b"#!/bin/sh", b"#!/usr/bin/env bash", b"#!/bin/bash")
    return [name for name in tracked() if (ROOT / name).read_bytes()[:24].startswith(shells)]


def static_checks() -> list[Check]:
    """Seconds each: formatting, types, lint."""
    # `packer validate` asks for a region and keys though it calls nothing; and for a lock that is complete.
    aws = {"AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "validate", "AWS_SECRET_ACCESS_KEY": "validate"}
    aws["PKR_VAR_inventory"] = "inventories/rehearsal"
    packer = str(ROOT / "tools/packer-run")
    return [
        Check("ruff check", "lint", tool("ruff", "check", ".")),
        Check("ruff format", "lint", tool("ruff", "format", "--check", ".")),
        Check("shellcheck", "lint", tool("shellcheck", *shell_scripts())),
        Check("yamllint", "lint", tool("yamllint", "--strict", ".")),
        Check("packer fmt", "lint", (packer, "fmt", "-check", "-diff", "-recursive", "packer")),
        *(
            # One by one, as users build them: `packer build x86.pkr.hcl` loads that file alone.
            Check(f"packer validate {template}", "lint", (packer, "validate", template), env=aws)
            for template in tracked("packer/*.pkr.hcl")
        ),
        Check("mypy", "lint", tool("mypy"), limit=10),
        # The static inventory: the others ask an API for their hosts.
        Check("ansible-lint", "lint", tool("ansible-lint"), 15, {"ANSIBLE_INVENTORY": "inventories/example"}),
    ]


ON_ALL_CORES = ("--numprocesses", "logical", "--dist", "loadfile")  # a file's tests share what they set up

CANARY = {"INGOT_CANARY_FILE": str(cache_dir() / "canary-of-ci.json")}
"""The image is baked with secrets that are nobody's, and verified to have none of them."""

IMAGE = "an image for the scenarios"
# A cluster of its own, which the rehearsal starts and asks as well; drivers that are compiled twice; what no
# image has yet.
LONG_SCENARIOS = frozenset({"nccl_efa", "neuron", "nvidia", "site"})


def scenarios() -> list[str]:
    """The molecule scenarios; those that take long come last, and of them the one with a whole cluster."""
    names = sorted(Path(name).parent.name for name in tracked("molecule/*/molecule.yml"))
    return sorted(names, key=lambda name: (name in LONG_SCENARIOS, name == "site"))


def checks() -> list[Check]:
    """All steps in the order in which they run: the cheapest first."""
    site, launch = (
        in_region("ansible-playbook", "-i", "inventories/rehearsal", playbook)
        for playbook in ("site.yml", "playbooks/launch.yml")
    )
    python = str(BIN / "python")
    return [
        *static_checks(),
        Check("unit tests", "unit", tool("pytest", "tests/unit", *ON_ALL_CORES), limit=40),
        # One real file for each Arm core; the whole of it is compiled by a bake.
        Check("vLLM's sources for Graviton", "source", (python, "tools/source_check.py"), limit=15),
        Check("local EC2 tests", "local", tool("pytest", "tests/rehearsal", "-m", "not long"), limit=30),
        Check("rehearse", "rehearse", tool("ingot", "rehearse"), 45, CANARY),
        *(
            Check(name, "rehearse", argv, limit, needs="rehearse", long=name.endswith(", long"))
            for name, argv, limit in (
                ("launch.yml again changes nothing", (python, "tools/unchanged.py", *launch), 5),
                ("site.yml again changes nothing", (python, "tools/unchanged.py", *site), 5),
                ("site.yml --check --diff", (*site, "--check", "--diff"), 5),
                ("first causes", tool("pytest", "tests/cluster", "-m", "not long"), 30),
                ("cluster, long", tool("pytest", "tests/cluster", "-m", "long"), 40),
            )
        ),
        # At its end the cluster is removed, which leaves the memory to what follows.
        Check(
            "commands of the documents", "docs", (python, "tools/docs_run.py"), 15, CANARY, needs="rehearse"
        ),
        Check(IMAGE, "molecule", (python, "tools/bake.py"), 30, CANARY),
        Check("release", "release", tool("pytest", "tests/release"), 30, CANARY, True, IMAGE),
        *(
            Check(
                f"molecule {name}",
                "molecule",
                tool("molecule", "test", "-s", name),
                limit=25,
                needs=IMAGE,
                long=name in LONG_SCENARIOS,
                beside=name not in LONG_SCENARIOS,
            )
            for name in scenarios()
        ),
        Check(
            "local EC2 tests, long", "local", tool("pytest", "tests/rehearsal", "-m", "long"), 60, long=True
        ),
        Check("local EC2 benchmarks", "bench", (python, "tools/bench_local.py"), 30, long=True),
        *emulated(python),
    ]


def emulated(python: str) -> list[Check]:
    """What has its processors emulated, and so takes longest: hours, where vLLM is compiled."""
    graviton = (python, "tools/graviton.py")
    return [
        *(
            # The roles' branches for arm64.
            Check(
                f"molecule {name}, arm64",
                "arm64",
                tool("molecule", "test", "-s", name),
                limit=40,
                env={"INGOT_MOLECULE_ARCHITECTURE": "arm64"},
                long=True,
            )
            for name in ("base", "kernel")
        ),
        Check("graviton3, from the wheel store", "graviton", (*graviton, "--stored"), limit=120),
        Check("graviton4", "graviton", (*graviton, "--image", "graviton4", "--needed"), 360, long=True),
        Check("graviton3, compiled", "graviton", graviton, limit=360, long=True),
    ]


def claim_region(path: Path) -> bool:
    """Whether no other run of this tool is under way; claimed until this process ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return False
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chosen steps; 0 when all passed."""
    parser = argparse.ArgumentParser(description="Run what CI runs.")
    parser.add_argument(
        "--full", action="store_true", help="the long checks too; of all of them, write the report"
    )
    parser.add_argument(
        "--resume", action="store_true", help="with --full: without what passed in a run of this commit"
    )
    parser.add_argument("--only", metavar="GROUP", action="append", help="only the steps of this group")
    parser.add_argument("--list", action="store_true", help="show the steps and their groups")
    options = parser.parse_args(argv)
    chosen = [check for check in checks() if options.full or not check.long]
    if options.only:
        unknown = set(options.only) - {check.group for check in chosen}
        if unknown:
            parser.error(f"no such group: {', '.join(sorted(unknown))}")
        needed = {check.needs for check in chosen if check.group in options.only}
        chosen = [check for check in chosen if check.group in options.only or check.name in needed]
    if options.list:
        print("\n".join(f"{check.group:<9} {check.name}" for check in chosen))
        return 0

    if options.resume and (options.only or not options.full):
        parser.error("--resume goes with --full, and not with --only")
    report = Report(chosen) if options.full and not options.only else None
    started = time.monotonic()
    runner = Runner(report.unfinished if report else lambda _: None)
    if options.resume and report:
        runner.outcomes += report.taken()
        names = {outcome.check.name for outcome in runner.outcomes}
        chosen = [check for check in chosen if check.name not in names]
        print(f"passed before on {report.commit}: {', '.join(sorted(names)) or 'nothing'}", flush=True)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, runner.on_signal)
    needs_region = any(check.group not in NO_MACHINES for check in chosen)
    if needs_region and not claim_region(cache_dir() / f"{REGION}.lock"):
        print(
            f"another run of this tool uses the region {REGION} and would lose its machines: wait for its end"
        )
        return 1
    if needs_region:
        with contextlib.suppress(FileExistsError):
            canary.write(Path(CANARY["INGOT_CANARY_FILE"]))
    print(estimate(chosen, committed_times()), flush=True)
    if report:
        print(f"what was done so far: {report.so_far}", flush=True)
    if needs_region:
        # Before the first check that needs it, should an earlier run have been killed.
        first = next(i for i, check in enumerate(chosen) if check.group not in NO_MACHINES)
        chosen.insert(first, purge("nothing is there from before"))
    try:
        runner.run_all(chosen, go_on=options.full)
    finally:
        outcomes = runner.outcomes
        if needs_region:
            last = Runner()  # one of its own: it runs whatever came before
            last.run_all([purge("nothing is left behind")])
            outcomes += last.outcomes
    print(f"\n{table(outcomes)}\n")
    if runner.stopped_by:
        print(f"stopped by {runner.stopped_by.name}")
    if report:
        report.finished(outcomes, interrupted=runner.stopped_by is not None)
    print(f"total: {seconds(time.monotonic() - started)}")
    print(totals(outcomes))
    return 0 if all_well(outcomes) and not runner.stopped_by else 1


if __name__ == "__main__":
    sys.exit(main())
