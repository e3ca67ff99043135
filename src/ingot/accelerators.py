"""GPUs and Neuron chips: what an instance type has of them (``files/accelerators.yml``).

How many there are comes from ``files/instance-types.csv``: a new size of a known family is one line there.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import Field, model_validator

from ingot import instance_types
from ingot.checkout import ROOT
from ingot.table import Strict, read

TABLE = ROOT / "files" / "accelerators.yml"
MIB_PER_GIB = 1024

Generation = Literal["turing", "ampere", "ada", "hopper", "blackwell"]
Families = Annotated[list[Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]], Field(min_length=1)]
Positive = Annotated[int, Field(gt=0)]
Row = TypeVar("Row", "GpuRow", "NeuronRow")


class _Device(Strict):
    name: Annotated[str, Field(min_length=1)]
    memory_mib: Positive

    @property
    def memory_gib(self) -> float:
        """Of one device."""
        return self.memory_mib / MIB_PER_GIB

    @property
    def memory_bytes(self) -> int:
        """Of one device."""
        return self.memory_mib << 20


class _Gpu(_Device):
    generation: Generation
    compute_capability: Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]$")]
    bandwidth_gb_s: Positive
    nvswitch: bool


class _Neuron(_Device):
    cores: Positive  # of one chip
    bandwidth_gib_s: Positive
    tensor_parallel: Annotated[list[Positive], Field(min_length=1)]


class GpuRow(_Gpu):
    """One GPU of the table. ``nvswitch``: whether several of them are joined by one."""

    families: Families


class NeuronRow(_Neuron):
    """One Neuron chip of the table."""

    families: Families


class Unsupported(Strict):
    """Families whose accelerator no image is for, and why."""

    families: Families
    why: Annotated[str, Field(min_length=1)]


class Table(Strict):
    """The whole file."""

    gpus: dict[str, GpuRow]
    neuron: dict[str, NeuronRow]
    unsupported: list[Unsupported]

    @model_validator(mode="after")
    def _a_family_has_one_row(self) -> Self:
        rows: list[GpuRow | NeuronRow | Unsupported] = [
            *self.gpus.values(),
            *self.neuron.values(),
            *self.unsupported,
        ]
        families = [family for row in rows for family in row.families]
        if doubled := sorted({family for family in families if families.count(family) > 1}):
            raise ValueError(f"families listed twice: {', '.join(doubled)}")
        return self


class Gpu(_Gpu):
    """The GPUs of one instance type, all alike. Memory and bandwidth are each one's.

    ``nvswitch``: whether this very type has one, so that it needs the fabric manager.
    """

    count: Positive


class Neuron(_Neuron):
    """The Neuron chips of one instance type. Memory, cores and bandwidth are each one's."""

    count: Positive

    @property
    def total_cores(self) -> int:
        return self.count * self.cores


@cache
def load(path: Path = TABLE) -> Table:
    """Read the table."""
    return read(path, Table)


def gpu_of(instance_type: str) -> Gpu | None:
    """Its GPUs; None where it has none, or none that is supported, or where the type is not known."""
    row, count = _row(load().gpus, instance_type), _count(instance_type)
    if row is None or not count:
        return None
    return Gpu(
        **row.model_dump(exclude={"families", "nvswitch"}), nvswitch=row.nvswitch and count > 1, count=count
    )


def neuron_of(instance_type: str) -> Neuron | None:
    """Its Neuron chips; None where it has none, or none that is supported, or where the type is not known."""
    row, count = _row(load().neuron, instance_type), _count(instance_type)
    if row is None or not count:
        return None
    return Neuron(**row.model_dump(exclude={"families"}), count=count)


def unsupported(instance_type: str) -> str:
    """Why no image is for the accelerator of a type, known or not; empty where nothing is said against it."""
    family = instance_types.family(instance_type)
    return next((row.why for row in load().unsupported if family in row.families), "")


def types_of(name: str) -> list[str]:
    """The types of the table with a device of this name (``H100``), the smallest first."""
    known = instance_types.load()
    found = [kind for kind in known if (device := gpu_of(kind) or neuron_of(kind)) and device.name == name]
    return sorted(found, key=lambda kind: (known[kind].accelerator_count, known[kind].vcpu))


def _row(rows: dict[str, Row], instance_type: str) -> Row | None:
    family = instance_types.family(instance_type)
    return next((row for row in rows.values() if family in row.families), None)


def _count(instance_type: str) -> int:
    known = instance_types.load().get(instance_type)
    return known.accelerator_count if known else 0
