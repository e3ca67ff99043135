"""Control groups of a region, on hosts with cgroup v2 and on hybrid ones (controllers on v1, processes on v2
as well).

Every process of a region lives below ``<root>/ingot-<name>`` of the v2 hierarchy, whatever it forks or
however it is orphaned: killing that one tree ends the region. Limits are set wherever the host has the
controller.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CONTROLLERS = ("memory", "cpu", "cpuset")
_PERIOD_US = 100_000
_ENTER = 'for procs in $INGOT_CGROUPS; do echo 0 > "$procs"; done; unset INGOT_CGROUPS; exec "$@"'


class CgroupError(Exception):
    """The host's cgroups cannot be used, or would not let go; the message says which and why."""


@dataclass(frozen=True)
class Hierarchies:
    """Where the host's cgroup hierarchies are mounted."""

    unified: Path
    v1: dict[str, Path]  # mount points of those of CONTROLLERS that are not on the v2 hierarchy
    others: tuple[Path, ...] = ()  # of further v1 hierarchies: nspawn mirrors its cgroups into name=systemd

    @classmethod
    def of_host(cls, mounts: str | None = None) -> Hierarchies:
        """As mounted on this host.

        Raises:
            CgroupError: there is no v2 hierarchy.
        """
        text = Path("/proc/self/mounts").read_text() if mounts is None else mounts
        unified: Path | None = None
        v1: dict[str, Path] = {}
        others: list[Path] = []
        for line in text.splitlines():
            _, point, kind, options, *_ = line.split()
            if not point.startswith("/sys/fs/cgroup"):
                continue
            if kind == "cgroup2":
                unified = unified or Path(point)
            elif kind == "cgroup":
                names = [name for name in CONTROLLERS if name in options.split(",")]
                v1.update(dict.fromkeys(names, Path(point)))
                if not names:
                    others.append(Path(point))
        if unified is None:
            raise CgroupError("no cgroup v2 hierarchy is mounted below /sys/fs/cgroup")
        return cls(unified, v1, tuple(others))


@dataclass(frozen=True)
class Limits:
    memory_bytes: int
    cpus: float
    cores: tuple[int, ...] | None = None  # pin to these, where the host has more cores than the machine


