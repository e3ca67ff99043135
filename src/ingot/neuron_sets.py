"""The table of Neuron SDK releases, ``files/neuron-sets.yml``: its schema, and what a role needs of a set.

A set is frozen, and a chip has a last one (``limits``): what is newer does not serve on it any more.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from ingot import accelerators
from ingot.checkout import ROOT
from ingot.locked_sets import PackageName, Packages, Reason, Repository, System, Url
from ingot.table import Strict, TableError, check, read

TABLE = ROOT / "files" / "neuron-sets.yml"

#: Packages whose version is the module's own.
SAME_VERSION = ("aws-neuronx-dkms",)


Dotted = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)+$")]
Series = Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+$")]


def number(version: str) -> tuple[int, ...]:
    """A version as it is compared."""
    return tuple(int(part) for part in re.findall(r"[0-9]+", version))


class Kernels(Strict):
    """Series of kernels that the vendor says the driver builds on."""

    oldest: Series
    newest: Series
    source: Url

    @model_validator(mode="after")
    def _in_order(self) -> Kernels:
        if number(self.oldest) > number(self.newest):
            raise ValueError(f"oldest {self.oldest} is newer than newest {self.newest}")
        return self

    def have(self, release: str) -> bool:
        """Whether a kernel, as ``uname -r`` says it, is of one of them."""
        return number(self.oldest) <= number(release)[:2] <= number(self.newest)

    def __str__(self) -> str:
        return f"{self.oldest} to {self.newest}"


class Parts(Strict):
    """Packages by what they are for."""

    driver: Annotated[Packages, Field(min_length=1)]
    runtime: Annotated[Packages, Field(min_length=1)]
    collectives: Annotated[Packages, Field(min_length=1)]
    tools: Annotated[Packages, Field(min_length=1)]

    @property
    def all(self) -> Packages:
        return {name: version for part in dict(self).values() for name, version in part.items()}


class Python(Strict):
    """What the engine's own environment holds."""

    versions: Annotated[list[Series], Field(min_length=1)]
    index: Url
    packages: Annotated[Packages, Field(min_length=1)]


class Plugin(Strict):
    """vLLM's plugin, and the one vLLM that it goes with."""

    repository: Url
    tag: Dotted
    vllm: Dotted


class NeuronSet(Strict):
    """Driver, runtime, tools and Python packages of one release of the SDK."""

    description: Annotated[str, Field(min_length=1, max_length=120)]
    sdk: Dotted
    system: System
    devices: Annotated[list[str], Field(min_length=1)]
    driver: Dotted
    dkms: PackageName
    module: PackageName
    kernels: Kernels
    packages: Parts
    repository: Repository
    python: Python
    plugin: Plugin
    unproved: Reason

    @model_validator(mode="after")
    def _one_version(self) -> NeuronSet:
        for name in SAME_VERSION:
            if (version := self.packages.driver.get(name, self.driver)).partition("-")[0] != self.driver:
                raise ValueError(
                    f"{name} is {version}, and the driver {self.driver}: they must be one version"
                )
        known = {row.name for row in accelerators.load().neuron.values()}
        if strange := sorted(set(self.devices) - known):
            raise ValueError(f"devices: files/accelerators.yml has no {', '.join(strange)}")
        return self

    @property
    def parts(self) -> dict[str, str]:
        """What a limit speaks about."""
        return {
            "sdk": self.sdk,
            "driver": self.driver,
            "plugin": self.plugin.tag,
            "vllm": self.plugin.vllm,
        }


class Limit(Strict):
    """The last release for a chip."""

    sdk: Dotted
    driver: Dotted
    plugin: Dotted
    vllm: Dotted
    why: Reason

    def exceeded(self, parts: dict[str, str]) -> list[str]:
        """The parts that are newer, in words."""
        return [
            f"{part} {version}"
            for part, version in parts.items()
            if number(version) > number(getattr(self, part))
        ]

    def __str__(self) -> str:
        return f"SDK {self.sdk}, driver {self.driver}, plugin {self.plugin} and vLLM {self.vllm}"


class Table(Strict):
    """All sets by name, the limits of each chip, and names that packages had before."""

    sets: Annotated[dict[Annotated[str, Field(pattern=r"^[a-z0-9.-]+$")], NeuronSet], Field(min_length=1)]
    limits: dict[str, Limit]
    retired: dict[PackageName, PackageName]

    @model_validator(mode="after")
    def _whole(self) -> Table:
        for name, one in self.sets.items():
            for package in [*one.packages.all, *one.python.packages]:
                if package in self.retired:
                    raise ValueError(f"{name}: {package} is now called {self.retired[package]}")
            if without := sorted(set(one.devices) - set(self.limits)):
                raise ValueError(f"{name}: limits has no {', '.join(without)}")
        return self

    def get(self, name: str) -> NeuronSet:
        """Look one up.

        Raises:
            TableError: there is none of that name.
        """
        if name not in self.sets:
            raise TableError(f"there is no Neuron set {name!r}", f"Name one of {', '.join(self.sets)}")
        return self.sets[name]


def load(path: Path = TABLE) -> Table:
    """Read the table, the repository's own unless another is given.

    Raises:
        TableError: it cannot be read, or has a field that is unknown, missing or wrong; each is named.
    """
    return read(path, Table)


def given(sets: object) -> Table:
    """The same of what the role's variable holds, with the repository's own limits.

    Raises:
        TableError: as for ``load``.
    """
    own = load()
    data = {"sets": sets, "limits": own.limits, "retired": own.retired}
    return check(data, Table, "neuron_sets", "Mend it; the head of files/neuron-sets.yml explains each field")


def repository_of(chosen: NeuronSet, instead: object) -> Repository:
    """Where a set's packages come from: from the vendor, or from what is given instead.

    Raises:
        TableError: what is given has a field that is unknown, missing or wrong.
    """
    if not instead:
        return chosen.repository
    do = (
        "Give uri, suite, components, and keyring or key with fingerprint, or leave neuron_repository empty"
        " for the vendor's own"
    )
    return check(instead, Repository, "neuron_repository", do)


def plan(table: Table, name: str, instead: object) -> dict[str, Any]:
    """What the role does for a set, as plain data."""
    chosen = table.get(name)
    return {
        **chosen.model_dump(include={"sdk", "devices", "driver", "dkms", "module", "unproved"}),
        "packages": chosen.packages.all,
        "index": chosen.python.index,
        "repository": repository_of(chosen, instead).model_dump(),
    }
