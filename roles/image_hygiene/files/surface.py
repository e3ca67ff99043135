#!/usr/bin/python3
"""Say what an image exposes that it should not: modes, owners, units, and on a booted clone ports.

    surface.py [--root DIR] [--live] < RULES

RULES is hygiene.yml of this role, as JSON; what is allowed stands under `surface`. Standard library only.
Prints JSON: {"findings": [{"rule", "path", "what", "why"}], "listening": [...]}.
Exit status as of hygiene.py.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import socket
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FIELDS = {"shared_directories", "privileged", "units", "ports"}
NEVER = ("/proc", "/sys", "/dev", "/run")  # made by the kernel and by each boot
LISTEN, UNCONNECTED = "0A", "07"  # the states of sockets that take what comes, in /proc/net
LOOPBACK = ("127.", "::1")


class RuleError(Exception):
    """What is allowed is not said as it must be."""


@dataclass(frozen=True)
class Finding:
    rule: str
    path: str
    what: str
    why: str


@dataclass(frozen=True)
class Socket:
    protocol: str
    address: str
    port: int
    process: str

    def __str__(self) -> str:
        return f"{self.protocol}/{self.port} on {self.address} ({self.process or 'no process'})"


def read_allowed(text: str) -> dict[str, list[str]]:
    """The part of the rules that this program reads.

    Raises:
        RuleError: it is not there, or not as it must be.
    """
    try:
        allowed = json.loads(text)["surface"]
    except (ValueError, KeyError, TypeError) as error:
        raise RuleError(f"the rules have no `surface` that can be read: {error!r}") from error
    if set(allowed) != FIELDS or not all(isinstance(part, list) for part in allowed.values()):
        raise RuleError(f"`surface` must have the lists {', '.join(sorted(FIELDS))}")
    return {name: [str(part) for part in parts] for name, parts in allowed.items()}


def ids(root: Path, name: str) -> frozenset[int]:
    """The numbers of the users (``passwd``) or groups (``group``) of the image, not of who looks at it."""
    lines = (root / "etc" / name).read_text(encoding="utf-8").splitlines()
    return frozenset(int(line.split(":")[2]) for line in lines if line.count(":") >= 3)


def walk(root: Path) -> Iterator[tuple[str, os.stat_result, bool]]:
    """Every path of the image but what is mounted, with its status, and whether anybody can get there."""
    device = root.lstat().st_dev
    closed: set[str] = set()  # directories that only their owners enter, and all below them
    for directory, names, plain in os.walk(root):
        place = f"/{Path(directory).relative_to(root)}".replace("/.", "", 1).rstrip("/")
        reached = place not in closed
        kept = []
        for name in [*plain, *names]:
            path = f"{place}/{name}"
            status = _status(Path(directory, name))
            if status is None or path in NEVER:
                continue
            yield path, status, reached
            if stat.S_ISDIR(status.st_mode) and status.st_dev == device:
                kept.append(name)
                if not (reached and status.st_mode & stat.S_IXOTH):
                    closed.add(path)
        names[:] = kept


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:  # gone while we looked
        return None


def files(root: Path, allowed: dict[str, list[str]]) -> Iterator[Finding]:
    """Modes and owners."""
    users, groups = ids(root, "passwd"), ids(root, "group")
    for path, status, reached in walk(root):
        mode = status.st_mode
        if status.st_uid not in users or status.st_gid not in groups:
            yield Finding(
                "unowned",
                path,
                f"belongs to {status.st_uid}:{status.st_gid}, which the image does not know",
                "the next user or group that is made gets that number, and the file with it",
            )
        if stat.S_ISLNK(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode):
            continue
        shared = mode & stat.S_ISVTX and _matches(path, allowed["shared_directories"])
        if reached and mode & stat.S_IWOTH and not shared:
            yield Finding(
                "world-writable",
                path,
                f"mode {stat.S_IMODE(mode):04o}",
                "whoever is on the machine can put there what others will read or run",
            )
        if (
            stat.S_ISREG(mode)
            and mode & (stat.S_ISUID | stat.S_ISGID)
            and not _matches(path, allowed["privileged"])
        ):
            yield Finding(
                "privileged",
                path,
                f"mode {stat.S_IMODE(mode):04o}, owner {status.st_uid}:{status.st_gid}",
                "it runs with its owner's rights, whoever starts it; hygiene.yml lists those that may",
            )


def units(root: Path, allowed: dict[str, list[str]]) -> Iterator[Finding]:
    """What a boot starts because somebody has enabled it."""
    for directory in ("etc/systemd/system", "etc/systemd/user"):
        links = [*root.glob(f"{directory}/*.wants/*"), *root.glob(f"{directory}/*.requires/*")]
        for link in sorted(links):
            if link.is_symlink() and not _matches(link.name, allowed["units"]):
                yield Finding(
                    "enabled-unit",
                    f"/{link.relative_to(root)}",
                    f"{link.name} is enabled",
                    "a boot of any clone starts it, before its cluster has configured anything",
                )


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def sockets(proc: Path) -> list[Socket]:
    """What listens, by the kernel's own tables."""
    owners = _owners(proc)
    found = set()
    for protocol, state in (("tcp", LISTEN), ("udp", UNCONNECTED)):
        for table in (protocol, f"{protocol}6"):
            try:
                lines = (proc / "net" / table).read_text(encoding="ascii").splitlines()[1:]
            except OSError:  # no IPv6 in this kernel
                continue
            for line in lines:
                columns = line.split()
                if columns[3] != state:
                    continue
                address, _, port = columns[1].partition(":")
                owner = owners.get(columns[9], "")
                found.add(Socket(protocol, _address(address), int(port, 16), owner))
    return sorted(found, key=lambda one: (one.protocol, one.port, one.address))


