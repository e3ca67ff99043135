"""What every table of locked sets is asked: whether it has the set, for this type and machine."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from ingot import accelerators, instance_types
from ingot.locked_sets import System
from ingot.preflight.refusal import Refusal


def check_name(refusal: str, name: str, known: Iterable[str], table: str) -> list[Refusal]:
    """The table has a set of that name."""
    there = list(known)
    if name in there:
        return []
    near = difflib.get_close_matches(name, there, n=1, cutoff=0.5)
    return [
        Refusal(
            refusal,
            f"{table} has no set {name!r}",
            f"Write {near[0]!r} if that is meant" if near else f"Name one of {', '.join(there)}",
        )
    ]


def check_without(kind: str, variable: str) -> list[Refusal]:
    """A type that has none of the devices is known, and has no accelerator that nothing here is for."""
    if why := accelerators.unsupported(kind):
        return [Refusal("unsupported-accelerator", f"{kind}: {why}", "Choose another instance type")]
    try:
        instance_types.get(kind)
    except instance_types.UnknownInstanceType as error:
        return [
            Refusal(
                "unknown-instance-type",
                str(error),
                f"Correct {variable}; files/instance-types.csv has those that are known",
            )
        ]
    return []


def check_system(
    refusal: str, host: str, system: System, name: str, sets: Mapping[str, System], variable: str
) -> list[Refusal]:
    """The packages are made for the machine's distribution; ``sets`` are those of each set."""
    what = refusal.partition("-set-")[0]
    if sets[name] == system:
        return []
    fit = [other for other, one in sets.items() if one == system]
    return [
        Refusal(
            refusal,
            f"{what} set {name} is for {sets[name]}, and {host} is {system}",
            f"Set {variable} to {' or '.join(fit)}" if fit else f"Start from {sets[name]}",
        )
    ]


def check_boot(host: str, installed: Iterable[str], variable: str, kernel: str, works: str) -> list[Refusal]:
    """There is a kernel to compile for, or one is to be installed (``kernel``)."""
    if list(installed) or kernel:
        return []
    return [
        Refusal(
            "no-kernel",
            f"{host} has no kernel in /boot, so there is none to compile the driver for",
            f"Set {variable} to the one to install{f', such as {works}' if works else ''}",
        )
    ]
