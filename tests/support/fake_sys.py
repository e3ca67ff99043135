"""A node's /sys and /proc, as far as they say where threads may run, in a directory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

GIB = 1 << 30


def listed(cpus: Iterable[int]) -> str:
    return ",".join(map(str, cpus))


def write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content + "\n")


def make(
    root: Path,
    *,
    nodes: int = 1,
    cores: int = 4,
    smt: int = 1,
    memory: int = 64 * GIB,
    offline: Sequence[int] = (),
    allowed: str | None = None,
    memory_nodes: str | None = None,
    quota: float | None = None,
    memory_limit: int | None = None,
    numa: bool = True,
) -> Path:
    """Write it below ``root``.

    Numbered as Linux numbers them: the first threads of all cores, then the second ones. ``cores`` and
    ``memory`` are each node's.
    """
    cpus, total = root / "sys/devices/system/cpu", nodes * cores
    everything = range(total * smt)
    online = [cpu for cpu in everything if cpu not in offline]
    write(cpus / "present", f"0-{len(everything) - 1}")
    write(cpus / "online", listed(online))
    for cpu in online:
        siblings = [cpu % total + thread * total for thread in range(smt)]
        write(cpus / f"cpu{cpu}/topology/core_cpus_list", listed(set(siblings) & set(online)))
    for node in range(nodes if numa else 0):
        own = [cpu for cpu in online if cpu % total // cores == node]
        directory = root / f"sys/devices/system/node/node{node}"
        write(directory / "cpulist", listed(own))
        write(directory / "meminfo", f"Node {node} MemTotal:       {memory // 1024} kB")
    write(root / "proc/meminfo", f"MemTotal:       {nodes * memory // 1024} kB")
    group = root / "sys/fs/cgroup/system.slice"
    write(group / "cpuset.cpus.effective", listed(online) if allowed is None else allowed)
    write(group / "cpuset.mems.effective", listed(range(nodes)) if memory_nodes is None else memory_nodes)
    if quota is not None:
        write(group.parent / "cpu.max", f"{int(quota * 100000)} 100000")
    write(group / "cpu.max", "max 100000")
    if memory_limit is not None:
        write(group / "memory.max", str(memory_limit))
    return root
