"""Root trees in the cache, made by mmdebstrap from Debian's archive.

A tree is keyed by everything it is made from, built beside its place and renamed into it, so that a tree in
place is always whole.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

SUITE = "trixie"
MIRROR = "http://deb.debian.org"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
EXTRA_CA = Path("/usr/local/share/ca-certificates")
SOURCES = (
    f"deb {MIRROR}/debian {SUITE} main",
    f"deb {MIRROR}/debian {SUITE}-updates main",
    f"deb {MIRROR}/debian-security {SUITE}-security main",
)
# How the host reaches the archive is how its machines do: these settings of the host's apt go along.
_HOST_APT_SETTINGS = (
    "Acquire::http::Proxy",
    "Acquire::https::Proxy",
    "Acquire::Check-Valid-Until",
    "Acquire::Check-Date",
)

Wrap = Callable[[list[str]], list[str]]


class TreeError(Exception):
    """A tree cannot be made; the message holds the cause and what to do."""


def make(
    place: Path,
    what: str,
    options: Sequence[str],
    *,
    finish: Callable[[Path], object],
    wrap: Wrap = list,
    keyring: Path = KEYRING,
) -> None:
    """Make ``place`` with mmdebstrap's tree in ``place/tree``, unless it is there.

    ``what`` it is called in messages, ``options`` are mmdebstrap's, ``finish`` is given the directory before
    it gets its name, and ``wrap`` puts the command into a cgroup.

    Raises:
        TreeError: the archive's keyring is missing, or mmdebstrap failed.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    with _locked(place.parent / ".lock"):
        if place.exists():
            return
        if not keyring.exists():
            raise TreeError(
                f"{keyring} is missing, so packages from Debian's archive cannot be verified: "
                "apt-get install debian-archive-keyring"
            )
        for leftover in place.parent.glob("building-*"):  # of a build that was killed: we hold the lock
            shutil.rmtree(leftover)
        building = place.with_name(f"building-{place.name}")
        building.mkdir()
        log = log_of(place)
        command = [
            "mmdebstrap",
            "--mode=root",
            f"--keyring={keyring}",
            "--skip=output/dev",
            "--skip=check/qemu",  # it looks for an emulator by the name that Debian's package gives it
            *(f"--aptopt={option}" for option in host_apt_options()),
            *options,
            SUITE,
            str(building / "tree"),
            *SOURCES,
        ]
        if status := _bootstrap(wrap, command, log):
            shutil.rmtree(building, ignore_errors=True)
            raise TreeError(
                f"mmdebstrap could not make {what}: {_first_error(log)} (status {status}; all of it: {log})"
            )
        try:
            finish(building)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise
        building.rename(place)


def log_of(place: Path) -> Path:
    """What mmdebstrap said, and says while it runs."""
    return place.with_name(f"{place.name}.log")


def key_of(inputs: Mapping[str, object]) -> str:
    """Names a tree after these inputs and those of the host."""
    everything = {
        "sources": SOURCES,
        "apt": host_apt_options(),
        "ca": {path.name: path.read_text() for path in extra_ca()},
        **inputs,
    }
    return hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()[:16]


def extra_ca() -> list[Path]:
    """Certificate authorities that the host trusts in addition."""
    return sorted(EXTRA_CA.glob("*.crt"))


@cache  # asked for each tree that is looked for; the host's settings do not change under a process
def host_apt_options() -> tuple[str, ...]:
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout
    wanted = tuple(f"{name} " for name in _HOST_APT_SETTINGS)
    return tuple(line for line in dump.splitlines() if line.startswith(wanted) and not line.endswith(' "";'))


def _bootstrap(wrap: Wrap, command: list[str], log: Path) -> int:
    # In namespaces of its own: whatever becomes of mmdebstrap, its mounts in the tree and its children end
    # with it.
    unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc"]
    environ = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    if extra_ca():
        environ["INGOT_EXTRA_CA"] = str(EXTRA_CA)
    with log.open("wb") as output:
        return subprocess.run(
            wrap([*unshare, *command]),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environ,
            check=False,
        ).returncode


def _first_error(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return next(
        (line for line in lines if line.startswith(("E:", "Err:"))), lines[-1] if lines else "no output"
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
