"""Defects that can be seen without starting anything: libraries, model files, ports, memory, disk."""

from __future__ import annotations

import errno
import json
import os
import pwd
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .causes import RANK_CHECK
from .finding import Finding
from .settings import Settings

GIB = 1024**3
CPUINFO = Path("/proc/cpuinfo")
FREE_DISK_MINIMUM = GIB
INDEX = "model.safetensors.index.json"
NEURON_NODE = Path("/usr/lib/ingot/neuron/neuron_node.py")
NEURON_PLAN = NEURON_NODE.with_name("programs.json")


def processor(settings: Settings) -> Iterator[Finding]:
    """What the engine was compiled to use is there; else it would be ended by SIGILL."""
    compiled = _compiled(Path(settings.facts))
    has = _processor_features(CPUINFO)
    lacks = [feature for feature in compiled.get("cpu_features", []) if feature not in has]
    if lacks and has:  # a /proc without features says nothing about them
        missing = ", ".join(lacks)
        yield Finding(
            cause="wrong-processor",
            what=f"vLLM was compiled for {compiled.get('cpu')}, and this processor lacks {missing}.",
            action="Launch this image on an instance type with that core (neoverse-v1: Graviton3, "
            "neoverse-v2: Graviton4), or launch the image of this type.",
            rank=RANK_CHECK,
            source=settings.facts,
            evidence=f"{CPUINFO}: {_processor_name(CPUINFO)}",
        )


def missing_libraries(settings: Settings) -> Iterator[Finding]:
    """Sweep the engine's extension with ``ldd``.

    Libraries that the environment itself ships are skipped: the extension finds them because torch has loaded
    them already.
    """
    if settings.container_image:
        return  # it has its own
    packages = _site_packages(Path(settings.venv))
    if packages is None:
        yield Finding(
            cause="environment-missing",
            what=f"There is no Python environment at {settings.venv}.",
            action="Launch from an image baked with the roles python_runtime and vllm, or run site.yml.",
            rank=RANK_CHECK,
        )
        return
    extensions = sorted((packages / "vllm").glob("_C*.so"))
    if not extensions:
        return
    shipped = {
        path.name for pattern in ("torch/lib/*.so*", "*.libs/*.so*") for path in packages.glob(pattern)
    }
    answer = subprocess.run(
        ["ldd", *map(str, extensions)], capture_output=True, text=True, check=False, env={"LC_ALL": "C"}
    )
    wanted = dict.fromkeys(re.findall(r"^\s*(\S+) => not found", answer.stdout, re.MULTILINE))
    for library in wanted:
        if library not in shipped:
            yield Finding(
                cause="missing-library",
                what=f"The shared library {library}, which vLLM's extension needs, is not on this machine.",
                action="Install the package that holds it (libnuma.so.1: libnuma1, libgomp.so.1: "
                "libgomp1), or "
                "launch from an image baked with the role vllm.",
                rank=RANK_CHECK,
                source=str(extensions[0]),
                evidence=f"{library} => not found",
            )


def container_image(settings: Settings) -> Iterator[Finding]:
    """The image that the engine runs in is on this node; its unit asks no registry."""
    if not settings.container_image:
        return
    try:
        answer = subprocess.run(
            ["podman", "image", "exists", settings.container_image], capture_output=True, check=False
        ).returncode
    except FileNotFoundError:
        answer = 127
    if answer:
        yield Finding(
            cause="container-missing",
            what=f"The image {settings.container_image} is not on this node"
            + (", and neither is Podman." if answer == 127 else "."),
            action="Launch from an image baked with vllm_method container and this vllm_container_image, or "
            "run site.yml.",
            rank=RANK_CHECK,
        )