class Group:
    """One cgroup of a region, in every hierarchy that matters."""

    def __init__(self, hierarchies: Hierarchies, path: str, *, limited: bool = False) -> None:
        self._hierarchies = hierarchies
        self.unified = hierarchies.unified / path
        self._v1 = {name: point / path for name, point in hierarchies.v1.items()} if limited else {}
        self._mirrors = [point / path for point in hierarchies.others]

    def create(self, limits: Limits | None = None) -> None:
        self.unified.mkdir(exist_ok=True)
        if limits is None:
            return
        for name, directory in self._v1.items():
            if name == "cpuset":
                if limits.cores is None:
                    continue
                _make_cpuset(self._hierarchies.v1[name], directory)
            directory.mkdir(parents=True, exist_ok=True)
        self._limit(
            "memory",
            {"memory.limit_in_bytes": str(limits.memory_bytes)},
            {"memory.max": str(limits.memory_bytes), "memory.swap.max": "0", "memory.oom.group": "0"},
        )
        if limits.cpus < (os.cpu_count() or 1):
            quota = str(int(limits.cpus * _PERIOD_US))
            self._limit(
                "cpu",
                {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": quota},
                {"cpu.max": f"{quota} {_PERIOD_US}"},
            )
        if limits.cores is not None:
            cores = ",".join(map(str, limits.cores))
            self._limit("cpuset", {"cpuset.cpus": cores}, {"cpuset.cpus": cores})

    def _limit(self, controller: str, v1: dict[str, str], v2: dict[str, str]) -> None:
        if controller in self._v1:
            for name, value in v1.items():
                (self._v1[controller] / name).write_text(value)
            return
        for name, value in v2.items():
            if (self.unified / name).exists():  # absent: the host has the controller on neither side
                (self.unified / name).write_text(value)

    @property
    def procs(self) -> list[Path]:
        """Files that a process writes 0 to in order to enter."""
        directories = [self.unified, *(d for d in self._v1.values() if d.exists())]
        return [directory / "cgroup.procs" for directory in directories]

    def enter(self, command: Sequence[str]) -> list[str]:
        """``command``, made to enter this cgroup before it starts."""
        procs = " ".join(map(str, self.procs))
        return ["env", f"INGOT_CGROUPS={procs}", "sh", "-c", _ENTER, "sh", *command]

    def pids(self) -> list[int]:
        """Processes in it and below, in no order."""
        found: list[int] = []
        for procs in self.unified.rglob("cgroup.procs"):
            with contextlib.suppress(OSError):
                found += map(int, procs.read_text().split())
        return found

    def populated(self) -> bool:
        try:
            return "populated 1" in (self.unified / "cgroup.events").read_text()
        except OSError:
            return False

    def kill(self, timeout: float = 20) -> None:
        """SIGKILL everything in it and wait until it is empty.

        Raises:
            CgroupError: something in it would not die.
        """
        if not self.unified.exists():
            return
        deadline = time.monotonic() + timeout
        while self.populated():
            try:
                (self.unified / "cgroup.kill").write_text("1")
            except FileNotFoundError:  # a kernel before 5.14
                for pid in self.pids():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise CgroupError(f"processes in {self.unified} survive SIGKILL: {self.pids()}")
            time.sleep(0.01)

    def remove(self, timeout: float = 10) -> None:
        """Remove it and what is below; it must be empty."""
        for directory in (self.unified, *self._v1.values(), *self._mirrors):
            _remove_tree(directory, time.monotonic() + timeout)

    @contextmanager
    def frozen(self, timeout: float = 10) -> Iterator[None]:
        """Nothing in it runs while the context lasts."""
        freeze = self.unified / "cgroup.freeze"
        freeze.write_text("1")
        try:
            deadline = time.monotonic() + timeout
            while "frozen 1" not in (self.unified / "cgroup.events").read_text():
                if time.monotonic() > deadline:
                    raise CgroupError(f"{self.unified} does not freeze within {timeout:.0f} s")
                time.sleep(0.01)
            yield
        finally:
            freeze.write_text("0")

    def memory(self) -> dict[str, int]:
        """Bytes: ``usage`` and memory.stat's counters by their v2 names; empty without the controller."""
        directory = self._v1.get("memory", self.unified)
        try:
            usage = directory / ("memory.usage_in_bytes" if "memory" in self._v1 else "memory.current")
            counters = {"usage": int(usage.read_text())}
            for line in (directory / "memory.stat").read_text().splitlines():
                name, value = line.split()
                counters[_V2_NAMES.get(name, name)] = int(value)
            if "memory" in self._v1:
                counters |= _v1_slab(directory)
            return counters
        except OSError:
            return {}


def _v1_slab(directory: Path, proc: Path = Path("/proc")) -> dict[str, int]:
    """The kernel's memory for a cgroup of v1, and how much of it is reclaimable.

    v1 counts it in one sum, most of which is dentries and inodes; the share is taken from the whole host's.
    """
    try:
        kernel = int((directory / "memory.kmem.usage_in_bytes").read_text())
    except FileNotFoundError:  # Linux without CONFIG_MEMCG_KMEM
        return {}
    host = {
        name: int(rest.split()[0])
        for name, _, rest in (line.partition(":") for line in (proc / "meminfo").read_text().splitlines())
    }
    whole = host["Slab"] + host.get("KernelStack", 0) + host.get("PageTables", 0)
    return {"slab": kernel, "slab_reclaimable": kernel * host["SReclaimable"] // max(1, whole)}


# v1 counts what is below the cgroup under names of its own
_V2_NAMES = {
    "total_cache": "file",
    "total_rss": "anon",
    "total_inactive_file": "inactive_file",
    "total_active_file": "active_file",
    "total_shmem": "shmem",
    "inactive_file": "own_inactive_file",
    "active_file": "own_active_file",
    "shmem": "own_shmem",
}


class RegionGroups:
    """All cgroups of one region."""

    def __init__(self, name: str, hierarchies: Hierarchies | None = None) -> None:
        self._name = name
        self._hierarchies = hierarchies or Hierarchies.of_host()
        self.whole = Group(self._hierarchies, name, limited=True)
        self.daemon = Group(
            self._hierarchies, f"{name}/region"
        )  # the daemon, dnsmasq, what supervises machines
        self.run = Group(self._hierarchies, f"{name}/run")  # commands put into the region

    def machine(self, instance_id: str) -> Group:
        return Group(self._hierarchies, f"{self._name}/{instance_id}", limited=True)

    def create(self) -> None:
        for directory in (self._hierarchies.unified, self.whole.unified):
            directory.mkdir(exist_ok=True)
            available = (directory / "cgroup.controllers").read_text().split()
            enabled = (directory / "cgroup.subtree_control").read_text().split()
            for controller in CONTROLLERS:
                if controller in available and controller not in enabled:
                    (directory / "cgroup.subtree_control").write_text(f"+{controller}")
        self.daemon.create()
        self.run.create()

    def destroy(self) -> None:
        """Kill every process of the region and remove its cgroups."""
        self.whole.kill()
        self.whole.remove()

    def holds(self, pid: int) -> bool:
        cgroups = Path(f"/proc/{pid}/cgroup").read_text()
        return any(line.startswith(f"0::/{self._name}/") for line in cgroups.splitlines())


def _make_cpuset(mount: Path, directory: Path) -> None:
    """v1's cpuset groups start with no cores and no memory nodes; nothing may enter before they have both."""
    for level in (directory.parent, directory):
        level.mkdir(parents=True, exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):
            if not (level / name).read_text().strip():
                (level / name).write_text((level.parent / name).read_text())


def _remove_tree(directory: Path, deadline: float) -> None:
    while True:
        try:
            for path in sorted((p for p in directory.rglob("*") if p.is_dir()), reverse=True):
                path.rmdir()
            directory.rmdir()
        except FileNotFoundError:
            if not directory.exists():
                return
        except OSError as error:
            # The kernel lets go of a dead process's cgroup a moment after the process.
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise CgroupError(f"{directory} cannot be removed: {error.strerror}") from error
            time.sleep(0.01)
        else:
            return
