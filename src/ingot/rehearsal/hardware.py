"""The hardware of a machine: what systemd-nspawn gives it, and files that boot.sh puts over the host's."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from ingot.rehearsal.config import Settings
from ingot.rehearsal.emulation import SHUTDOWN_SIGNAL, Processor
from ingot.rehearsal.model import Machine

_HERE = Path(__file__).parent
# What a virtual machine's services may do and systemd-nspawn refuses by default: lock memory, keyrings, BPF,
# perf.
_NSPAWN_OPTIONS = (
    "--capability=CAP_IPC_LOCK,CAP_BPF,CAP_PERFMON,CAP_SYSLOG",
    "--system-call-filter=@keyring @memlock bpf perf_event_open",
)


def nspawn_options(machine: Machine, processor: Processor | None) -> list[str]:
    """What systemd-nspawn is told of this machine, beside what launch.sh says of all."""
    # Debian's sizes, of this machine's memory: systemd would take half of the host's
    half = f"mode=1777,size={machine.memory_bytes // 2}"
    options = [*_NSPAWN_OPTIONS, f"--tmpfs=/dev/shm:{half}", f"--tmpfs=/tmp:{half}"]
    if processor:
        options.append(f"--setenv=QEMU_CPU={processor.core.emulated}")
        options.append(f"--kill-signal={SHUTDOWN_SIGNAL}")
        mounts = processor.emulator.mounts
        options += [f"--bind-ro={tree}:{place}" for place, tree in mounts.items()]
    return options


def dress(
    hypervisor: Path,
    machine: Machine,
    settings: Settings,
    cores: tuple[int, ...] | None,
    processor: Processor | None,
) -> None:
    """Write what a machine is shown once, in the directory that boot.sh takes it from."""
    # cloud-init takes a machine for an EC2 instance by these three letters
    (hypervisor / "uuid").write_text(f"ec2{machine.instance_id[-5:]}-0000-4000-8000-000000000000\n")
    shutil.copy(_HERE / "boot.sh", hypervisor / "boot")
    if processor:  # /proc/cpuinfo is qemu's
        (hypervisor / "core").write_text(f"{processor.core}\n")
        shutil.copy(processor.emulator.library, hypervisor / "emulated.so")
        address = f"{machine.private_ip}/{machine.prefix_length}"
        # Its network services cannot speak to the kernel: boot.sh sets the one address that it has
        (hypervisor / "address").write_text(f"{address} {settings.gateway} {settings.dns_address}\n")
    elif cores is not None:
        (hypervisor / "cpuinfo").write_text(_cpuinfo(len(cores)))


def write_meminfo(path: Path, limit: int, counters: dict[str, int]) -> None:
    """Bring up to date what a machine of ``limit`` bytes is shown of its memory."""
    text = _meminfo(limit, counters)
    # In place and always of one length: the machine has this very file mounted, and may be reading
    with path.open("r+b" if path.exists() else "wb") as meminfo:
        meminfo.write(text.encode())


def _meminfo(limit: int, counters: dict[str, int]) -> str:
    """/proc/meminfo of a machine with ``limit`` bytes, of which its cgroup has used what the counters say."""
    get: Callable[[str], int] = lambda name: counters.get(name, 0)  # noqa: E731
    free = max(0, limit - get("usage"))
    given_back = sum(map(get, ("inactive_file", "active_file", "slab_reclaimable")))
    values = {
        "MemTotal": limit,
        "MemFree": free,
        "MemAvailable": min(limit, free + given_back),
        "Buffers": 0,
        "Cached": get("file"),
        "SwapCached": 0,
        "Active": get("active_file") + get("active_anon"),
        "Inactive": get("inactive_file") + get("inactive_anon"),
        "SwapTotal": 0,
        "SwapFree": 0,
        "Dirty": get("file_dirty"),
        "Writeback": get("file_writeback"),
        "AnonPages": get("anon"),
        "Mapped": get("file_mapped"),
        "Shmem": get("shmem"),
        "Slab": get("slab"),
        "SReclaimable": get("slab_reclaimable"),
        "CommitLimit": limit,
        "Committed_AS": get("anon"),
    }
    lines = [f"{name + ':':<16}{value // 1024:>12} kB" for name, value in values.items()]
    lines += [
        "HugePages_Total:           0",
        "HugePages_Free:            0",
        "Hugepagesize:           2048 kB",
    ]
    return "\n".join(lines) + "\n"


def _cpuinfo(count: int) -> str:
    """The host's /proc/cpuinfo, cut down to the first ``count`` processors."""
    blocks = Path("/proc/cpuinfo").read_text().strip().split("\n\n")
    return "\n\n".join(blocks[:count]) + "\n\n"