def model_files(settings: Settings) -> Iterator[Finding]:
    """The model is there, complete by its own index, and readable by the service user."""
    if not settings.model_path:
        return
    path = Path(settings.model_path)
    blocked = _unreadable(path, settings.user)
    if blocked:
        yield Finding(
            cause="model-unreadable",
            what=f"The service user {settings.user} may not read {blocked}.",
            action=f"`chmod -R a+rX {blocked}` (and its parents), or run site.yml: model_store sets the "
            f"modes.",
            rank=RANK_CHECK + 1,
            source=str(blocked),
        )
        return
    try:
        wanted = _wanted_files(path)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        yield _damaged(path / INDEX, f"is no index of weights ({type(error).__name__}: {error})")
        return
    for name in wanted:
        if not (path / name).exists():
            yield Finding(
                cause="model-missing",
                what=f"The model {settings.model_id} has no file {name} in {path}.",
                action="Run site.yml: model_store fetches what is missing and checks every hash.",
                rank=RANK_CHECK + 1,
                source=str(path / name),
            )
            return
        if (path / name).stat().st_size == 0:
            yield _damaged(path / name, "is empty")


def neuron_programs(settings: Settings) -> Iterator[Finding]:
    """What the engine runs on Neuron chips is compiled: else it would compile for hours, and say nothing.

    On nodes with the role neuron alone, whose own program knows.
    """
    if not NEURON_PLAN.exists():
        return
    command = [sys.executable, "-I", str(NEURON_NODE), "programs", str(NEURON_PLAN)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        what, _, how = answer.stderr.strip().removeprefix("error: ").partition(" Compile first: ")
        yield Finding(
            cause="neuron-programs-missing",
            what=f"{settings.model_id or 'The model'} is not compiled: {what}",
            action=f"Compile first: {how}" if how else "Run site.yml, which takes them from the store.",
            rank=RANK_CHECK + 1,
            source=str(NEURON_PLAN),
        )


def port_taken(settings: Settings) -> Iterator[Finding]:
    """Somebody else listens where the engine wants to."""
    if not settings.address:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.address, settings.port))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                yield Finding(
                    cause="wrong-address",
                    what=f"{settings.address} is no address of this machine.",
                    action="Run site.yml: the node's address has changed since it was configured.",
                    rank=RANK_CHECK + 2,
                )
                return
            if error.errno != errno.EADDRINUSE:
                raise
            holder = listener(settings.port)
            yield Finding(
                cause="port-taken",
                what=f"Port {settings.port} is taken" + (f" by {holder}." if holder else "."),
                action="Stop that process, or set serving_port to a free one.",
                rank=RANK_CHECK + 2,
                evidence=f"bind {settings.address}:{settings.port}: {os.strerror(error.errno)}",
                transient=True,
            )


def memory(settings: Settings, *, ours: int = 0) -> Iterator[Finding]:
    """What the sizing asks for is there now, counting the ``ours`` bytes that our own processes hold."""
    available = _meminfo().get("MemAvailable", 0) + ours
    if settings.engine_bytes and available and available < settings.engine_bytes:
        yield Finding(
            cause="memory-too-small",
            what=f"{settings.model_id or 'The model'} needs {settings.engine_bytes / GIB:.2f} GiB here and "
            f"{available / GIB:.2f} GiB are available.",
            action="Stop what else uses memory (`ps aux --sort=-rss | head`), take a larger instance "
            "type, or "
            "lower serving_max_model_len.",
            rank=RANK_CHECK + 3,
            transient=True,
        )


def disk(settings: Settings) -> Iterator[Finding]:
    """Caches and Ray's session must be able to grow."""
    for path in dict.fromkeys((settings.cache, str(Path(settings.ray_logs).parents[1]))):
        if not Path(path).exists():
            continue
        free = shutil.disk_usage(path).free
        if free < FREE_DISK_MINIMUM:
            yield Finding(
                cause="disk-full",
                what=f"Only {free / GIB:.2f} GiB are free below {path}.",
                action="Make room or grow the volume.",
                rank=RANK_CHECK + 4,
                source=path,
                transient=True,
            )


AT_ANY_TIME = (processor, missing_libraries, container_image, model_files, neuron_programs, disk)
"""What is right or wrong whether the engine runs or not; cheapest first."""


def preflight(settings: Settings) -> list[Finding]:
    """Everything that must hold before the engine starts, cheapest first.

    Where our own engine or proxy still holds the port, starting means replacing it: its port and memory
    come free.
    """
    checks = [*AT_ANY_TIME]
    if not held_by(settings.user, settings.port):
        checks += [port_taken, memory]
    return [finding for check in checks for finding in check(settings)]


def listener(port: int) -> str:
    """Who listens on a TCP port, as ``name (pid N)``; empty when nobody does or it cannot be seen."""
    for process in _listeners(port):
        return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
    return ""


