"""What speaks against a set of NVIDIA drivers: for a type's GPU, for the wheels, for a machine's kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ingot import accelerators, driver_sets
from ingot.driver_sets import DriverSet, Table
from ingot.locked_sets import System
from ingot.preflight import sets
from ingot.preflight.refusal import Refusal
from ingot.table import TableError


def refusals(variables: Mapping[str, Any], builder: str = "") -> list[Refusal]:
    """What is known before there is a machine; ``builder`` is the type that the image is baked on.

    ``variables`` are those of the role nvidia. One that is not set yet is not judged.
    """
    table, found = read(variables.get("nvidia_sets"))
    name = str(variables.get("nvidia_driver_set", ""))
    if found or not name:
        return found
    if found := check_name(name, table):
        return found
    chosen = table.get(name)
    types = [kind for kind in [builder, *variables.get("nvidia_instance_types", [])] if kind]
    needed = str(variables.get("nvidia_cuda_needed", ""))
    kernel = str(variables.get("nvidia_kernel", ""))
    return [
        *(refusal for kind in dict.fromkeys(types) for refusal in check_type(kind, name, table)),
        *check_cuda(needed, name, table),
        *(check_kernels([kernel], name, table) if kernel and not chosen.unproved else []),
    ]


def machine_refusals(
    variables: Mapping[str, Any], host: str, system: Mapping[str, str], installed: Sequence[str]
) -> list[Refusal]:
    """The same once there is a machine: with its distribution, and the kernels that are installed on it."""
    if found := refusals(variables):
        return found
    table, _ = read(variables["nvidia_sets"])
    name = str(variables["nvidia_driver_set"])
    kernel = str(variables["nvidia_kernel"])
    if found := check_system(host, System.model_validate(system), name, table):
        return found
    works = next(iter(table.get(name).releases), "")
    if found := sets.check_boot(host, installed, "nvidia_kernel", kernel, works):
        return found
    return check_kernels(installed, name, table, f"{host} has")


def read(given: object) -> tuple[Table, list[Refusal]]:
    """The table that the role is given, or the repository's own, and what is wrong with it."""
    try:
        return (driver_sets.load() if given is None else driver_sets.given(given)), []
    except TableError as error:
        wrong = Refusal("bad-driver-set-table", error.why, error.do)
        return Table.model_construct(sets={}), [wrong]


def check_name(name: str, table: Table) -> list[Refusal]:
    """The table has that set, and the repository its patches."""
    if found := sets.check_name("unknown-driver-set", name, table.sets, "files/driver-sets.yml"):
        return found
    return check_patches(name, table.get(name))


def check_patches(name: str, chosen: DriverSet, place: Path = driver_sets.PATCHES) -> list[Refusal]:
    """Every patch that a set names is there."""
    return [
        Refusal(
            "no-driver-patch",
            f"driver set {name} wants the patch {patch.file}, and {place} has no such file",
            f"Write it there, for {patch.upstream}",
        )
        for patch in chosen.patches.values()
        if not (place / patch.file).is_file()
    ]


def check_type(kind: str, name: str, table: Table) -> list[Refusal]:
    """The set is for the GPU of an instance type. One without a GPU, or only to bake on, says nothing."""
    gpu = accelerators.gpu_of(kind)
    if gpu is None:
        return sets.check_without(kind, "nvidia_instance_types")
    chosen = table.get(name)
    fit = [
        other
        for other, one in table.sets.items()
        if gpu.name in one.gpus and (one.packages.fabric_manager or not gpu.nvswitch)
    ]
    do = (
        f"Set nvidia_driver_set to {' or '.join(fit)}"
        if fit
        else f"No set of files/driver-sets.yml is for {gpu.name}: choose another instance type, or add one"
    )
    if gpu.name not in chosen.gpus:
        return [
            Refusal(
                "driver-set-lacks-gpu",
                f"{kind} has {gpu.name}, and driver set {name} ({chosen.driver}) is for"
                f" {', '.join(chosen.gpus)}",
                do,
            )
        ]
    if gpu.nvswitch and not chosen.packages.fabric_manager:
        return [
            Refusal(
                "driver-set-lacks-fabric-manager",
                f"the {gpu.count} GPUs of {kind} are joined by NVSwitch, and driver set {name} has no fabric"
                " manager, without which CUDA does not start there (error 802)",
                do,
            )
        ]
    return []


def check_cuda(needed: str, name: str, table: Table) -> list[Refusal]:
    """The driver knows the CUDA that the wheels were built with."""
    chosen = table.get(name)
    if not needed or _number(chosen.cuda) >= _number(needed):
        return []
    fit = [other for other, one in table.sets.items() if _number(one.cuda) >= _number(needed)]
    return [
        Refusal(
            "driver-set-cuda-too-old",
            f"the wheels are built with CUDA {needed}, and the driver of set {name} ({chosen.driver}) goes up"
            f" to {chosen.cuda}",
            f"Set nvidia_driver_set to {' or '.join(fit)}"
            if fit
            else "Add a set with a newer driver, or install wheels for an older CUDA (nvidia_cuda_needed)",
        )
    ]


def check_system(host: str, system: System, name: str, table: Table) -> list[Refusal]:
    """The packages are made for the machine's distribution."""
    systems = {other: one.system for other, one in table.sets.items()}
    return sets.check_system("driver-set-other-system", host, system, name, systems, "nvidia_driver_set")


def check_kernels(
    installed: Iterable[str], name: str, table: Table, what: str = "nvidia_kernel is"
) -> list[Refusal]:
    """Each kernel is one that the set was proved with. A set without any is built for what there is."""
    chosen = table.get(name)
    if chosen.unproved:
        return []
    works = " or ".join(chosen.pair(release) for release in chosen.releases)
    return [
        Refusal(
            "kernel-not-proved",
            f"{what} {release}, and driver {chosen.driver} (set {name}) was not proved with it",
            f"What works: {works}. Start from an image with such a kernel, or set nvidia_kernel to it and"
            " remove the other; docs/nvidia.md says how a new pair is proved and added",
        )
        for release in installed
        if release not in chosen.releases
    ]


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
