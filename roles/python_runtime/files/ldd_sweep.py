#!/usr/bin/env python3
"""Name every shared library that a file below a directory needs and that this machine lacks.

    ldd_sweep.py [--allow PATTERN]... DIRECTORY...

Python hides the cause of a failed import behind many others (an engine that cannot load its extension may say
so only as a missing attribute, in one worker's log). The dynamic linker knows it at once, so it is asked for
every ELF file of this machine's kind. A library that lies somewhere below the same directory is not missing:
packages load such ones themselves (torch's, for the extensions built on it).

Exit status: 0 nothing missing, 1 something, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Some of a wheel's libraries are only reached through others; they are looked at all the same.
NAME = re.compile(r"\.so(\.\d+)*$")
MISSING = re.compile(r"^\s*(\S+) => not found")
# A wheel for a newer system: the library is there, the version of its symbols is not.
TOO_OLD = re.compile(r"^(\S+): version `(\S+)' not found \(required by (\S+)\)")
# ldd says "file:" before each answer only when it is asked for several.
FILE = re.compile(r"^(/.*):$")
BATCH = 32
# e_ident and e_machine: enough to tell a library of this machine from one of another kind.
HEADER = 20


def header(path: Path) -> bytes:
    """Class, byte order and machine of an ELF file; empty for any other file."""
    with path.open("rb") as file:
        start = file.read(HEADER)
    return start[4:6] + start[18:20] if start.startswith(b"\x7fELF") and len(start) == HEADER else b""


def libraries(root: Path) -> Iterator[Path]:
    """Every file below ``root`` that is named like a shared library, without following links out of it."""
    for directory, _, names in os.walk(root):
        for name in names:
            path = Path(directory, name)
            if NAME.search(name) and path.is_file():
                yield path


def ask(paths: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """What ldd does not find, as pairs of file and library."""
    command = ["ldd", *map(str, paths)]
    answer = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"}
    )
    current = paths[0]
    for line in answer.stdout.splitlines():
        if found := FILE.match(line):
            current = Path(found[1])
        elif found := MISSING.match(line):
            yield current, found[1]
        elif found := TOO_OLD.match(line.strip()):
            yield Path(found[3]), f"{Path(found[1]).name}({found[2]})"


def sweep(root: Path, allowed: Sequence[str]) -> list[tuple[Path, str]]:
    """Files below ``root`` and the libraries that they miss, sorted."""
    own = header(Path(sys.executable).resolve())
    found = sorted(set(libraries(root)))
    present = {path.name for path in found}
    # The same file under several names (libx.so, libx.so.1) is asked about once.
    candidates = sorted({path.resolve() for path in found if header(path) == own})
    batches = [candidates[start : start + BATCH] for start in range(0, len(candidates), BATCH)]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        answers = [pair for batch in pool.map(lambda paths: list(ask(paths)), batches) for pair in batch]
    return sorted(
        (path, library)
        for path, library in set(answers)
        if library not in present and not any(fnmatch.fnmatch(library, pattern) for pattern in allowed)
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--allow", action="append", default=[], metavar="PATTERN", help="library that may be missing"
    )
    parser.add_argument("directory", nargs="+", type=Path)
    arguments = parser.parse_args(argv)
    missing: dict[str, list[Path]] = {}
    for root in arguments.directory:
        if not root.is_dir():
            parser.error(f"{root} is not a directory")
        for path, library in sweep(root.resolve(), arguments.allow):
            missing.setdefault(library, []).append(path)
    for library, files in sorted(missing.items()):
        others = f" and {len(files) - 1} more" if len(files) > 1 else ""
        print(
            f"{library} is missing; {files[0]}{others} needs it. Install the package that has it"
            f" (https://packages.debian.org/search?searchon=contents&keywords={library}),"
            " or allow it to be absent.",
            file=sys.stderr,
        )
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
