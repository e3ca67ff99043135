"""Machines for arm64 on a host that is none: qemu-user runs their programs, as the core that their type has.

What that takes is made when it is first needed: qemu and Debian's arm64 tree in the cache, and the kernel's
knowledge of qemu (``binfmt``), which ends with the region. The trees hold nothing of it: what a machine has
to know, it is told at boot (``boot.sh``).
"""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from ingot.rehearsal import base, binfmt, trees
from ingot.rehearsal.config import Settings
from ingot.rehearsal.model import Machine

EMULATED = "arm64"
# The core of each generation of Graviton, by the family's digit; those of Graviton2 have others, too.
_CORES = {"6": "neoverse-n1", "7": "neoverse-v1", "8": "neoverse-v2", "9": "neoverse-v3"}
_GRAVITON2 = frozenset({"t4g", "g5g", "x2gd", "i4g", "im4gn", "is4gen"})
# What stands in for a core that qemu has not. Neoverse-N2 is of V2's architecture (Armv9.0: SVE2 at 128 bits,
# bf16, i8mm); V3 is of a later one (Armv9.2), with vectors of the same length.
_NEAREST = {"neoverse-v2": ("neoverse-n2",), "neoverse-v3": ("neoverse-v2", "neoverse-n2")}
_QEMU_PACKAGE = "qemu-user"
_QEMU = "usr/bin/qemu-aarch64"
_KEEP = ("--dpkgopt=path-exclude=/*", f"--dpkgopt=path-include=/{_QEMU}")

Step = Callable[[str], AbstractContextManager[None]]


def _unsaid(_: str) -> AbstractContextManager[None]:
    return nullcontext()


class EmulationError(Exception):
    """A machine cannot be emulated; the message says what is lacking."""


@dataclass(frozen=True)
class Core:
    """The core that an instance type has on EC2, and the one that qemu runs its programs on."""

    real: str
    emulated: str

    def __str__(self) -> str:
        if self.real == self.emulated:
            return self.emulated
        return f"{self.emulated}, the nearest to {self.real}"


class Emulator(BaseModel):
    """qemu in the cache."""

    model_config = ConfigDict(frozen=True)

    program: Path
    version: str
    cores: tuple[str, ...]

    def core(self, instance_type: str) -> Core:
        """What a machine of this type is emulated as.

        Raises:
            EmulationError: this qemu has neither the type's core nor one that is near to it.
        """
        real = core_of(instance_type)
        for core in (real, *_NEAREST.get(real, ())):
            if core in self.cores:
                return Core(real, core)
        raise EmulationError(
            f"{instance_type} has {real} cores, and qemu {self.version} emulates neither them nor any that "
            f"are near to them; it has {', '.join(self.cores)}"
        )


class Emulation:
    """What one region has for machines of another architecture than the host's."""

    def __init__(self, settings: Settings, wrap: trees.Wrap = list) -> None:
        self.settings = settings
        self._wrap = wrap
        self._interpreters = binfmt.Interpreters(settings.runtime_root)

    def check(self) -> str:
        """Why this host cannot emulate, empty if it can."""
        return binfmt.check(binfmt.FILESYSTEMS.read_text())

    def prepare(self, machine: Machine, step: Step = _unsaid) -> Core:
        """Make all that this machine needs, and say which core it is.

        Raises:
            EmulationError, TreeError, BinfmtError: that cannot be; nothing half made stays.
        """
        core = self.start(step).core(machine.instance_type)
        if any(layer.parent.parent == self.settings.bases and not layer.exists() for layer in machine.layers):
            self.make_base(step)
        return core

    def start(self, step: Step = _unsaid) -> Emulator:
        """Get qemu, once, and let the kernel know it until the region ends."""
        emulator = _find(self.settings)
        if not emulator:
            with step("get qemu for arm64 (once)"):
                emulator = ensure_emulator(self.settings, wrap=self._wrap)
        self._interpreters.claim(self.settings.name, emulator.program)
        return emulator

    def make_base(self, step: Step = _unsaid) -> None:
        """Make Debian's tree for arm64, once; its packages are configured on the emulated processor."""
        self.start(step)
        if not base.find(self.settings, EMULATED):
            with step("make the Debian base tree for arm64 (once, three minutes or more)"):
                base.ensure(self.settings, EMULATED, wrap=self._wrap)

    def end(self) -> None:
        """The region needs it no more."""
        self._interpreters.release(self.settings.name)


def foreign(architecture: str, machine: str | None = None) -> bool:
    """Whether machines of this architecture have to be emulated on a host that ``uname -m`` calls so."""
    return architecture == EMULATED and (machine or platform.machine()) != "aarch64"


def core_of(instance_type: str) -> str:
    """The core of a Graviton type.

    Raises:
        EmulationError: its family is not one that we know.
    """
    family = instance_type.partition(".")[0]
    if family == "a1":
        return "cortex-a72"
    if family in _GRAVITON2:
        return _CORES["6"]
    found = re.match(r"[a-z]+(\d+)g", family)
    if found and found[1] in _CORES:
        return _CORES[found[1]]
    raise EmulationError(f"{instance_type}: nothing is known of its core; known are Graviton to Graviton5")


def ensure_emulator(
    settings: Settings, *, wrap: trees.Wrap = list, keyring: Path = trees.KEYRING
) -> Emulator:
    """qemu of the base's Debian release, whatever the host's is: older ones know fewer cores.

    Raises:
        TreeError: it could not be had.
    """
    place = _place(settings)
    trees.make(
        place,
        "the tree with qemu",
        ["--variant=extract", f"--include={_QEMU_PACKAGE}", *_KEEP],
        finish=lambda building: (building / "emulator.json").write_text(
            _describe(building / "tree" / _QEMU, place / "tree" / _QEMU).model_dump_json(indent=2)
        ),
        wrap=wrap,
        keyring=keyring,
    )
    return _read(place)


def _place(settings: Settings) -> Path:
    return settings.cache / "emulator" / trees.key_of({"package": _QEMU_PACKAGE, "keep": _KEEP})


def _find(settings: Settings) -> Emulator | None:
    place = _place(settings)
    return _read(place) if place.exists() else None


def _read(place: Path) -> Emulator:
    return Emulator.model_validate_json((place / "emulator.json").read_text())


def _describe(program: Path, place: Path) -> Emulator:
    version = _said(program, "--version")
    found = re.search(r"version (\S+)", version)
    return Emulator(
        program=place,
        version=found[1] if found else version,
        cores=tuple(_cores(_said(program, "-cpu", "help").splitlines())),
    )


def _cores(lines: Iterable[str]) -> Iterable[str]:
    """The names in ``qemu -cpu help``: a headline, then one a line."""
    return (line.strip() for line in lines if line.startswith(" ") and line.strip())


def _said(program: Path, *arguments: str) -> str:
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=True).stdout
