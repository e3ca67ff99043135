"""Steps of tools/ci.py, and running them one by one."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import IO, Literal

from steps import LEFT_OUT, ROOT, seconds

BIN = ROOT / ".venv/bin"
REGION = "ci"
LANES = 2
"""Steps that run beside each other: machines wait for their controller, and it for them."""
NO_MACHINES = ("lint", "unit", "source")  # groups that need no local region

Status = Literal["passed", "failed", "left out", "interrupted", "skipped", "not run"]
RESULTS: Mapping[int | None, Status] = {0: "passed", LEFT_OUT: "left out"}  # by exit status; others failed


@dataclass(frozen=True)
class Check:
    """One step: a command, the group it is chosen by, and the minutes after which it counts as hung.

    ``needs``: the step that must have been run in the region before. ``long``: for make test-full only.
    ``beside``: it has machines of its own, and may run beside neighbours of its group that say so, too.
    """

    name: str
    group: str
    argv: tuple[str, ...]
    limit: float = 5
    env: dict[str, str] = field(default_factory=dict)
    long: bool = False
    needs: str = ""
    beside: bool = False


@dataclass(frozen=True)
class Outcome:
    """What came of a step.

    ``left out``: it found nothing to do here, and ``remark`` says why. ``skipped``: an earlier one failed.
    """

    check: Check
    status: Status
    duration: float = 0.0
    remark: str = ""


def tool(name: str, *args: str) -> tuple[str, ...]:
    """A program of the venv, with its arguments."""
    return (str(BIN / name), *args)


def purge(name: str) -> Check:
    """End the region with all that is in it."""
    return Check(name, "purge", tool("ingot", "local", "down", "--purge"))


class Runner:
    """Runs steps one by one; a signal ends the step that runs, and no more are begun.

    ``after_each`` is called with what is known so far.
    """

    def __init__(self, after_each: Callable[[list[Outcome]], None] = lambda _: None) -> None:
        self.children: set[subprocess.Popen[bytes]] = set()
        self.stopped_by: signal.Signals | None = None
        self.outcomes: list[Outcome] = []
        self.after_each = after_each

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.stopped_by = signal.Signals(number)
        for child in list(self.children):
            self.end(child)

    def end(self, child: subprocess.Popen[bytes]) -> None:
        """End a step's process group: first as Ctrl-C does, which lets pytest and Packer clean up."""
        if child.poll() is not None:
            return
        for sent, patience in ((signal.SIGINT, 90), (signal.SIGTERM, 20), (signal.SIGKILL, 10)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, sent)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(patience)
                break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # what the command itself left behind

    def command(self, check: Check, output: IO[bytes] | None, **more: str) -> int | None:
        """Run one command to its end, or to its limit: its exit status, or None."""
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        common = {"PATH": path, "INGOT_LOCAL_NAME": REGION, "PYTHONUNBUFFERED": "1"}
        env = {**os.environ, **common, **check.env, **more}
        child = subprocess.Popen(
            check.argv,
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            start_new_session=True,
        )
        self.children.add(child)
        if self.stopped_by:  # the signal came before there was a child to end, which has done nothing yet
            os.killpg(child.pid, signal.SIGKILL)  # a shell that begins may lose any other
        try:
            return child.wait(check.limit * 60)
        except subprocess.TimeoutExpired:
            print(f"{check.name} did not end within {check.limit:g} minutes; stopping it", flush=True)
            self.end(child)
            return None
        finally:
            self.children.discard(child)

    def run(self, check: Check, place: str, *, aside: bool = False) -> Outcome:
        """Run one step, saying so; ``aside``: what it prints is shown when it has ended."""
        print(f"\n=== [{place}] {check.name}: {shlex.join(check.argv)[:200]}", flush=True)
        started = time.monotonic()
        with (
            tempfile.NamedTemporaryFile(prefix="ingot-remark-") as file,
            tempfile.TemporaryFile(prefix="ingot-step-") as output,
        ):
            ended = self.command(check, output if aside else None, INGOT_STEP_REMARK=file.name)
            remark = " ".join(Path(file.name).read_text().replace("|", "/").split())
            output.seek(0)
            said = output.read().decode(errors="replace")
        status = "interrupted" if self.stopped_by else RESULTS.get(ended, "failed")
        outcome = Outcome(check, status, time.monotonic() - started, remark)
        told = "FAILED" if status == "failed" else status
        heading = f"\n--- what {check.name} said\n{said}" if aside else ""
        print(f"{heading}=== {check.name}: {told} ({seconds(outcome.duration)})", flush=True)
        return outcome

    def run_all(self, chosen: Sequence[Check], *, go_on: bool = False) -> None:
        """Run the steps up to the first that fails; the others are noted as skipped.

        With ``go_on`` a failure on machines skips the rest of its group, and what needs one of its steps;
        other groups get an empty region.
        """
        group_of = {check.name: check.group for check in chosen}
        broken: set[str] = set()
        for number, batch in batches(chosen):
            group = batch[0].group
            places = [f"{number + index}/{len(chosen)}" for index in range(len(batch))]
            stops = not go_on or not broken.isdisjoint((*NO_MACHINES, "purge"))
            its_own = {group, *(group_of.get(check.needs, "") for check in batch)}
            if self.stopped_by or (stops and broken) or not broken.isdisjoint(its_own):
                for check in batch:
                    self.note(Outcome(check, "skipped"))
                continue
            outcomes = self.run_beside(batch, places)
            for outcome in outcomes:
                self.note(outcome)
            failed = [outcome.check.name for outcome in outcomes if outcome.status == "failed"]
            if not failed:
                continue
            broken.add(group)
            if go_on and group not in (*NO_MACHINES, "purge"):
                emptied = self.run(purge(f"the region is emptied after {', '.join(failed)}"), places[-1])
                self.note(emptied)
                if emptied.status == "failed":
                    broken.add("purge")

    def run_beside(self, batch: Sequence[Check], places: Sequence[str]) -> list[Outcome]:
        """Run steps in lanes; none is begun after one has failed."""
        if len(batch) == 1:
            return [self.run(batch[0], places[0])]
        failed = threading.Event()

        def one(check: Check, place: str) -> Outcome:
            if failed.is_set() or self.stopped_by:
                return Outcome(check, "skipped")
            outcome = self.run(check, place, aside=True)
            if outcome.status == "failed":
                failed.set()
            return outcome

        with ThreadPoolExecutor(LANES) as lanes:
            return list(lanes.map(one, batch, places))

    def note(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.after_each(self.outcomes)


def batches(chosen: Sequence[Check]) -> Iterator[tuple[int, list[Check]]]:
    """The steps with the number of the first of each batch: neighbours that may run beside each other."""
    number = 1
    for (_, beside), found in groupby(chosen, key=lambda check: (check.group, check.beside)):
        batch = list(found)
        for part in [batch] if beside else [[check] for check in batch]:
            yield number, part
            number += len(part)