def _address(word: str) -> str:
    """The kernel prints addresses as words of the machine's own byte order."""
    raw = b"".join(int(word[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(word), 8))
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)


def _owners(proc: Path) -> dict[str, str]:
    """Names of processes by the inode of each socket that they have."""
    found = {}
    for link in proc.glob("[0-9]*/fd/*"):
        try:
            target = str(link.readlink())
            if target.startswith("socket:["):
                found[target[8:-1]] = (link.parent.parent / "comm").read_text(encoding="utf-8").strip()
        except OSError:  # ended while we looked
            continue
    return found


def ports(listening: Iterable[Socket], allowed: dict[str, list[str]]) -> Iterator[Finding]:
    """What other machines can reach: ``tcp/22`` is allowed as ``tcp/22 sshd``, by port and process."""
    for one in listening:
        if one.address.startswith(LOOPBACK):
            continue
        if not _matches(f"{one.protocol}/{one.port} {one.process}", allowed["ports"]):
            yield Finding(
                "listening",
                f"{one.protocol}/{one.port}",
                str(one),
                "a clone that nobody has configured must not wait for anybody but SSH",
            )


def look(root: Path, allowed: dict[str, list[str]], live: bool, proc: Path = Path("/proc")) -> dict[str, Any]:
    """All findings, and what listened."""
    checks: list[Callable[[Path, dict[str, list[str]]], Iterator[Finding]]] = [files, units]
    findings = [finding for check in checks for finding in check(root, allowed)]
    listening = sockets(proc) if live else []
    findings += ports(listening, allowed)
    return {"findings": [asdict(finding) for finding in findings], "listening": [str(s) for s in listening]}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, default=Path("/"), help="tree to look at (default: this system)")
    parser.add_argument("--live", action="store_true", help="it is this system: look at its ports, too")
    options = parser.parse_args(arguments)
    try:
        result = look(options.root, read_allowed(sys.stdin.read()), options.live)
    except (RuleError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(result, indent=1))
    return 1 if result["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
