"""What the kernel is told about programs for another processor, for as long as a region needs it.

binfmt_misc is one list for the whole host. Ours is one entry, under a name of our own, for all regions of the
host: written down before it is made, and removed with the last region that asked for it. Entries of others
stay as they are; ours is asked before them, since the kernel asks the newest first.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MOUNT = Path("/proc/sys/fs/binfmt_misc")
ENTRY = "ingot-aarch64"
FILESYSTEMS = Path("/proc/filesystems")
# An executable or a library to be run (type 2 or 3) of machine 0xb7, AArch64, in 64 bits and little-endian.
_MAGIC = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
_MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
# F: the interpreter is opened now, so that it works in every root; P: argv[0] is kept; C: so is set-user-ID
_FLAGS = "FPC"


class BinfmtError(Exception):
    """The kernel cannot be told; the message says why, and what to do."""


class Interpreters:
    """Our entry in the kernel's list, and which regions use it."""

    def __init__(self, directory: Path, mount: Path = MOUNT) -> None:
        self._directory = directory
        self._file = directory / "binfmt.json"
        self._mount = mount

    @property
    def entry(self) -> Path:
        return self._mount / ENTRY

    def claim(self, region: str, interpreter: Path) -> None:
        """Let the kernel run programs for arm64 with ``interpreter`` until the region releases it.

        Raises:
            BinfmtError: the kernel has no binfmt_misc, or refuses the entry.
        """
        with self._locked() as record:
            if region in record["regions"] and self.entry.exists():
                return
            if not (self._mount / "register").exists():  # asking mounts it where systemd offers to
                if refusal := check(FILESYSTEMS.read_text()):
                    raise BinfmtError(refusal)
                record["mounted"] = True
            record["regions"] = sorted({*record["regions"], region})
            # before the change: a kill in between leaves nothing that is not written down
            self._write(record)
            try:
                if not (self._mount / "register").exists():
                    _run("mount", "-t", "binfmt_misc", "binfmt_misc", str(self._mount))
                if not self.entry.exists():
                    _register(self._mount, f":{ENTRY}:M::{_MAGIC}:{_MASK}:{interpreter}:{_FLAGS}")
            except OSError as error:
                raise BinfmtError(
                    f"{self._mount}/register refuses {interpreter}: {error.strerror}"
                ) from error

    def release(self, region: str) -> None:
        """The region needs it no more; with the last one it is as it was before the first."""
        with self._locked() as record:
            if region not in record["regions"]:
                return
            record["regions"].remove(region)
            if record["regions"]:
                self._write(record)
                return
            if self.entry.exists():
                with contextlib.suppress(FileNotFoundError):
                    _remove(self.entry)
            if record.get("mounted") and (self._mount / "register").exists():
                _run("umount", "--lazy", str(self._mount))  # somebody may be looking at it
            self._file.unlink()

    @contextmanager
    def _locked(self) -> Iterator[dict[str, Any]]:
        self._directory.mkdir(parents=True, exist_ok=True)
        with (self._directory / "binfmt.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield json.loads(self._file.read_text()) if self._file.exists() else {"regions": []}

    def _write(self, record: dict[str, Any]) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.write_text(json.dumps(record))
        fresh.replace(self._file)


def check(filesystems: str) -> str:
    """Why this kernel cannot emulate, empty if it can; ``filesystems`` is /proc/filesystems."""
    if "binfmt_misc" in filesystems.split():
        return ""
    with contextlib.suppress(FileNotFoundError):
        if subprocess.run(["modprobe", "binfmt_misc"], capture_output=True, check=False).returncode == 0:
            return ""
    return (
        "no emulation: this host's kernel has no binfmt_misc (CONFIG_BINFMT_MISC), so it cannot run programs "
        "for arm64. `modprobe binfmt_misc`, on the host if this is a container, or use a kernel that has it"
    )


def _register(mount: Path, line: str) -> None:
    (mount / "register").write_text(line)


def _remove(entry: Path) -> None:
    entry.write_text("-1")


def _run(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise BinfmtError(f"`{' '.join(command)}` failed: {result.stderr.strip()}")
