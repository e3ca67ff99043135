"""Read-only layers: what a snapshot of a root volume is in EC2.

A layer is the upper directory of a machine's overlay, out of use. A snapshot is a list of layers, its own
uppermost, then those the machine was launched from. So a layer stays for as long as a machine or another
snapshot lies on it, also when its own snapshot has been discarded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel

from ingot.rehearsal.model import MachineError


class _Snapshot(BaseModel):
    layers: tuple[Path, ...]  # uppermost first; the first is this snapshot's own
    discarded: bool = False


class LayerStore:
    """The snapshots of one region, below one directory of its state."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.RLock()

    def layer(self, snapshot_id: str) -> Path:
        return self._directory / snapshot_id

    def record(self, snapshot_id: str, below: tuple[Path, ...]) -> tuple[Path, ...]:
        """Write down what the snapshot will consist of; returns its layers."""
        layers = (self.layer(snapshot_id), *below)
        self._directory.mkdir(parents=True, exist_ok=True)
        with self._lock:
            self._write(snapshot_id, _Snapshot(layers=layers))
        return layers

    def layers_of(self, snapshot_id: str) -> tuple[Path, ...]:
        """The layers of a snapshot, uppermost first.

        Raises:
            MachineError: there is none of this id.
        """
        snapshot = self._read(snapshot_id)
        if snapshot is None or snapshot.discarded:
            raise MachineError(f"this region has no snapshot {snapshot_id}")
        return snapshot.layers

    def copy(self, upper: Path, snapshot_id: str) -> None:
        """Fill the snapshot's own layer with a copy of ``upper``.

        Raises:
            MachineError: the copy failed (disk full, say); nothing of it stays.
        """
        partial = self.layer(f"{snapshot_id}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        # -a keeps what an overlay is made of: device nodes 0:0 (deleted files) and trusted.overlay.*
        # attributes
        command = ["cp", "-a", "--reflink=auto", str(upper), str(partial)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            shutil.rmtree(partial, ignore_errors=True)
            raise MachineError(f"snapshot {snapshot_id}: {result.stderr.strip().splitlines()[0]}")
        partial.rename(self.layer(snapshot_id))

    def discard(self, layer: Path) -> None:
        """Nobody will launch from the snapshot of this layer any more. Base trees are not ours to remove."""
        if layer.parent != self._directory:
            return
        with self._lock:
            if snapshot := self._read(layer.name):
                self._write(layer.name, snapshot.model_copy(update={"discarded": True}))

    def collect(self, used: Iterable[Path]) -> None:
        """Remove the discarded layers that neither machines (``used``) nor snapshots in use need."""
        with self._lock:
            snapshots = {path.stem: self._read(path.stem) for path in self._directory.glob("*.json")}
            needed = set(used)
            for snapshot in snapshots.values():
                if snapshot and not snapshot.discarded:
                    needed.update(snapshot.layers)
            for snapshot_id, snapshot in snapshots.items():
                if snapshot and snapshot.discarded and self.layer(snapshot_id) not in needed:
                    remove_tree(self.layer(snapshot_id))
                    self._record_file(snapshot_id).unlink()

    def _record_file(self, snapshot_id: str) -> Path:
        return self._directory / f"{snapshot_id}.json"

    def _read(self, snapshot_id: str) -> _Snapshot | None:
        path = self._record_file(snapshot_id)
        return _Snapshot.model_validate_json(path.read_text()) if path.exists() else None

    def _write(self, snapshot_id: str, snapshot: _Snapshot) -> None:
        write_atomically(self._record_file(snapshot_id), snapshot.model_dump_json())


def mount_read_only(layers: tuple[Path, ...], directory: Path) -> None:
    """The tree that the layers make, as nobody has booted it.

    Raises:
        MachineError: it cannot be mounted there.
    """
    if len(layers) == 1:  # an overlay of nothing but lower directories has two at least
        command = ["mount", "--bind", "--options", "ro", str(layers[0]), str(directory)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    else:
        with tempfile.TemporaryDirectory() as links:
            below = link_layers(layers, Path(links))
            command = ["mount", "-t", "overlay", "-o", f"ro,lowerdir={below}", "overlay", str(directory)]
            done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=links)
    if done.returncode:
        raise MachineError(f"{directory}: {done.stderr.strip() or 'mount failed'}")


def link_layers(layers: tuple[Path, ...], directory: Path) -> str:
    """Short symlinks to the layers; returns the ``lowerdir`` option, relative to ``directory``.

    The kernel takes one page of mount options (and 500 layers): a few dozen absolute paths exceed it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for number, layer in enumerate(layers):
        (directory / str(number)).symlink_to(layer)
    return ":".join(str(number) for number in range(len(layers)))


def remove_tree(path: Path) -> None:
    """Remove a root tree; already gone is fine."""
    if path.exists():
        # rm, not shutil: trees hold tens of thousands of files, and immutable or odd names are its daily
        # bread
        subprocess.run(["rm", "-rf", "--one-file-system", str(path)], check=True)


def write_atomically(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    fresh.write_text(text)
    fresh.replace(path)
