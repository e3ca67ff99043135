"""What speaks against a Neuron SDK: for a type's chips, beyond a chip's last release, for a machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ingot import accelerators, neuron_lock, neuron_sets
from ingot.locked_sets import System
from ingot.neuron_sets import Table
from ingot.preflight import sets
from ingot.preflight.refusal import Refusal
from ingot.table import TableError

TYPES = "neuron_instance_types"


def refusals(variables: Mapping[str, Any], builder: str = "") -> list[Refusal]:
    """What is known before there is a machine; ``builder`` is the type that the image is baked on.

    ``variables`` are those of the role neuron. One that is not set yet is not judged.
    """
    table, found = read(variables.get("neuron_sets"))
    name = str(variables.get("neuron_set", ""))
    if found or not name:
        return found
    if found := sets.check_name("unknown-neuron-set", name, table.sets, "files/neuron-sets.yml"):
        return found
    named = list(variables.get(TYPES) or [])
    kernel = str(variables.get("neuron_kernel", ""))
    return [
        *check_repository(variables.get("neuron_repository"), name, table),
        *check_limits(name, table),
        *(check_type(builder, name, table) if builder and builder not in named else []),
        *(refusal for kind in dict.fromkeys(named) for refusal in check_type(kind, name, table, served=True)),
        *(check_kernels([kernel], name, table) if kernel else []),
    ]


def machine_refusals(
    variables: Mapping[str, Any],
    host: str,
    system: Mapping[str, str],
    installed: Sequence[str],
    packages: Iterable[str],
    python: str,
) -> list[Refusal]:
    """The same once there is a machine: with its distribution, kernels, packages, and the engine's Python."""
    if found := refusals(variables):
        return found
    table, _ = read(variables["neuron_sets"])
    name = str(variables["neuron_set"])
    kernel = str(variables["neuron_kernel"])
    systems = {other: one.system for other, one in table.sets.items()}
    there = System.model_validate(system)
    return (
        sets.check_system("neuron-set-other-system", host, there, name, systems, "neuron_set")
        or sets.check_boot(host, installed, "neuron_kernel", kernel, "")
        or [
            *check_kernels(installed, name, table, f"{host} has kernel"),
            *check_retired(host, packages, table),
            *(check_environment(host, variables, python, table) if variables.get("neuron_lock") else []),
        ]
    )


def read(given: object) -> tuple[Table, list[Refusal]]:
    """The table that the role is given, or the repository's own, and what is wrong with it."""
    try:
        return (neuron_sets.load() if given is None else neuron_sets.given(given)), []
    except TableError as error:
        wrong = Refusal("bad-neuron-set-table", error.why, error.do)
        return Table.model_construct(sets={}, limits={}, retired={}), [wrong]


def check_repository(instead: object, name: str, table: Table) -> list[Refusal]:
    """Packages come from one that is named whole, with a key."""
    try:
        neuron_sets.repository_of(table.get(name), instead)
    except TableError as error:
        return [Refusal("bad-neuron-repository", error.why, error.do)]
    return []


def check_limits(name: str, table: Table) -> list[Refusal]:
    """Nothing of the set is newer than a chip's last release."""
    chosen = table.get(name)
    found = []
    for device in chosen.devices:
        limit = table.limits[device]
        if newer := limit.exceeded(chosen.parts):
            found.append(
                Refusal(
                    "neuron-part-too-new",
                    f"set {name} has {', '.join(newer)}, and the last for {device} is {limit}: {limit.why}",
                    f"Take {_fitting(device, table)}",
                )
            )
    return found


def check_type(kind: str, name: str, table: Table, *, served: bool = False) -> list[Refusal]:
    """The set is for the chips of an instance type.

    One without any, or only to bake on, says nothing, unless the image is to be served on it.
    """
    neuron = accelerators.neuron_of(kind)
    if neuron is None:
        if found := sets.check_without(kind, TYPES):
            return found
        if not served:
            return []
        return [
            Refusal(
                "no-accelerator",
                f"{TYPES} names {kind}, which has no Neuron chip",
                f"Take it out, or name one of {', '.join(_types(name, table))}",
            )
        ]
    if neuron.name in table.get(name).devices:
        return []
    return [
        Refusal(
            "neuron-set-lacks-chip",
            f"{kind} has {neuron.name}, and set {name} is for {', '.join(table.get(name).devices)}",
            f"Take {_fitting(neuron.name, table)}",
        )
    ]


def check_kernels(
    releases: Iterable[str], name: str, table: Table, what: str = "neuron_kernel is"
) -> list[Refusal]:
    """The vendor says that the driver builds on each kernel's series."""
    chosen = table.get(name)
    return [
        Refusal(
            "neuron-kernel-unknown",
            f"{what} {release}, and driver {chosen.driver} (set {name}) builds on {chosen.kernels}, says"
            f" {chosen.kernels.source}",
            "Start from an image with a kernel of such a series, or set neuron_kernel to one and remove the"
            " other",
        )
        for release in releases
        if not chosen.kernels.have(release)
    ]


def check_retired(host: str, packages: Iterable[str], table: Table) -> list[Refusal]:
    """No package of a name that the vendor has given up is in the way: it would conflict."""
    return [
        Refusal(
            "retired-neuron-package",
            f"{host} has the package {package}, which is called {table.retired[package]} now",
            f"Start from an image without it, or run apt-get purge {package}",
        )
        for package in packages
        if package in table.retired
    ]


def check_environment(host: str, variables: Mapping[str, Any], python: str, table: Table) -> list[Refusal]:
    """The engine's environment can be made: its Python is one of the set's, and the lock has all of it."""
    name = str(variables["neuron_set"])
    chosen = table.get(name)
    found = []
    if python not in chosen.python.versions:
        path = variables["neuron_python"]
        there = f"Python {python}" if python else "not there"
        found.append(
            Refusal(
                "neuron-python",
                f"{path} of {host} is {there}, and the engine of set {name} is for"
                f" {' or '.join(chosen.python.versions)}",
                "Set neuron_python to such an interpreter, or start from a system that has one",
            )
        )
    lock = Path(str(variables["neuron_lock"]))
    try:
        wrong = neuron_lock.problems(lock.read_text(encoding="utf-8"), chosen)
    except OSError as error:
        wrong = [f"it cannot be read ({error.strerror})"]
    if wrong:
        found.append(
            Refusal(
                "neuron-lock-incomplete",
                f"{lock.name} is no lock of set {name}: {'; '.join(wrong)}",
                f"Run `make locks` on a machine that reaches {chosen.python.index}, or name a lock of yours"
                " in neuron_lock",
            )
        )
    return found


def _fitting(device: str, table: Table) -> str:
    fit = [
        other
        for other, one in table.sets.items()
        if device in one.devices and not table.limits[device].exceeded(one.parts)
    ]
    return f"neuron_set {' or '.join(fit)}" if fit else f"the set of {table.limits[device]}"


def _types(name: str, table: Table) -> list[str]:
    return [kind for device in table.get(name).devices for kind in accelerators.types_of(device)]
