"""EC2 instance types: architecture, size, price (``files/instance-types.csv``) and core."""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ingot.checkout import ROOT

TABLE = ROOT / "files" / "instance-types.csv"

PRICE_BASIS = "on-demand Linux in us-east-1"
"""What the prices of the table are; whoever prints one says so."""

# What programs of a family are compiled for at best: Arm's name of the core, or the level of x86-64. Sources:
# github.com/aws/aws-graviton-getting-started (Graviton to Graviton4), and the processors that
# docs.aws.amazon.com/ec2/latest/instancetypes/ names for the others. A family that is not here is not judged.
_CORES = (
    ("a1", "cortex-a72"),
    ("t4g|g5g|x2gd|i4g|im4gn|is4gen|[a-z]+6g[a-z]*", "neoverse-n1"),
    ("[a-z]+7g[a-z]*", "neoverse-v1"),
    ("[a-z]+8g[a-z]*", "neoverse-v2"),
    ("[a-z]+9g[a-z]*", "neoverse-v3"),
    ("t3a|[cmr]6a", "x86-64-v3"),  # AMD's first with AVX-512 is Zen 4
    ("t3|[cmr]5|[cmr][678]i|[cmr]7a", "x86-64-v4"),
)
# Each has all that those before it have.
_LINES = (
    ("cortex-a72", "neoverse-n1", "neoverse-v1", "neoverse-v2", "neoverse-v3"),
    ("x86-64-v3", "x86-64-v4"),
)


@dataclass(frozen=True)
class InstanceType:
    """One row of the table. ``usd_hour`` is None where no source gave a price."""

    name: str
    arch: str
    vcpu: int
    memory_mib: int
    accelerator: str | None
    accelerator_count: int
    usd_hour: float | None

    @property
    def memory_bytes(self) -> int:
        return self.memory_mib << 20


class UnknownInstanceType(KeyError):  # noqa: N818  (reads as what it says: the type is unknown)
    """Not in the table; ``str()`` is a sentence that names the nearest known types."""

    def __init__(self, name: str, near: list[str]) -> None:
        super().__init__(name)
        self.name = name
        self.near = near

    def __str__(self) -> str:
        hint = f"; the nearest known are {', '.join(self.near)}" if self.near else ""
        return f"unknown instance type {self.name!r}{hint}"


@cache
def load(table: Path = TABLE) -> Mapping[str, InstanceType]:
    """Read the table, keyed by name."""
    with table.open(encoding="utf-8") as stream:
        rows = csv.DictReader(line for line in stream if not line.startswith("#"))
        return {
            row["instance_type"]: InstanceType(
                name=row["instance_type"],
                arch=row["arch"],
                vcpu=int(row["vcpu"]),
                memory_mib=int(row["memory_mib"]),
                accelerator=row["accelerator"] or None,
                accelerator_count=int(row["accelerator_count"] or 0),
                usd_hour=float(row["usd_hour"]) if row["usd_hour"] else None,
            )
            for row in rows
        }


def get(name: str) -> InstanceType:
    """Look one up.

    Raises:
        UnknownInstanceType: it is not in the table.
    """
    table = load()
    try:
        return table[name]
    except KeyError:
        raise UnknownInstanceType(name, difflib.get_close_matches(name, table, n=3, cutoff=0.6)) from None


def family(name: str) -> str:
    """The part of a type's name that says what it is made of."""
    return name.partition(".")[0]


def core_of(name: str) -> str:
    """The core of a type, whether the table has it or not; empty where nothing is known of it."""
    return next((core for pattern, core in _CORES if re.fullmatch(pattern, family(name))), "")


def runs(core: str, compiled_for: str) -> bool:
    """Whether ``core`` has every instruction that a program for another core may use."""
    return any(core in line[line.index(compiled_for) :] for line in _LINES if compiled_for in line)


def families_for(compiled_for: str) -> list[str]:
    """The families of the table that run what was compiled for a core."""
    return sorted({family(name) for name in load() if runs(core_of(name), compiled_for)})
