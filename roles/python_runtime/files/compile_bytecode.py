#!/usr/bin/env python3
"""Compile every module below a directory to bytecode, with as many processes as there are processors.

    compile_bytecode.py DIRECTORY [--place PLACE]

PLACE is where the directory will lie, and what the bytecode says of it. What has its bytecode already is left
as it is. The bytecode is that of the Python that runs this, which may be another one than the environment's
as long as both have the same version: it holds nothing of the processor.

Packages ship files that are no modules of this Python (templates, code for Python 2). They are counted and
named, and have no bytecode.

Exit status: 0 every module has its bytecode, 1 one could not be written, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import py_compile
import struct
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path

SHOWN = 5
NO_MODULE = "no module of this Python"


def modules(root: Path) -> Iterator[Path]:
    """Every Python source below ``root``, without following links out of it."""
    for directory, _, names in os.walk(root):
        yield from (Path(directory, name) for name in names if name.endswith(".py"))


def is_compiled(source: Path) -> bool:
    """Whether Python would take the bytecode that there is: made by this version, from this very source."""
    status = source.stat()
    facts = struct.pack("<3L", 0, int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)
    wanted = importlib.util.MAGIC_NUMBER + facts
    try:
        with Path(importlib.util.cache_from_source(str(source))).open("rb") as bytecode:
            return bytecode.read(len(wanted)) == wanted
    except OSError:
        return False


def compile_one(source: Path, root: Path, place: Path) -> str:
    """Why there is no bytecode of this source, or nothing."""
    try:
        py_compile.compile(
            str(source),
            dfile=str(place / source.relative_to(root)),
            doraise=True,
            # By file time, not unchecked: a source that is patched after the bake must not be shadowed by its
            # old bytecode.
            invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP,
        )
    except py_compile.PyCompileError:
        return NO_MODULE
    except OSError as error:
        return error.strerror or str(error)
    return ""


def compile_all(sources: list[Path], root: Path, place: Path) -> dict[Path, str]:
    """The sources that have no bytecode now, each with the reason."""
    with ProcessPoolExecutor(initializer=warnings.simplefilter, initargs=("ignore",)) as pool:
        reasons = pool.map(compile_one, sources, repeat(root), repeat(place), chunksize=16)
        return {source: reason for source, reason in zip(sources, reasons, strict=True) if reason}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--place", type=Path)
    options = parser.parse_args(arguments)
    root: Path = options.directory
    if not root.is_dir():
        parser.error(f"{root} is no directory")
    sources = sorted(modules(root))
    wanted = [source for source in sources if not is_compiled(source)]
    failed = compile_all(wanted, root, options.place or root)
    for source, reason in failed.items():
        if reason != NO_MODULE:
            print(f"error: {source} cannot be compiled: {reason}", file=sys.stderr)
            return 1
    print(f"compiled {len(wanted) - len(failed)} of {len(sources)} modules")
    if failed:
        shown = [str(source.relative_to(root)) for source in failed][:SHOWN]
        print(f"{NO_MODULE}: {len(failed)}, among them {', '.join(shown)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
