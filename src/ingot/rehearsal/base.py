"""Base trees: what an official AMI is in EC2, made by mmdebstrap into the cache.

A tree is keyed by everything it is made from, built beside its place and renamed into it, so that a tree in
place is always whole.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from ingot.rehearsal.config import Settings

SUITE = "trixie"
DEBIAN_OWNER = "136693071363"
MIRROR = "http://deb.debian.org"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
EXTRA_CA = Path("/usr/local/share/ca-certificates")
DEBIAN_ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}

# Debian's cloud image, less what a container cannot use (kernel, boot loader, udev) and what no role relies
# on.
PACKAGES = (
    "apt-utils",
    "ca-certificates",
    "cloud-init",
    "dbus",
    "iproute2",
    "kmod",
    "libpam-systemd",
    "netbase",
    "openssh-server",
    "procps",
    "python3",
    "python3-apt",
    "sudo",
    "systemd",
    "systemd-resolved",
    "systemd-sysv",
)
SOURCES = (
    f"deb {MIRROR}/debian {SUITE} main",
    f"deb {MIRROR}/debian {SUITE}-updates main",
    f"deb {MIRROR}/debian-security {SUITE}-security main",
)
# How the host reaches the archive is how its machines do: these settings of the host's apt go along.
_HOST_APT_SETTINGS = (
    "Acquire::http::Proxy",
    "Acquire::https::Proxy",
    "Acquire::Check-Valid-Until",
    "Acquire::Check-Date",
)
_PREPARE = Path(__file__).with_name("prepare_base.sh")


class BaseError(Exception):
    """The base tree cannot be made; the message holds the cause and what to do."""


class BaseTree(BaseModel):
    """A finished root tree in the cache, and what the AMI made of it is called."""

    model_config = ConfigDict(frozen=True)

    tree: Path  # the root tree itself: the one layer of the base AMI
    key: str  # hash of the inputs
    architecture: str  # "x86_64" or "arm64"
    ami_name: str  # debian-13-amd64-<date>-<serial>
    owner: str
    created: str  # ISO 8601, UTC
    default_user: str


def installed(settings: Settings) -> list[BaseTree]:
    """Base trees that the cache holds for today's inputs: the daemon registers each as an AMI."""
    trees = (find(settings, architecture) for architecture in DEBIAN_ARCHITECTURES)
    return [tree for tree in trees if tree]


def find(settings: Settings, architecture: str) -> BaseTree | None:
    record = settings.bases / _key(architecture) / "base.json"
    return BaseTree.model_validate_json(record.read_text()) if record.exists() else None


def ensure(
    settings: Settings,
    architecture: str = "x86_64",
    *,
    wrap: Callable[[list[str]], list[str]] = list,
    keyring: Path = KEYRING,
) -> BaseTree:
    """The base tree, made if the cache lacks it; ``wrap`` puts the command that builds it into a cgroup.

    Raises:
        BaseError: the archive's keyring is missing, or mmdebstrap failed.
    """
    settings.bases.mkdir(parents=True, exist_ok=True)
    with _locked(settings.bases / ".lock"):
        if found := find(settings, architecture):
            return found
        if not keyring.exists():
            raise BaseError(
                f"{keyring} is missing, so packages from Debian's archive cannot be verified: "
                "apt-get install debian-archive-keyring"
            )
        for leftover in settings.bases.glob("building-*"):  # of a build that was killed: we hold the lock
            shutil.rmtree(leftover)
        return _build(settings, architecture, wrap, keyring)


def _build(
    settings: Settings, architecture: str, wrap: Callable[[list[str]], list[str]], keyring: Path
) -> BaseTree:
    key = _key(architecture)
    debian = DEBIAN_ARCHITECTURES[architecture]
    building = settings.bases / f"building-{key}"
    building.mkdir()
    log = settings.bases / f"{key}.log"
    command = [
        "mmdebstrap",
        "--variant=minbase",
        "--mode=root",
        f"--architectures={debian}",
        f"--include={','.join(PACKAGES)}",
        f"--keyring={keyring}",
        "--skip=output/dev",
        *(f"--aptopt={option}" for option in host_apt_options()),
        f'--customize-hook={_PREPARE} "$1"',
        SUITE,
        str(building / "tree"),
        *SOURCES,
    ]
    # In namespaces of its own: whatever becomes of mmdebstrap, its mounts in the tree and its children end
    # with it.
    unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc"]
    environ = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    if _extra_ca():
        environ["INGOT_EXTRA_CA"] = str(EXTRA_CA)
    with log.open("wb") as output:
        result = subprocess.run(
            wrap([*unshare, *command]),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environ,
            check=False,
        )
    if result.returncode:
        shutil.rmtree(building, ignore_errors=True)
        raise BaseError(
            f"mmdebstrap could not make the {SUITE} base tree: {_first_error(log)} (all of it: {log})"
        )
    now = datetime.now(UTC)
    serial = int(key[:8], 16) % 10000
    base = BaseTree(
        tree=settings.bases / key / "tree",
        key=key,
        architecture=architecture,
        ami_name=f"debian-13-{debian}-{now:%Y%m%d}-{serial:04d}",
        owner=DEBIAN_OWNER,
        created=now.strftime("%Y-%m-%dT%H:%M:%S.000Z"),
        default_user="admin",
    )
    (building / "base.json").write_text(base.model_dump_json(indent=2))
    building.rename(settings.bases / key)
    return base


def _first_error(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return next(
        (line for line in lines if line.startswith(("E:", "Err:"))), lines[-1] if lines else "no output"
    )


def _key(architecture: str) -> str:
    inputs = {
        "architecture": architecture,
        "sources": SOURCES,
        "packages": PACKAGES,
        "prepare": _PREPARE.read_text(),
        "apt": host_apt_options(),
        "ca": {path.name: path.read_text() for path in _extra_ca()},
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]


def _extra_ca() -> list[Path]:
    return sorted(EXTRA_CA.glob("*.crt"))


def host_apt_options() -> list[str]:
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout
    wanted = tuple(f"{name} " for name in _HOST_APT_SETTINGS)
    return [line for line in dump.splitlines() if line.startswith(wanted) and not line.endswith(' "";')]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
