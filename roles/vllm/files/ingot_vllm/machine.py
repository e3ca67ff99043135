"""How many compilers a machine can run at once."""

from __future__ import annotations

import os
from pathlib import Path

from ingot_vllm import RefusedError

GIB = 1024**3
#: The largest compiler process of a build (cpu_attn.cpp of vLLM 0.32, GCC 14) took 2.8 GB.
JOB_BYTES = 2_800_000_000
#: For cmake, ninja, the linker and whatever else the builder runs.
RESERVE_BYTES = 500_000_000


def available_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that can still be used, within the limits of this process's control groups."""
    lines = (proc / "meminfo").read_text().splitlines()
    known = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
    least = known["MemAvailable"]
    for group in _groups(proc, cgroups):
        limit = _read(group / "memory.max")
        if limit.isdigit():
            # What the group holds as file cache is given back when it is asked for.
            statistics = dict(line.split() for line in _read(group / "memory.stat").splitlines())
            used = int(_read(group / "memory.current") or 0) - int(statistics.get("inactive_file", 0))
            least = min(least, int(limit) - used)
    return max(0, least)


def cores(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Processors that this process may use, within the quotas of its control groups."""
    least = float(len(os.sched_getaffinity(0)))
    for group in _groups(proc, cgroups):
        quota, _, period = _read(group / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit():
            least = min(least, int(quota) / int(period))
    return max(1, int(least))


def jobs(processors: int, memory: int, wanted: int = 0) -> int:
    """Compilers to run at once: as many as there are cores, but no more than fit in memory.

    Raises:
        RefusedError: not even one fits, or more are wanted than fit.
    """
    fit = (memory - RESERVE_BYTES) // JOB_BYTES
    if fit < 1:
        raise RefusedError(
            f"compiling vLLM needs {(JOB_BYTES + RESERVE_BYTES) / 1e9:.1f} GB of memory for one file, and"
            f" {memory / 1e9:.1f} GB are available: bake on an instance with more memory"
        )
    if wanted > fit:
        raise RefusedError(
            f"vllm_build_jobs is {wanted}, and {memory / 1e9:.1f} GB of memory suffice for {fit}: lower it,"
            " or set it to 0 to have it computed"
        )
    return wanted or min(processors, fit)


def _groups(proc: Path, cgroups: Path) -> list[Path]:
    own = next((line[3:] for line in _read(proc / "self/cgroup").splitlines() if line.startswith("0::")), "/")
    path = cgroups / own.strip("/")
    return [path, *(parent for parent in path.parents if parent.is_relative_to(cgroups))]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
