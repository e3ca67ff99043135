"""Processes of machines, as the host sees them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from ingot.rehearsal.cgroups import Group


def init_of(group: Group) -> int | None:
    """Host's process id of a machine's init, once boot.sh has handed over to it."""
    for pid in group.pids():
        with contextlib.suppress(OSError):
            # one id for each nested namespace: the host's, that of `unshare`, the machine's own
            ids = _status(pid, "NSpid")
            if len(ids) == 3 and ids[2] == "1" and b"hypervisor/boot" not in _cmdline(pid):
                return pid
    return None


def child_of(pid: int) -> int | None:
    """The first child of a process."""
    with contextlib.suppress(OSError):
        if children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            return int(children[0])
    return None


def affinity(pid: int) -> set[int]:
    """The cores that a process may use; none when it has ended."""
    try:
        return os.sched_getaffinity(pid)
    except ProcessLookupError:
        return set()


def _status(pid: int, name: str) -> list[str]:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return line.split()[1:]
    return []


def _cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
