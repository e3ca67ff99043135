"""Machines for arm64 on a host that is none: qemu-user runs their programs, as the core that their type has.

What that takes is made when it is first needed: qemu and Debian's arm64 tree in the cache, and the kernel's
knowledge of qemu (``binfmt``), which ends with the region. The trees hold nothing of it: what a machine has
to know, it is told at boot (``boot.sh``).
"""

from __future__ import annotations

import contextlib
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from ingot import instance_types
from ingot.rehearsal import base, binfmt, trees
from ingot.rehearsal.config import Settings
from ingot.rehearsal.model import Machine

EMULATED = "arm64"
# What init has to see as SIGRTMIN+3 to shut down: qemu moves a program's real-time signals up by four.
SHUTDOWN_SIGNAL = "SIGRTMIN+7"
# What stands in for a core that qemu has not. Neoverse-N2 is of V2's architecture (Armv9.0: SVE2 at 128 bits,
# bf16, i8mm); V3 is of a later one (Armv9.2), with vectors of the same length.
_NEAREST = {"neoverse-v2": ("neoverse-n2",), "neoverse-v3": ("neoverse-v2", "neoverse-n2")}
# One tree for this host's own processor: qemu, and what emulated machines run natively: compilers for arm64,
# and the machine's own Python, in the same version.
_PACKAGES = ("base-files", "g++-14-aarch64-linux-gnu", "python3", "python3-apt", "qemu-user")
_QEMU = "usr/bin/qemu-aarch64"
_COMPILER = "usr/bin/aarch64-linux-gnu-gcc-14"
_LEAVE_OUT = ("/usr/bin/qemu-*", "/usr/bin/*-lto-dump-*", "/usr/share/*")
# Names that the tree's programs have in them, and that an arm64 system has not.
_OVER_THE_MACHINE = ("lib64", "usr/lib/x86_64-linux-gnu", "usr/aarch64-linux-gnu")
_LIBRARY = Path(__file__).with_name("emulated.c")
_SITE = Path(__file__).with_name("native_site.py")

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
    """qemu in the cache, with what goes with it."""

    model_config = ConfigDict(frozen=True)

    tree: Path
    library: Path  # for machines' init: see emulated.c
    version: str
    cores: tuple[str, ...]

    @property
    def program(self) -> Path:
        return self.tree / _QEMU

    @property
    def mounts(self) -> dict[Path, Path]:
        """Where a machine has this tree: its compilers run natively, with libraries where they look."""
        inside = {part: Path("/") / part for part in _OVER_THE_MACHINE}
        return {Path("/amd64"): self.tree} | {place: self.tree / part for part, place in inside.items()}

    def core(self, instance_type: str) -> Core:
        """What a machine of this type is emulated as.

        Raises:
            EmulationError: the type's core is not known, or qemu has neither it nor one near to it.
        """
        real = instance_types.core_of(instance_type)
        if not real:
            known = "known are Graviton to Graviton5"
            raise EmulationError(f"{instance_type}: nothing is known of its core; {known}")
        for core in (real, *_NEAREST.get(real, ())):
            if core in self.cores:
                return Core(real, core)
        raise EmulationError(
            f"{instance_type} has {real} cores, and qemu {self.version} emulates neither them nor any that "
            f"are near to them; it has {', '.join(self.cores)}"
        )


class Processor(NamedTuple):
    """What an emulated machine runs on."""

    core: Core
    emulator: Emulator


class Emulation:
    """What one region has for machines of another architecture than the host's."""

    def __init__(self, settings: Settings, wrap: trees.Wrap = list) -> None:
        self.settings = settings
        self._wrap = wrap
        self._interpreters = binfmt.Interpreters(settings.runtime_root)

    def check(self) -> str:
        """Why this host cannot emulate, empty if it can."""
        return binfmt.check(binfmt.FILESYSTEMS.read_text())

    def prepare(self, machine: Machine, step: Step = _unsaid) -> Processor:
        """Make all that this machine needs, and say what it runs on.

        Raises:
            EmulationError, TreeError, BinfmtError: that cannot be; nothing half made stays.
        """
        emulator = self.start(step)
        core = emulator.core(machine.instance_type)
        if any(layer.parent.parent == self.settings.bases and not layer.exists() for layer in machine.layers):
            self.make_base(step)
        return Processor(core, emulator)

    def start(self, step: Step = _unsaid) -> Emulator:
        """Get qemu, once, and let the kernel know it until the region ends."""
        emulator = _find(self.settings)
        if not emulator:
            with step("get qemu, compilers and Python for arm64 (once, a minute)"):
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


