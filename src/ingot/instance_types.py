"""EC2 instance types: architecture, size and list price (``files/instance-types.csv``), and their cores."""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ingot.checkout import ROOT

TABLE = ROOT / "files" / "instance-types.csv"
CORES = ROOT / "files" / "cores.yml"

PRICE_BASIS = "on-demand Linux in us-east-1"
"""What the prices of the table are; whoever prints one says so."""


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
    efa_interfaces: int

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
                efa_interfaces=int(row["efa_interfaces"] or 0),
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


@cache
def _cores() -> Mapping[str, Any]:
    known: dict[str, Any] = yaml.safe_load(CORES.read_text(encoding="utf-8"))
    return known


def core_of(name: str) -> str:
    """The core of a type, whether the table has it or not; empty where nothing is known of it."""
    families = _cores()["families"].items()
    return next((core for pattern, core in families if re.fullmatch(pattern, family(name))), "")


def runs(core: str, compiled_for: str) -> bool:
    """Whether ``core`` has every instruction that a program for another core may use."""
    lines = [line for line in _cores()["lines"] if compiled_for in line]
    return any(core in line[line.index(compiled_for) :] for line in lines)


def families_for(compiled_for: str) -> list[str]:
    """The families of the table that run what was compiled for a core."""
    return sorted({family(name) for name in load() if runs(core_of(name), compiled_for)})
