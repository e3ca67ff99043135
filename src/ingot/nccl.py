"""NCCL and EFA: what an engine's environment must have, and which set of libraries is sound.

``files/nccl.yml`` has the facts. GPUs of one node find each other by NVLink, PCIe or shared memory, for which
nothing has to be set; only an engine that spreads over several nodes needs the network.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ingot import accelerators, instance_types
from ingot.checkout import ROOT
from ingot.table import Strict, read

TABLE = ROOT / "files" / "nccl.yml"

Version = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)+(amzn[0-9.]+)?$")]
Text = Annotated[str, Field(min_length=1)]
Where = Literal["any", "nvswitch", "gpus", "efa"]

# Every interface but those that no other node is behind.
INTERFACES = "^lo,docker"


class Stack(Strict):
    """Libraries that go together."""

    efa_installer: Version
    libfabric: Version
    aws_ofi_nccl: Version
    nccl: Version


class Installer(Strict):
    """What a release of the EFA installer brings; only one with sum and packages can be installed."""

    libfabric: Version
    aws_ofi_nccl: Version
    efa_driver: Version
    rdma_core: Version
    sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    packages: dict[str, Text] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _packages_are_of_these_versions(self) -> Self:
        brought = {
            "libfabric1-aws": self.libfabric,
            "libnccl-ofi": self.aws_ofi_nccl,
            "rdma-core": self.rdma_core,
        }
        for name, version in brought.items():
            packaged = self.packages.get(name, version)
            if packaged.partition("-")[0] != version:
                raise ValueError(f"packages: {name} is {packaged}, and the installer brings {version}")
        return self


class Plugin(Strict):
    """What a release of aws-ofi-nccl was tested with."""

    libfabric: Annotated[list[Version], Field(min_length=1)]
    nccl: Annotated[list[Version], Field(min_length=1)]


class Refused(Strict):
    """A value that must not be set, on instance types that have ``where``."""

    value: Text
    where: Where
    why: Text


class Variable(Strict):
    """What a variable does, and what is done about it here."""

    name: Text
    does: Text
    here: Literal["set", "left", "never"]
    why: Text
    source: Text
    refused: Refused | None = None


class Table(Strict):
    """The whole file."""

    stack: Stack
    installers: dict[Version, Installer]
    plugins: dict[Version, Plugin]
    variables: list[Variable]

    @model_validator(mode="after")
    def _the_pinned_set_is_sound(self) -> Self:
        if wrong := problems(self.stack, self):
            raise ValueError("stack: " + "; ".join(wrong))
        return self


@cache
def load(path: Path = TABLE) -> Table:
    """Read the table."""
    return read(path, Table)


def problems(stack: Stack, table: Table) -> list[str]:
    """What is wrong with a set of libraries: the installer brings others, or nobody tested them together."""
    installer = table.installers.get(stack.efa_installer)
    if installer is None:
        known = ", ".join(table.installers)
        return [f"what EFA installer {stack.efa_installer} brings is not known (known: {known})"]
    wrong = [
        f"EFA installer {stack.efa_installer} brings {name} {brought}, not {said}"
        for name, brought, said in (
            ("libfabric", installer.libfabric, stack.libfabric),
            ("aws-ofi-nccl", installer.aws_ofi_nccl, stack.aws_ofi_nccl),
        )
        if brought != said
    ]
    plugin = table.plugins.get(stack.aws_ofi_nccl)
    if plugin is None:
        known = ", ".join(table.plugins)
        return [
            *wrong,
            f"what aws-ofi-nccl {stack.aws_ofi_nccl} was tested with is not known (known: {known})",
        ]
    return wrong + [
        f"aws-ofi-nccl {stack.aws_ofi_nccl} was tested with {name} {', '.join(tested)}, not {said}"
        for name, tested, said in (
            ("libfabric", plugin.libfabric, stack.libfabric),
            ("NCCL", plugin.nccl, stack.nccl),
        )
        if said not in tested
    ]


@dataclass(frozen=True)
class Network:
    """By what the GPUs of one engine talk, within a node and across nodes, and what its environment needs."""

    within: Literal["alone", "pcie", "nvswitch"]
    across: Literal["nothing", "tcp", "efa"]
    environment: dict[str, str]


def network(instance_type: str, *, nodes: int, efa_interfaces: int, address: str, interface: str) -> Network:
    """For an engine that spreads over ``nodes`` nodes of one type.

    On one node nothing is set, whatever joins its GPUs. EFA needs nothing either: NCCL finds the plugin, the
    plugin the interfaces, and it tells NCCL where they are.

    Args:
        instance_type: EC2's name.
        nodes: how many the engine spreads over.
        efa_interfaces: how many this node has.
        address: this node's private one.
        interface: the name of the interface that has it.
    """
    gpu = accelerators.gpu_of(instance_type)
    within: Literal["alone", "pcie", "nvswitch"] = "alone"
    if gpu and gpu.count > 1:
        within = "nvswitch" if gpu.nvswitch else "pcie"
    if nodes < 2:
        return Network(within, "nothing", {})
    across: Literal["tcp", "efa"] = "efa" if efa_interfaces and has(instance_type, "efa") else "tcp"
    environment = {
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": INTERFACES,
        "VLLM_HOST_IP": address,
    }
    return Network(within, across, environment)


def has(instance_type: str, where: Where) -> bool:
    """Whether an instance type has what a refusal is about."""
    gpu = accelerators.gpu_of(instance_type)
    kind = instance_types.load().get(instance_type)
    return {
        "any": True,
        "nvswitch": gpu is not None and gpu.nvswitch,
        "gpus": gpu is not None and gpu.count > 1,
        "efa": kind is not None and kind.efa_interfaces > 0,
    }[where]


def variable(name: str) -> Variable | None:
    """What is known of a variable. All that begin with ``RDMAV_`` are alike."""
    alike = "RDMAV_FORK_SAFE" if name.startswith("RDMAV_") else name
    return next((one for one in load().variables if alike in one.name.split(", ")), None)


def documented() -> str:
    """The tables of docs/nccl.md."""
    table = load()
    lines = ["| variable | what it does | here | why | source |", "|---|---|---|---|---|"]
    for one in table.variables:
        names = ", ".join(f"`{name}`" for name in one.name.split(", "))
        here = f"{one.here}, and refused" if one.refused else one.here
        lines.append(f"| {names} | {one.does} | {here} | {one.why} | {one.source} |")
    lines += [
        "",
        "| EFA installer | EFA driver | rdma-core | libfabric | aws-ofi-nccl | tested with NCCL | |",
        "|---|---|---|---|---|---|---|",
    ]
    for version, installer in table.installers.items():
        plugin = table.plugins.get(installer.aws_ofi_nccl)
        tested = ", ".join(plugin.nccl) if plugin else "not known"
        pinned = f"pinned, with NCCL {table.stack.nccl}" if version == table.stack.efa_installer else ""
        lines.append(
            f"| {version} | {installer.efa_driver} | {installer.rdma_core} | {installer.libfabric}"
            f" | {installer.aws_ofi_nccl} | {tested} | {pinned} |"
        )
    return "\n".join(lines)