def clean(upper: Path) -> None:
    """Take out of a machine's own layer what its emulation left there: an image of it must not show that.

    These are empty directories that were mounted on, and what boot.sh writes below /etc.
    """
    (upper / "etc/sudoers.d/emulated").unlink(missing_ok=True)
    for part in ("amd64", *_OVER_THE_MACHINE):
        with contextlib.suppress(OSError):  # not there, or the machine's own by now
            (upper / part).rmdir()
    environment = upper / "etc/environment"
    if environment.is_file() and not environment.is_symlink():
        lines = environment.read_text().splitlines(keepends=True)
        environment.write_text("".join(line for line in lines if not line.startswith("QEMU_CPU=")))


def ensure_emulator(
    settings: Settings, *, wrap: trees.Wrap = list, keyring: Path = trees.KEYRING
) -> Emulator:
    """qemu of the base's Debian release, whatever the host's is: older ones know fewer cores.

    Raises:
        TreeError: it could not be had.
    """
    place = _place(settings)
    leave_out = (f"--dpkgopt=path-exclude={pattern}" for pattern in _LEAVE_OUT)
    trees.make(
        place,
        "the tree with qemu",
        [
            "--variant=extract",
            f"--include={','.join(_PACKAGES)}",
            *leave_out,
            f"--dpkgopt=path-include=/{_QEMU}",
        ],
        finish=lambda building: _finish(building, place),
        wrap=wrap,
        keyring=keyring,
    )
    return _read(place)


def _place(settings: Settings) -> Path:
    inputs = {
        "packages": _PACKAGES,
        "left out": _LEAVE_OUT,
        "library": _LIBRARY.read_text(),
        "site": _SITE.read_text(),
    }
    return settings.cache / "emulator" / trees.key_of(inputs)


def _find(settings: Settings) -> Emulator | None:
    place = _place(settings)
    return _read(place) if place.exists() else None


def _read(place: Path) -> Emulator:
    return Emulator.model_validate_json((place / "emulator.json").read_text())


def _finish(building: Path, place: Path) -> None:
    tree = building / "tree"
    shutil.copy(_LIBRARY, tree / "tmp/emulated.c")
    compile_ = [f"/{_COMPILER}", "-O2", "-shared", "-fPIC", "-o", "/tmp/emulated.so", "/tmp/emulated.c"]
    _said("chroot", tree, *compile_)
    (tree / "tmp/emulated.so").rename(building / "emulated.so")
    _finish_python(tree)
    version, cores = _describe(tree / _QEMU)
    made = Emulator(tree=place / "tree", library=place / "emulated.so", version=version, cores=cores)
    (building / "emulator.json").write_text(made.model_dump_json(indent=2))


def _finish_python(tree: Path) -> None:
    """Machines have the tree read-only, so its bytecode is compiled here."""
    (library,) = tree.glob("usr/lib/python3.*")
    site = library / "sitecustomize.py"
    site.unlink(missing_ok=True)  # a link to a file that would be the machine's own
    shutil.copy(_SITE, site)
    (tree / "etc/apt").mkdir(parents=True, exist_ok=True)
    (tree / "etc/apt/machine.conf").write_text(
        'APT::Architecture "arm64";\nAPT::Architectures { "arm64"; };\n'
    )
    _said("chroot", tree, "/usr/bin/python3", "-m", "compileall", "-q", f"/{library.relative_to(tree)}")


def _describe(program: Path) -> tuple[str, tuple[str, ...]]:
    """Its version, and the cores it emulates."""
    version = _said(program, "--version")
    found = re.search(r"version (\S+)", version)
    # qemu ends this with a status of failure
    said = subprocess.run([program, "-cpu", "help"], capture_output=True, text=True, check=False).stdout
    return found[1] if found else version, tuple(_cores(said.splitlines()))


def _cores(lines: Iterable[str]) -> Iterable[str]:
    """The names in ``qemu -cpu help``: a headline, then one a line."""
    return (line.strip() for line in lines if line.startswith(" ") and line.strip())


def _said(*command: str | Path) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        words = " ".join(map(str, command))
        raise EmulationError(f"`{words}` failed: {(result.stderr or result.stdout).strip()}")
    return result.stdout
