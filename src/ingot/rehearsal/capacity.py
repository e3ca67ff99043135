"""Whether this host has room for another machine, and which of its cores that gets."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterable

from ingot.rehearsal.config import Settings
from ingot.rehearsal.model import Machine, NoCapacity
from ingot.rehearsal.places import GIB

LEAST_FREE_DISK = 2 * GIB


def host_memory() -> int:
    """Bytes of memory that this host has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check(machine: Machine, taken: int, settings: Settings) -> None:
    """There is memory for the machine beside the ``taken`` bytes of others, and disk.

    Raises:
        NoCapacity: there is not; the message says what there is, and what to do.
    """
    total = host_memory() - settings.host_reserve_bytes
    if taken + machine.memory_bytes > total:
        raise NoCapacity(
            f"{machine.instance_type} takes {machine.memory_bytes / GIB:.1f} GiB here, and of the host's "
            f"{total / GIB:.1f} GiB for machines {taken / GIB:.1f} are taken: terminate machines, or "
            "lower INGOT_LOCAL_MEMORY_SCALE"
        )
    free = shutil.disk_usage(settings.state).free
    if free < LEAST_FREE_DISK:
        raise NoCapacity(
            f"{free / GIB:.1f} GiB are free at {settings.state}, a machine needs "
            f"{LEAST_FREE_DISK / GIB:.0f}: remove images, or `ingot local down --purge`"
        )


def cores_for(vcpus: float, used: Iterable[set[int]]) -> tuple[int, ...] | None:
    """The cores that fewest machines use, where the host has more of them than the machine.

    ``used`` has the cores of each machine that runs.
    """
    available = sorted(os.sched_getaffinity(0))
    count = max(1, int(vcpus))
    if count >= len(available):
        return None
    load = Counter(core for cores in used for core in cores)
    return tuple(sorted(sorted(available, key=lambda core: load[core])[:count]))
