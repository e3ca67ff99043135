"""Steps of tools/ci.py, and running them one by one."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Literal

from steps import LEFT_OUT, ROOT, seconds

BIN = ROOT / ".venv/bin"
REGION = "ci"
NO_MACHINES = ("lint", "unit", "source")  # groups that need no local region

Status = Literal["passed", "failed", "left out", "interrupted", "skipped", "not run"]
RESULTS: Mapping[int | None, Status] = {0: "passed", LEFT_OUT: "left out"}  # by exit status; others failed


@dataclass(frozen=True)
class Check:
    """One step: a command, the group it is chosen by, and the minutes after which it counts as hung.

    ``needs``: the step that must have been run in the region before. ``long``: for make test-full only.
    """

    name: str
    group: str
    argv: tuple[str, ...]
    limit: float = 5
    env: dict[str, str] = field(default_factory=dict)
    long: bool = False
    needs: str = ""


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
        self.child: subprocess.Popen[bytes] | None = None
        self.stopped_by: signal.Signals | None = None
        self.outcomes: list[Outcome] = []
        self.after_each = after_each

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

    def command(self, check: Check, **more: str) -> int | None:
        """Run one command to its end, or to its limit: its exit status, or None."""
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        common = {"PATH": path, "INGOT_LOCAL_NAME": REGION, "PYTHONUNBUFFERED": "1"}
        env = {**os.environ, **common, **check.env, **more}
        self.child = subprocess.Popen(
            check.argv, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, start_new_session=True
        )
        if self.stopped_by:  # the signal came before there was a child to end, which has done nothing yet
            os.killpg(self.child.pid, signal.SIGKILL)  # a shell that begins may lose any other
        try:
            return self.child.wait(check.limit * 60)
        except subprocess.TimeoutExpired:
            print(f"did not end within {check.limit:g} minutes; stopping it", flush=True)
            self.end_child()
            return None
        finally:
            self.child = None

    def run(self, check: Check, place: str) -> Outcome:
        """Run one step, saying so."""
        print(f"\n=== [{place}] {check.name}: {shlex.join(check.argv)[:200]}", flush=True)
        started = time.monotonic()
        with tempfile.NamedTemporaryFile(prefix="ingot-remark-") as file:
            ended = self.command(check, INGOT_STEP_REMARK=file.name)
            remark = " ".join(Path(file.name).read_text().replace("|", "/").split())
        status = "interrupted" if self.stopped_by else RESULTS.get(ended, "failed")
        outcome = Outcome(check, status, time.monotonic() - started, remark)
        told = "FAILED" if status == "failed" else status
        print(f"=== {check.name}: {told} ({seconds(outcome.duration)})", flush=True)
        return outcome

    def run_all(self, chosen: Sequence[Check], *, go_on: bool = False) -> None:
        """Run the steps up to the first that fails; the others are noted as skipped.

        With ``go_on`` a failure on machines skips the rest of its group, and what needs one of its steps;
        other groups get an empty region.
        """
        group_of = {check.name: check.group for check in chosen}
        broken: set[str] = set()
        for number, check in enumerate(chosen, start=1):
            stops = not go_on or not broken.isdisjoint((*NO_MACHINES, "purge"))
            its_own = {check.group, group_of.get(check.needs, "")}
            if self.stopped_by or (stops and broken) or not broken.isdisjoint(its_own):
                self.note(Outcome(check, "skipped"))
                continue
            outcome = self.run(check, f"{number}/{len(chosen)}")
            self.note(outcome)
            if outcome.status != "failed":
                continue
            broken.add(check.group)
            if go_on and check.group not in (*NO_MACHINES, "purge"):
                emptied = self.run(
                    purge(f"the region is emptied after {check.name}"), f"{number}/{len(chosen)}"
                )
                self.note(emptied)
                if emptied.status == "failed":
                    broken.add("purge")

    def note(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.after_each(self.outcomes)
