#!/usr/bin/python
# Copyright: Ingot contributors
# Apache-2.0
"""Read what decides where an engine's threads may run: CPUs, NUMA nodes, and what control groups leave."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: cpu_facts
short_description: CPUs, cores, NUMA nodes and control group limits of a node
description:
  - Reads C(/sys) and C(/proc) and changes nothing. Lists are as the kernel writes them, such as C(0-3,8).
options:
  cgroup:
    description: Control group of the engine's unit, below C(/sys/fs/cgroup). Its parents' limits count, too.
    type: str
    default: system.slice
"""

EXAMPLES = r"""
- name: Read the node's CPUs
  cpu_facts:
  register: cpus
"""

RETURN = r"""
cpu:
  description: What was read; C(cores) has the CPUs of each physical core that is online.
  type: dict
  returned: always
"""

CPU_MAX = re.compile(r"(\d+) (\d+)")


def text(path: Path) -> str:
    """The file's content, or nothing where the kernel does not have it."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def groups(root: Path, cgroup: str) -> list[Path]:
    """The control group and its parents, the innermost first."""
    base = root / "sys/fs/cgroup"
    inner = base / cgroup.strip("/")
    return [inner, *(path for path in inner.parents if path == base or base in path.parents)]


def allowed(root: Path, cgroup: str, file: str, field: str) -> str:
    """What the innermost group with such a file may use; without one, what the first process may."""
    for group in groups(root, cgroup):
        if found := text(group / file):
            return found
    status = text(root / "proc/1/status")
    match = re.search(rf"^{field}:\s*(\S+)$", status, flags=re.MULTILINE)
    return match[1] if match else ""


def quota(root: Path, cgroup: str) -> float | None:
    """CPUs' worth of time that the narrowest of the groups allows."""
    found = []
    for group in groups(root, cgroup):
        if match := CPU_MAX.fullmatch(text(group / "cpu.max")):
            found.append(int(match[1]) / int(match[2]))
    return min(found) if found else None


def memory_limit(root: Path, cgroup: str) -> int | None:
    """Bytes that the narrowest of the groups allows."""
    found = [text(group / "memory.max") for group in groups(root, cgroup)]
    return min((int(value) for value in found if value.isdigit()), default=None)


def kilobytes(content: str, field: str) -> int:
    """A field of a file like ``/proc/meminfo``, in bytes."""
    match = re.search(rf"\b{field}:\s+(\d+) kB", content)
    return int(match[1]) * 1024 if match else 0


def read(root: Path, cgroup: str) -> dict[str, Any]:
    """Everything, from below ``root``."""
    cpus = root / "sys/devices/system/cpu"
    cores = set()
    for directory in cpus.glob("cpu[0-9]*"):
        # An offline CPU has no topology. The second name is the one before Linux 5.12.
        for name in ("core_cpus_list", "thread_siblings_list"):
            if siblings := text(directory / "topology" / name):
                cores.add(siblings)
                break
    online = text(cpus / "online")
    nodes = [
        {
            "id": int(directory.name.removeprefix("node")),
            "cpus": text(directory / "cpulist"),
            "memory_bytes": kilobytes(text(directory / "meminfo"), "MemTotal"),
        }
        for directory in (root / "sys/devices/system/node").glob("node[0-9]*")
    ]
    return {
        "architecture": platform.machine(),
        "present": text(cpus / "present") or online,
        "online": online,
        "cores": sorted(cores),
        "nodes": sorted(nodes, key=lambda node: int(str(node["id"]))),
        "allowed_cpus": allowed(root, cgroup, "cpuset.cpus.effective", "Cpus_allowed_list"),
        "allowed_memory_nodes": allowed(root, cgroup, "cpuset.mems.effective", "Mems_allowed_list"),
        "cpu_quota": quota(root, cgroup),
        "memory_bytes": kilobytes(text(root / "proc/meminfo"), "MemTotal"),
        "memory_limit_bytes": memory_limit(root, cgroup),
        "page_size": os.sysconf("SC_PAGE_SIZE"),
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={"cgroup": {"type": "str", "default": "system.slice"}},
        supports_check_mode=True,
    )
    facts = read(Path("/"), module.params["cgroup"])
    if not facts["online"] or not facts["memory_bytes"]:
        module.fail_json(
            msg="/sys/devices/system/cpu/online or /proc/meminfo is unreadable: is /sys mounted?"
        )
    module.exit_json(changed=False, cpu=facts)


if __name__ == "__main__":
    main()
