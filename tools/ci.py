"""Runs what CI runs, cheapest checks first, and stops at the first failure.

make test       this program
make test-full  this program with --full: the long checks too, and a report in docs/test-full-report.md

Everything that needs machines runs in a local region of its own (``ci``), which is purged at the end however
that comes: success, failure, or Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from steps import ROOT, cache_dir, seconds, tracked

BIN = ROOT / ".venv/bin"
REGION = "ci"
NO_MACHINES = ("lint", "unit", "source")  # groups that need no local region
REPORT = ROOT / "docs/test-full-report.md"


@dataclass(frozen=True)
class Check:
    """One step: a command, the group it is chosen by, and the minutes after which it counts as hung."""

    name: str
    group: str
    argv: tuple[str, ...]
    limit: float = 5
    env: dict[str, str] = field(default_factory=dict)
    long: bool = False  # belongs to make test-full only


@dataclass
class Outcome:
    """What came of a step."""

    check: Check
    status: str  # "passed", "failed" or "skipped" (an earlier step failed)
    duration: float = 0.0


def tool(name: str, *args: str) -> tuple[str, ...]:
    """A program of the venv, with its arguments."""
    return (str(BIN / name), *args)


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


# A cluster of its own, which the rehearsal starts and asks as well; a driver that is compiled twice.
LONG_SCENARIOS = frozenset({"nvidia", "site"})


def scenarios() -> list[str]:
    """The molecule scenarios; the one with a whole cluster comes last."""
    names = sorted(Path(name).parent.name for name in tracked("molecule/*/molecule.yml"))
    return sorted(names, key=lambda name: name == "site")


def checks() -> list[Check]:
    """All steps in the order in which they run: the cheapest first."""
    site, launch = (
        in_region("ansible-playbook", "-i", "inventories/rehearsal", playbook)
        for playbook in ("site.yml", "playbooks/launch.yml")
    )
    python = str(BIN / "python")
    return [
        *static_checks(),
        Check("unit tests", "unit", tool("pytest", "tests/unit"), limit=20),
        # One real file for each Arm core; the whole of it is compiled by a bake.
        Check("vLLM's sources for Graviton", "source", (python, "tools/source_check.py"), limit=15),
        Check("local EC2 tests", "local", tool("pytest", "tests/rehearsal", "-m", "not long"), limit=30),
        # Before the cluster of the rehearsal: there is not the memory for both.
        Check("graviton3, compiled", "graviton", (python, "tools/graviton.py"), limit=120, long=True),
        Check(
            "graviton3, from the wheel store", "graviton", (python, "tools/graviton.py", "--stored"), limit=60
        ),
        Check("rehearse", "rehearse", tool("ingot", "rehearse"), limit=45),
        Check("launch.yml again changes nothing", "rehearse", (python, "tools/unchanged.py", *launch)),
        Check("site.yml again changes nothing", "rehearse", (python, "tools/unchanged.py", *site)),
        Check("site.yml --check --diff", "rehearse", (*site, "--check", "--diff")),
        Check("first causes", "rehearse", tool("pytest", "tests/cluster", "-m", "not long"), limit=30),
        Check("cluster, long", "rehearse", tool("pytest", "tests/cluster", "-m", "long"), 40, long=True),
        Check("commands of the documents", "docs", (python, "tools/docs_run.py"), limit=15),
        *(
            Check(
                f"molecule {name}",
                "molecule",
                tool("molecule", "test", "-s", name),
                limit=25,
                long=name in LONG_SCENARIOS,
            )
            for name in scenarios()
        ),
        *(
            # Emulated: the roles' branches for arm64.
            Check(
                f"molecule {name}, arm64",
                "molecule",
                tool("molecule", "test", "-s", name),
                limit=40,
                env={"INGOT_MOLECULE_ARCHITECTURE": "arm64"},
                long=True,
            )
            for name in ("base", "kernel")
        ),
        Check(
            "local EC2 tests, long", "local", tool("pytest", "tests/rehearsal", "-m", "long"), 60, long=True
        ),
        Check("local EC2 benchmarks", "bench", (python, "tools/bench_local.py"), 30, long=True),
    ]


class Runner:
    """Runs steps one by one; a signal ends the step that runs, and no more are begun."""

    def __init__(self) -> None:
        self.child: subprocess.Popen[bytes] | None = None
        self.stopped_by: signal.Signals | None = None
        self.outcomes: list[Outcome] = []

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.stopped_by = signal.Signals(number)
        self.end_child()

    def end_child(self) -> None:
        """End the step's process group: first as Ctrl-C does, which lets pytest and Packer clean up."""
        child = self.child
        if child is None or child.poll() is not None:
            return
        for sent, patience in ((signal.SIGINT, 90), (signal.SIGTERM, 20), (signal.SIGKILL, 10)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, sent)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(patience)
                break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # what the command itself left behind

    def run(self, check: Check) -> bool:
        """Run one command to its end, or to its limit."""
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        common = {"PATH": path, "INGOT_LOCAL_NAME": REGION, "PYTHONUNBUFFERED": "1"}
        env = {**os.environ, **common, **check.env}
        self.child = subprocess.Popen(
            check.argv, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, start_new_session=True
        )
        if self.stopped_by:  # the signal came before there was a child to end
            self.end_child()
        try:
            return self.child.wait(check.limit * 60) == 0
        except subprocess.TimeoutExpired:
            print(f"did not end within {check.limit:g} minutes; stopping it", flush=True)
            self.end_child()
            return False
        finally:
            self.child = None

    def run_all(self, chosen: Sequence[Check]) -> None:
        """Run the steps up to the first that fails; the others are noted as skipped."""
        failed = False
        for number, check in enumerate(chosen, start=1):
            if failed or self.stopped_by:
                self.outcomes.append(Outcome(check, "skipped"))
                continue
            print(f"\n=== [{number}/{len(chosen)}] {check.name}: {shlex.join(check.argv)[:200]}", flush=True)
            started = time.monotonic()
            passed = self.run(check)
            duration = time.monotonic() - started
            self.outcomes.append(Outcome(check, "passed" if passed else "failed", duration))
            print(f"=== {check.name}: {'passed' if passed else 'FAILED'} ({seconds(duration)})", flush=True)
            failed = not passed


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


