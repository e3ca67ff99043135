"""What DKMS says: its status, and the log of a module that it could not build."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TREE = Path("/var/lib/dkms")

# nvidia-current-open/550.163.01, 6.12.118+deb13-cloud-amd64, x86_64: installed
# nvidia-current-open/550.163.01: added
_STATUS = re.compile(
    r"^(?P<module>[^/,\s]+)/(?P<version>[^,:\s]+)(?:, (?P<kernel>[^,]+), [^,:]+)?: (?P<state>.+)$"
)
# DKMS (dkms-3.2.2) make.log for nvidia/580.1 for kernel 6.8.0-1 (x86_64); before 3.1 without the parentheses
_HEADER = re.compile(
    r"^DKMS (?:\(.*?\) )?make\.log for (?P<module>[^/\s]+)/(?P<version>\S+) for kernel (?P<kernel>\S+) "
)

# What ends a build, the more telling first. Each names a file where it can.
_CAUSES = (
    re.compile(r"^(?P<file>[^\s:]+):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: (?P<message>.+)$"),
    re.compile(r"^ERROR: modpost: (?P<message>.+)$"),
    re.compile(r"^(?P<message>(?:\d+ out of \d+ hunks? FAILED|Hunk #\d+ FAILED).*)$"),
    re.compile(
        r"^(?P<message>.*(?:No space left on device|Cannot allocate memory|internal compiler error).*)$"
    ),
    re.compile(r"^(?P<message>.*\bKilled\b.*)$"),
    re.compile(r"^(?P<message>make(?:\[\d+\])?: \*\*\* .+)$"),
)


@dataclass(frozen=True)
class Entry:
    """One line of ``dkms status``; ``kernel`` is empty while a module is only known."""

    module: str
    version: str
    kernel: str
    state: str


@dataclass(frozen=True)
class Failure:
    """Why a module was not built for a kernel, by its log."""

    module: str
    driver: str
    kernel: str
    source: str  # of the first error, within the module's sources; empty where no file is to blame
    error: str

    def __str__(self) -> str:
        where = f"{self.source}: " if self.source else ""
        what = f"driver {self.driver} ({self.module})"
        return f"{what} does not compile for kernel {self.kernel}: {where}{self.error}"


def status(text: str) -> list[Entry]:
    """Read ``dkms status``."""
    found = (_STATUS.match(line.strip()) for line in text.splitlines())
    return [
        Entry(match["module"], match["version"], match["kernel"] or "", match["state"])
        for match in found
        if match
    ]


def problems(entries: Iterable[Entry], module: str, driver: str, kernels: Iterable[str]) -> list[str]:
    """What is not as it must be: for each kernel that version is ``installed`` and nothing else."""
    ours = [entry for entry in entries if entry.module == module]
    found = [
        f"dkms has {module} in version {entry.version}, and {driver} is wanted"
        for entry in ours
        if entry.version != driver
    ]
    found += [
        f"dkms says {entry.state!r} of {module} {driver}"
        + (f" for kernel {entry.kernel}" if entry.kernel else ": it is built for no kernel")
        for entry in ours
        if entry.version == driver and entry.state != "installed"
    ]
    built = {entry.kernel for entry in ours}
    if any(entry.kernel for entry in ours) or not ours:
        found += [f"dkms has no {module} for kernel {kernel}" for kernel in kernels if kernel not in built]
    return found


def failure(log: str, tree: Path = TREE) -> Failure | None:
    """The first cause in a make.log; None where it is no such log."""
    lines = log.splitlines()
    header = next((match for line in lines[:5] if (match := _HEADER.match(line))), None)
    if header is None:
        return None
    module, driver, kernel = header["module"], header["version"], header["kernel"]
    inside = f"{tree / module / driver / 'build'}/"
    for cause in _CAUSES:
        for line in lines:
            if match := cause.match(line):
                parts = match.groupdict()
                source = (parts.get("file") or "").removeprefix(inside)
                if source and parts.get("line"):
                    source += f":{parts['line']}"
                return Failure(module, driver, kernel, source, parts["message"].strip())
    return Failure(module, driver, kernel, "", "the log names no error")


def failed_log(module: str, driver: str, tree: Path = TREE) -> Path | None:
    """The log of the last build that failed; that of one that went well lies with its kernel."""
    log = tree / module / driver / "build" / "make.log"
    return log if log.is_file() else None
