"""The table of NVIDIA driver sets, ``files/driver-sets.yml``: its schema, and what a role needs of a set.

What is pinned and proved is the *pair* of driver and kernel. A set without a pair says why (``unproved``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from ingot import accelerators
from ingot.checkout import ROOT
from ingot.locked_sets import PackageName, Packages, Reason, Repository, System, Url, Version
from ingot.table import Strict, TableError, check, read

TABLE = ROOT / "files" / "driver-sets.yml"
PATCHES = ROOT / "roles" / "nvidia" / "files" / "patches"

#: GPUs whose NVSwitch is managed by a subnet manager, beside the fabric manager.
SUBNETTED = frozenset({"B200"})

#: Packages that are of the driver's own version: of another, they do not work with the module at all.
SAME_VERSION = ("module", "library", "firmware", "persistence", "fabric_manager", "nscq")


def _regex(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"no regular expression: {error}") from error
    return value


Cuda = Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+$")]


class Kernel(Strict):
    """One half of a pair: the kernel's release, and the version of its packages."""

    release: Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+[-+][A-Za-z0-9.+-]+$")]
    version: Version


class Patch(Strict):
    """A change to the module's sources that DKMS applies for the kernels that need it."""

    file: Annotated[str, Field(pattern=r"^[a-z0-9-]+\.patch$")]
    upstream: Url
    why: Reason
    kernels: Annotated[str, Field(pattern=r"^\^"), AfterValidator(_regex)]

    def concerns(self, release: str) -> bool:
        return re.match(self.kernels, release) is not None


class Parts(Strict):
    """Packages by what they are for. A part that the distribution has not is left out."""

    module: Annotated[Packages, Field(min_length=1)]
    library: Annotated[Packages, Field(min_length=1)]
    firmware: Annotated[Packages, Field(min_length=1)]
    persistence: Annotated[Packages, Field(min_length=1)]
    fabric_manager: Packages = Field(default_factory=dict)
    nscq: Packages = Field(default_factory=dict)
    subnet_manager: Packages = Field(default_factory=dict)
    dcgm: Packages = Field(default_factory=dict)
    container_toolkit: Packages = Field(default_factory=dict)

    @property
    def all(self) -> Packages:
        return {name: version for part in dict(self).values() for name, version in part.items()}


class DriverSet(Strict):
    """Driver, library, daemons and tools of one version, and the kernels that they were proved with."""

    description: Annotated[str, Field(min_length=1, max_length=120)]
    system: System
    branch: Annotated[int, Field(ge=500)]
    driver: Annotated[str, Field(pattern=r"^[0-9]{3}(\.[0-9]+){1,2}$")]
    cuda: Cuda
    gpus: Annotated[list[str], Field(min_length=1)]
    dkms: PackageName
    module: PackageName
    packages: Parts
    repository: Repository
    kernels: list[Kernel] = Field(default_factory=list)
    patches: dict[str, Patch] = Field(default_factory=dict)
    unproved: Annotated[str, Field(pattern=r"^(.{20,})?$")] = ""

    @model_validator(mode="after")
    def _one_version(self) -> DriverSet:
        if int(self.driver.partition(".")[0]) != self.branch:
            raise ValueError(f"driver {self.driver} is not of branch {self.branch}")
        for part in SAME_VERSION:
            for name, version in getattr(self.packages, part).items():
                if not re.match(rf"([0-9]+:)?{re.escape(self.driver)}-", version):
                    raise ValueError(
                        f"{name} is {version}, and the driver {self.driver}: they must be one version"
                    )
        return self

    @model_validator(mode="after")
    def _whole(self) -> DriverSet:
        known = {row.name for row in accelerators.load().gpus.values()}
        if strange := sorted(set(self.gpus) - known):
            raise ValueError(f"gpus: files/accelerators.yml has no {', '.join(strange)}")
        if (wanting := sorted(SUBNETTED & set(self.gpus))) and not self.packages.subnet_manager:
            raise ValueError(f"{', '.join(wanting)} needs a subnet_manager")
        if bool(self.kernels) == bool(self.unproved):
            raise ValueError("give kernels that it was proved with, or say in unproved why there are none")
        for name, patch in self.patches.items():
            if not any(patch.concerns(kernel.release) for kernel in self.kernels):
                raise ValueError(f"patch {name} is for none of its kernels: it was never tried")
        return self

    @property
    def releases(self) -> list[str]:
        """The kernels that it was proved with, in the table's order: the newest first."""
        return [kernel.release for kernel in self.kernels]

    def pair(self, release: str) -> str:
        """A pair of driver and kernel, in words."""
        applied = [name for name, patch in self.patches.items() if patch.concerns(release)]
        return f"{self.driver} with kernel {release}" + (f" (patch {', '.join(applied)})" if applied else "")


class Table(Strict):
    """All sets by name."""

    sets: Annotated[dict[Annotated[str, Field(pattern=r"^[a-z0-9-]+$")], DriverSet], Field(min_length=1)]

    def get(self, name: str) -> DriverSet:
        """Look one up.

        Raises:
            TableError: there is none of that name.
        """
        if name not in self.sets:
            raise TableError(f"there is no driver set {name!r}", f"Name one of {', '.join(self.sets)}")
        return self.sets[name]

    def other_pairs(self, name: str, release: str) -> list[str]:
        """The pairs that work on the distribution of a set, but for one of that set."""
        return [
            f"{other}: {one.pair(candidate)}"
            for other, one in self.sets.items()
            if one.system == self.sets[name].system
            for candidate in one.releases
            if (other, candidate) != (name, release)
        ]


def load(path: Path = TABLE) -> Table:
    """Read the table, the repository's own unless another is given.

    Raises:
        TableError: it cannot be read, or has a field that is unknown, missing or wrong; each is named.
    """
    return read(path, Table)


def given(sets: object) -> Table:
    """The same of what the role's variable holds.

    Raises:
        TableError: as for ``load``.
    """
    do = "Mend it; the head of files/driver-sets.yml explains each field"
    return check({"sets": sets}, Table, "nvidia_sets", do)


def plan(table: Table, name: str, releases: Iterable[str]) -> dict[str, Any]:
    """What the role does for a set on a machine with these kernels, as plain data."""
    chosen = table.get(name)
    versions = {kernel.release: kernel.version for kernel in chosen.kernels}
    kernels = {
        f"linux-{part}-{release}": versions[release]
        for release in dict.fromkeys(releases)
        if release in versions
        for part in ("image", "headers")
    }
    return {
        **chosen.model_dump(include={"driver", "branch", "dkms", "module", "repository", "unproved"}),
        "packages": chosen.packages.all,
        "kernels": kernels,
        "patches": [one.model_dump(include={"file", "kernels"}) for one in chosen.patches.values()],
        "fabric_manager": bool(chosen.packages.fabric_manager),
        "container_toolkit": bool(chosen.packages.container_toolkit),
        "pairs": {release: table.other_pairs(name, release) for release in releases},
    }