def purge(name: str) -> Check:
    """End the region with all that is in it."""
    return Check(name, "purge", tool("ingot", "local", "down", "--purge"))


def totals(outcomes: Sequence[Outcome]) -> str:
    """The closing line, in the form that CI systems read."""
    count = {status: sum(o.status == status for o in outcomes) for status in ("passed", "failed", "skipped")}
    skipped = f", {count['skipped']} skipped" if count["skipped"] else ""
    return f"{count['passed']} passed, {count['failed']} failed{skipped}"


def table(outcomes: Sequence[Outcome]) -> str:
    """Result and time of each step."""
    width = max(len(outcome.check.name) for outcome in outcomes)
    rows = (f"{o.check.name:<{width}}  {o.status:<7}  {seconds(o.duration):>12}" for o in outcomes)
    return "\n".join(rows)


def write_report(outcomes: Sequence[Outcome], duration: float) -> None:
    """Leave the results of a full run where they are committed with the change that they prove."""
    git = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    rows = "\n".join(f"| {o.check.name} | {o.status} | {seconds(o.duration)} |" for o in outcomes)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    REPORT.write_text(
        "# Last run of `make test-full`\n\n"
        "Written by `make test-full`; committed before an issue is called resolved.\n\n"
        f"- Date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC\n"
        f"- Commit: `{commit}`\n"
        f"- Machine: {os.cpu_count()} cores, {memory:.0f} GiB\n"
        f"- Result: {totals(outcomes)} in {seconds(duration)}\n\n"
        f"| Step | Result | Time |\n|---|---|---|\n{rows}\n"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chosen steps; 0 when all passed."""
    parser = argparse.ArgumentParser(description="Run what CI runs.")
    parser.add_argument("--full", action="store_true", help="the long checks too, and write the report")
    parser.add_argument("--only", metavar="GROUP", action="append", help="only the steps of this group")
    parser.add_argument("--list", action="store_true", help="show the steps and their groups")
    options = parser.parse_args(argv)
    chosen = [check for check in checks() if options.full or not check.long]
    if options.only:
        unknown = set(options.only) - {check.group for check in chosen}
        if unknown:
            parser.error(f"no such group: {', '.join(sorted(unknown))}")
        chosen = [check for check in chosen if check.group in options.only]
    if options.list:
        print("\n".join(f"{check.group:<9} {check.name}" for check in chosen))
        return 0

    started = time.monotonic()
    runner = Runner()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, runner.on_signal)
    needs_region = any(check.group not in NO_MACHINES for check in chosen)
    if needs_region and not claim_region(cache_dir() / f"{REGION}.lock"):
        print(
            f"another run of this tool uses the region {REGION} and would lose its machines: wait for its end"
        )
        return 1
    if needs_region:
        # Before the first check that needs it, should an earlier run have been killed.
        first = next(i for i, check in enumerate(chosen) if check.group not in NO_MACHINES)
        chosen.insert(first, purge("nothing is there from before"))
    try:
        runner.run_all(chosen)
    finally:
        outcomes = runner.outcomes
        if needs_region:
            last = Runner()  # one of its own: it runs whatever came before
            last.run_all([purge("nothing is left behind")])
            outcomes += last.outcomes
    duration = time.monotonic() - started
    print(f"\n{table(outcomes)}\n")
    if runner.stopped_by:
        print(f"stopped by {runner.stopped_by.name}")
    if options.full:
        write_report(outcomes, duration)
    print(f"total: {seconds(duration)}")
    print(totals(outcomes))
    return 0 if runner.stopped_by is None and all(o.status == "passed" for o in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
