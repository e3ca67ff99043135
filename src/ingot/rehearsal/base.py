"""Base trees: what an official AMI is in EC2, made from Debian's archive into the cache."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from ingot.rehearsal import trees
from ingot.rehearsal.config import Settings

DEBIAN_OWNER = "136693071363"
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
_PREPARE = Path(__file__).with_name("prepare_base.sh")


class BaseTree(BaseModel):
    """A root tree in the cache, or one that is made there when it is needed, and what its AMI is called."""

    model_config = ConfigDict(frozen=True)

    tree: Path  # the root tree itself: the one layer of the base AMI
    key: str  # hash of the inputs
    architecture: str  # "x86_64" or "arm64"
    ami_name: str  # debian-13-amd64-<date>-<serial>
    owner: str
    created: str  # ISO 8601, UTC
    default_user: str


def offered(settings: Settings) -> list[BaseTree]:
    """What the daemon registers as AMIs: trees of today's inputs, some of them made at the first launch."""
    return [
        find(settings, architecture) or _planned(settings, architecture)
        for architecture in DEBIAN_ARCHITECTURES
    ]


def find(settings: Settings, architecture: str) -> BaseTree | None:
    """The base tree of today's inputs, if the cache has it."""
    place = settings.bases / _key(architecture)
    return _read(place) if place.exists() else None


def ensure(
    settings: Settings,
    architecture: str = "x86_64",
    *,
    wrap: trees.Wrap = list,
    keyring: Path = trees.KEYRING,
) -> BaseTree:
    """The base tree, made if the cache lacks it; ``wrap`` puts the command that builds it into a cgroup.

    Raises:
        TreeError: the archive's keyring is missing, or mmdebstrap failed.
    """
    if found := find(settings, architecture):
        return found
    planned = _planned(settings, architecture)
    trees.make(
        planned.tree.parent,
        f"the {trees.SUITE} base tree",
        [
            "--variant=minbase",
            f"--architectures={DEBIAN_ARCHITECTURES[architecture]}",
            f"--include={','.join(PACKAGES)}",
            f'--customize-hook={_PREPARE} "$1"',
        ],
        finish=lambda building: (building / "base.json").write_text(planned.model_dump_json(indent=2)),
        wrap=wrap,
        keyring=keyring,
    )
    return _read(planned.tree.parent)


def _read(place: Path) -> BaseTree:
    return BaseTree.model_validate_json((place / "base.json").read_text())


def _planned(settings: Settings, architecture: str) -> BaseTree:
    key = _key(architecture)
    now = datetime.now(UTC)
    serial = int(key[:8], 16) % 10000
    return BaseTree(
        tree=settings.bases / key / "tree",
        key=key,
        architecture=architecture,
        ami_name=f"debian-13-{DEBIAN_ARCHITECTURES[architecture]}-{now:%Y%m%d}-{serial:04d}",
        owner=DEBIAN_OWNER,
        created=now.strftime("%Y-%m-%dT%H:%M:%S.000Z"),
        default_user="admin",
    )


def _key(architecture: str) -> str:
    return trees.key_of({"architecture": architecture, "packages": PACKAGES, "prepare": _PREPARE.read_text()})
