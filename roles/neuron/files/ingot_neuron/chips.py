"""Neuron chips: what neuron-ls lists, what the PCI bus has, the files in /dev by which they are reached."""

from __future__ import annotations

import json
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingot.driver import RefusedError

VENDOR = "0x1d0f"
# Of the driver's own list (neuron_device.h of github.com/aws-neuron/aws-neuron-driver).
DEVICES = {
    "0x7064": "Inferentia",
    "0x7065": "Inferentia",
    "0x7066": "Inferentia",
    "0x7067": "Inferentia",
    "0x7264": "Inferentia2",
    "0x7164": "Trainium",
    "0x7364": "Trainium2",
}


@dataclass(frozen=True)
class Chip:
    """One chip as neuron-ls has it; memory in bytes."""

    index: int
    cores: int
    memory: int
    commands: tuple[str, ...]  # of the processes that use it


def listed(text: str) -> list[Chip]:
    """Read what ``neuron-ls --json-output`` prints: a list with an object for each chip.

    Raises:
        RefusedError: it is none.
    """
    try:
        rows = json.loads(text)
        chips = [_chip(row) for row in rows]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RefusedError(
            f"neuron-ls printed no list of chips ({error!r}): {text.strip()[:200]!r}"
        ) from error
    return sorted(chips, key=lambda chip: chip.index)


def _chip(row: dict[str, Any]) -> Chip:
    used = tuple(str(one.get("command", "")) for one in row.get("neuron_processes") or [])
    return Chip(int(row["neuron_device"]), int(row["nc_count"]), int(row["memory_size"]), used)


def on_bus(sys: Path = Path("/sys")) -> list[str]:
    """The names of the chips on the PCI bus. Asked of /sys, so that no driver has to be loaded."""
    return sorted(
        DEVICES[identity]
        for device in (sys / "bus/pci/devices").glob("*")
        if (device / "vendor").read_text().strip() == VENDOR
        and (identity := (device / "device").read_text().strip()) in DEVICES
    )


def used(chips: list[Chip]) -> list[str]:
    """Chips that a process has: the runtime gives a core to one process and to no other."""
    return [f"chip {chip.index} is used by {', '.join(chip.commands)}" for chip in chips if chip.commands]


def file_problems(chips: list[Chip], group: int, dev: Path = Path("/dev")) -> list[str]:
    """Each chip has its file in /dev, for the group and nobody else."""
    found = []
    for chip in chips:
        path = dev / f"neuron{chip.index}"
        try:
            status = path.stat()
        except FileNotFoundError:
            found.append(f"chip {chip.index} has no {path}: programs cannot reach it")
            continue
        if status.st_gid != group:
            found.append(f"{path} belongs to group {status.st_gid}, and {group} is wanted")
        if stat.S_IMODE(status.st_mode) & 0o007:
            found.append(f"{path} is open to every user ({stat.filemode(status.st_mode)})")
    return found
