"""Read what the node knows about its own failures: units, journal, Ray's logs."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from . import checks, network
from .causes import RANK_LOG, first_cause
from .finding import Finding, ordered
from .settings import Settings

JOURNAL_LINES = 2000
LOG_BYTES = 256 * 1024
LOG_AGE = 15 * 60  # of a worker that died; older ones belong to a trouble that is over
# Watched where they are enabled, whoever configured them.
OPTIONAL_UNITS = ("haproxy.service",)
# Where a replica's own words end up, and where the controller repeats them.
RAY_LOGS = ("worker-*.err", "worker-*.out", "serve/replica_*.log", "raylet.err", "gcs_server.err")


@dataclass(frozen=True)
class Unit:
    """The state of one unit, by systemd's own names."""

    name: str
    active: str
    sub: str
    result: str
    restarts: int
    invocation: str
    load: str
    enabled: bool

    @property
    def failing(self) -> bool:
        """Failed for good, or between two attempts."""
        return (
            self.active == "failed"
            or self.sub == "auto-restart"
            or (self.active == "activating" and self.restarts > 0)
        )

    @property
    def running(self) -> bool:
        return self.active == "active"


def unit(name: str) -> Unit:
    """Ask systemd."""
    wanted = ("ActiveState", "SubState", "Result", "NRestarts", "InvocationID", "LoadState", "UnitFileState")
    answer = _run("systemctl", "show", name, *(f"--property={item}" for item in wanted))
    values = dict(line.partition("=")[::2] for line in answer.splitlines() if "=" in line)
    return Unit(
        name=name,
        active=values.get("ActiveState", "unknown"),
        sub=values.get("SubState", ""),
        result=values.get("Result", ""),
        restarts=int(values.get("NRestarts") or 0),
        invocation=values.get("InvocationID", ""),
        load=values.get("LoadState", ""),
        enabled=values.get("UnitFileState") == "enabled",
    )


def journal(state: Unit) -> list[str]:
    """What the unit and systemd said about its failures.

    The attempts of the last minutes, since the one under way may not have come to the point yet; of a unit
    that gave up long ago its last attempt.
    """
    lately = _journal("-u", state.name, f"--since=-{LOG_AGE}s")
    last = [f"_SYSTEMD_INVOCATION_ID={state.invocation}", "+", f"INVOCATION_ID={state.invocation}"]
    return lately or (_journal(*last) if state.invocation else [])


def unit_findings(settings: Settings) -> Iterator[Finding]:
    """What is wrong with each unit that should run here."""
    for name in (*settings.units, *OPTIONAL_UNITS):
        state = unit(name)
        if state.running or (name in OPTIONAL_UNITS and not state.enabled):
            continue
        place = {"node": settings.node, "unit": name, "source": "journal"}
        found = first_cause(journal(state)) if state.failing else None
        if found:
            yield found.at(**place)
        elif state.load == "not-found":
            yield _plain("unit-missing", f"The unit {name} does not exist here.", "Run site.yml.", **place)
        elif state.failing:
            yield _plain(
                "unit-failed",
                f"{name} is {state.active} ({state.result}) after {state.restarts} restarts, for no known "
                f"reason.",
                f"journalctl -u {name} -b",
                **place,
            )
        elif state.active == "activating":
            continue
        else:
            yield _plain("unit-stopped", f"{name} is {state.active}.", f"systemctl start {name}", **place)


def ray_findings(settings: Settings, *, age: float = LOG_AGE) -> Iterator[Finding]:
    """What workers that died lately said last, on this node."""
    directory = Path(settings.ray_logs)
    oldest = time.time() - age
    for pattern in RAY_LOGS:
        for path in sorted(directory.glob(pattern)):
            try:
                status = path.stat()
                if status.st_size == 0 or status.st_mtime < oldest or _alive(path):
                    continue
                found = first_cause(_tail(path))
            except OSError:  # gone meanwhile, or not ours to read
                continue
            if found:
                yield found.at(node=settings.node, unit="ray", source=str(path))


def diagnose(settings: Settings) -> list[Finding]:
    """Everything that is wrong on this node, root causes first."""
    findings = list(unit_findings(settings))
    if settings.mode == "ray_serve":
        findings += ray_findings(settings)
    for check in (*checks.AT_ANY_TIME, network.efa):
        findings += [item.at(node=settings.node) for item in check(settings)]
    findings += [item.at(node=settings.node) for item in network.unused(_network_logs(settings))]
    if not checks.held_by(settings.user, settings.port):
        # An engine that is just starting has taken a part of what it needs already.
        missing = checks.memory(settings, ours=checks.resident(settings.user))
        findings += [item.at(node=settings.node) for item in (*checks.port_taken(settings), *missing)]
    return ordered(findings)


def _network_logs(settings: Settings) -> Iterator[tuple[str, list[str]]]:
    """What the engines that run said of their network, which they do when they start."""
    for state in map(unit, settings.units):
        if state.running:
            said = _journal(f"--grep={network.SAID}", f"_SYSTEMD_INVOCATION_ID={state.invocation}")
            yield f"journal of {state.name}", said
    for path in sorted(Path(settings.ray_logs).glob("worker-*.out")):
        if _alive(path):
            with path.open("rb") as file:
                yield str(path), file.read(LOG_BYTES).decode("utf-8", "replace").splitlines()


def _plain(cause: str, what: str, action: str, **place: str) -> Finding:
    # After every known cause: such a finding says only that something is wrong.
    return Finding(cause=cause, what=what, action=action, rank=RANK_LOG * 10).at(**place)


def _alive(path: Path) -> bool:
    """Whether the worker that writes ``worker-<id>-<job>-<pid>.err`` still runs."""
    if not path.name.startswith("worker-"):
        return False
    pid = path.stem.rsplit("-", 1)[-1]
    return pid.isdigit() and Path("/proc", pid).exists()


def _tail(path: Path) -> list[str]:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LOG_BYTES))
        return file.read().decode("utf-8", "replace").splitlines()


def _journal(*selectors: str) -> list[str]:
    answer = _run(
        "journalctl", "--no-pager", "--boot", "--output=json", f"--lines={JOURNAL_LINES}", *selectors
    )
    return list(_messages(answer.splitlines()))


def _messages(records: Iterable[str]) -> Iterator[str]:
    for record in records:
        try:
            message = json.loads(record).get("MESSAGE")
        except ValueError:
            continue
        if isinstance(message, list):  # bytes that are not UTF-8
            message = bytes(message).decode("utf-8", "replace")
        if message:
            yield from message.splitlines()


def _run(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        raise SystemExit(f"ingot: there is no {command[0]} here: this is for a node, run it there") from None