def held_by(user: str, port: int) -> bool:
    """Whether a process of ``user`` listens on a TCP port."""
    uid = _uid(user)
    return any(process.stat().st_uid == uid for process in _listeners(port))


def resident(user: str) -> int:
    """Resident bytes of all processes of ``user``; pages that they share count once for each."""
    uid = _uid(user)
    pages = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.stat().st_uid == uid:
                pages += int((process / "statm").read_text(encoding="ascii").split()[1])
        except OSError:  # gone
            continue
    return pages * os.sysconf("SC_PAGE_SIZE")


def _uid(user: str) -> int | None:
    """None for a user that there is not, which no process has."""
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return None


def _listeners(port: int) -> Iterator[Path]:
    """The directories below /proc of the processes that listen on a TCP port."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in _lines(Path(table))[1:]:
            columns = line.split()
            if columns[3] == "0A" and int(columns[1].rsplit(":", 1)[1], 16) == port:
                inodes.add(f"socket:[{columns[9]}]")
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(item.readlink()) in inodes for item in (process / "fd").iterdir()):
                yield process
        except OSError:  # gone, or not ours to look into
            continue


def _site_packages(venv: Path) -> Path | None:
    return next(iter(sorted(venv.glob("lib/python3*/site-packages"))), None)


def _damaged(path: Path, how: str) -> Finding:
    """A file of the model that is there and no good."""
    return Finding(
        cause="model-damaged",
        what=f"{path} {how}.",
        action="Remove it and run site.yml: model_store fetches it again and checks its hash.",
        rank=RANK_CHECK + 1,
        source=str(path),
    )


def _wanted_files(path: Path) -> list[str]:
    index = path / INDEX
    if index.exists():
        weights = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    else:
        weights = sorted(item.name for item in path.glob("*.safetensors")) or ["model.safetensors"]
    return ["config.json", *weights]


def _unreadable(path: Path, user: str) -> Path | None:
    """The first thing on the way to the model's files that ``user`` may not pass or read."""
    for parent in reversed(path.parents):
        if parent.exists() and not _allowed(parent, user, 0o1):
            return parent
    if not path.exists():
        return None  # its files are missing, which is another finding
    if not _allowed(path, user, 0o5):
        return path
    for item in sorted(path.iterdir()):
        if item.is_file() and not _allowed(item, user, 0o4):
            return item
    return None


def _allowed(path: Path, user: str, wanted: int) -> bool:
    """Whether the mode bits let ``user`` do ``wanted`` (rwx bits). ACLs are not used in the layout."""
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        return True  # no such user: that is not what this check is about
    if entry.pw_uid == 0:
        return True
    status = path.stat()
    if status.st_uid == entry.pw_uid:
        bits = status.st_mode >> 6
    elif status.st_gid in os.getgrouplist(user, entry.pw_gid):
        bits = status.st_mode >> 3
    else:
        bits = status.st_mode
    return bits & wanted == wanted


def _compiled(facts: Path) -> dict[str, Any]:
    """What the image says of how its engine was compiled; nothing where a wheel was installed."""
    try:
        compiled = json.loads(facts.read_text(encoding="utf-8")).get("compiled")
    except (OSError, ValueError):
        return {}
    return compiled or {}


def _processor_features(cpuinfo: Path) -> set[str]:
    """What every processor of the machine has: `Features` on Arm, `flags` on x86."""
    each = [
        set(line.partition(":")[2].split())
        for line in _lines(cpuinfo)
        if line.partition(":")[0].strip() in ("Features", "flags")
    ]
    return set.intersection(*each) if each else set()


def _processor_name(cpuinfo: Path) -> str:
    parts = (line.partition(":") for line in _lines(cpuinfo))
    fields = {name.strip(): value.strip() for name, _, value in parts}
    if "model name" in fields:
        return fields["model name"]
    return f"CPU implementer {fields.get('CPU implementer')}, part {fields.get('CPU part')}"


def _meminfo() -> dict[str, int]:
    values = {}
    for line in _lines(Path("/proc/meminfo")):
        name, _, rest = line.partition(":")
        values[name] = int(rest.split()[0]) * 1024
    return values


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
