"""Whether this host can hold a local region: every check says by name what is lacking and what to do about
it.

They run before anything is created, by tools/bootstrap.py even before there is a virtual environment:
standard library only at import. Each takes what it judges as arguments, so that a test can plant the defect.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ingot.checkout import ROOT
from ingot.preflight.refusal import Refusal, report
from ingot.rehearsal.cgroups import CgroupError, Hierarchies
from ingot.rehearsal.places import GIB, STATE_ROOT, cache_of

if TYPE_CHECKING:
    from ingot.rehearsal.config import Settings

LEAST_DISK = 25 * GIB  # a base tree, the packages of a bake, an image and three machines' own files
LEAST_MEMORY = 8 * GIB
OLDEST = {"debian": 12.0, "ubuntu": 24.04}
HOST_PACKAGES = ROOT / "files/host-packages.yml"


class HostRefused(Exception):  # noqa: N818  (it is the answer of the checks, not a fault)
    """The host cannot hold a local region, for all these reasons."""

    def __init__(self, refusals: list[Refusal]) -> None:
        super().__init__(report(refusals))


def require(settings: Settings) -> None:
    """All checks against this host.

    Raises:
        HostRefused: one or more of them failed.
    """
    _require(settings.cache, settings.state_root, [lambda: check_packages(wanted_packages(), is_installed)])


def _require(cache: Path, state_root: Path, more: Iterable[Callable[[], Refusal | None]] = ()) -> None:
    if refusal := check_root(os.geteuid()):
        raise HostRefused([refusal])  # the other checks need root themselves
    if refusals := [refusal for check in (*_checks(cache, state_root), *more) if (refusal := check())]:
        raise HostRefused(refusals)


def _checks(cache: Path, state_root: Path) -> Iterator[Callable[[], Refusal | None]]:
    yield lambda: check_distribution(platform.freedesktop_os_release())
    yield lambda: check_namespaces(can_unshare)
    yield lambda: check_cgroups(Path("/proc/self/mounts").read_text())
    yield lambda: check_memory(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    yield lambda: check_disk([cache, state_root], lambda path: shutil.disk_usage(path).free)
    yield lambda: check_overlay(state_root, can_overlay)


def check_root(euid: int) -> Refusal | None:
    if euid == 0:
        return None
    return Refusal(
        "not root",
        f"this runs as user {euid}, and machines take mounts, namespaces and cgroups",
        "Run it as root: `sudo -E env PATH=$PATH ingot …`",
    )


def check_distribution(release: dict[str, str]) -> Refusal | None:
    oldest = OLDEST.get(release.get("ID", ""))
    try:
        if oldest and float(release["VERSION_ID"]) >= oldest:
            return None
    except (KeyError, ValueError):  # Debian testing has no version
        if release.get("ID") == "debian":
            return None
    return Refusal(
        "unsupported distribution",
        f"this is {release.get('PRETTY_NAME', 'an unknown system')}",
        "The local EC2 takes Debian 12 and Ubuntu 24.04 or newer; a virtual machine with one of them does",
    )


def wanted_packages(path: Path = HOST_PACKAGES) -> list[str]:
    import yaml

    return list(yaml.safe_load(path.read_text())["host_packages"])


def is_installed(package: str) -> bool:
    command = ["dpkg-query", "--show", "--showformat=${db:Status-Status}", package]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout == "installed"


def check_packages(wanted: Iterable[str], installed: Callable[[str], bool]) -> Refusal | None:
    missing = [package for package in wanted if not installed(package)]
    if not missing:
        return None
    return Refusal(
        "host packages missing",
        f"{len(missing)} of files/host-packages.yml: {', '.join(missing)}",
        f"apt-get install --no-install-recommends {' '.join(missing)}   (`make rehearse` does it by itself)",
    )


def can_unshare() -> str:
    """Empty if namespaces can be made, else what ``unshare`` says."""
    command = [
        "unshare",
        "--mount",
        "--net",
        "--pid",
        "--uts",
        "--ipc",
        "--cgroup",
        "--fork",
        "--mount-proc",
        "true",
    ]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        return str(error)
    return result.stderr.strip() if result.returncode else ""


def check_namespaces(unshare: Callable[[], str]) -> Refusal | None:
    if not (why := unshare()):
        return None
    return Refusal(
        "no namespaces",
        f"this host lets even root make none ({why})",
        "In a container: start it with --privileged. Else use a virtual machine",
    )


def check_cgroups(
    mounts: str, writable: Callable[[Path], bool] = lambda path: os.access(path, os.W_OK)
) -> Refusal | None:
    remedy = (
        "Mount one: `mount -t cgroup2 none /sys/fs/cgroup`, or /sys/fs/cgroup/unified beside v1 hierarchies "
        "(boot option systemd.unified_cgroup_hierarchy=1 does it for good)"
    )
    try:
        unified = Hierarchies.of_host(mounts).unified
    except CgroupError as error:
        return Refusal("no cgroup v2 hierarchy", str(error), remedy)
    if not writable(unified):
        return Refusal(
            "no cgroup v2 hierarchy", f"{unified} is read-only", "In a container: start it with --privileged"
        )
    return None


def check_memory(total: int) -> Refusal | None:
    if total >= LEAST_MEMORY * 0.95:  # a machine sold as 8 GiB shows a little less
        return None
    return Refusal(
        "too little memory",
        f"the host has {total / GIB:.1f} GiB",
        f"A local region takes {LEAST_MEMORY // GIB} GiB, a cluster of three machines 24",
    )


def check_disk(places: Iterable[Path], free: Callable[[Path], int]) -> Refusal | None:
    for place in places:
        existing = next(path for path in (place, *place.parents) if path.exists())
        if (room := free(existing)) < LEAST_DISK:
            return Refusal(
                "too little disk",
                f"{room / GIB:.1f} GiB are free at {place}",
                f"{LEAST_DISK // GIB} are needed: free some, `ingot local down --purge` an old region, or "
                "set INGOT_CACHE to a place that has them",
            )
    return None


def can_overlay(place: Path) -> str:
    """Empty if ``place`` can hold the writable side of an overlay, else what mount says."""
    existing = next(path for path in (place, *place.parents) if path.exists())
    with tempfile.TemporaryDirectory(dir=existing, prefix=".ingot-check-") as name:
        for part in ("lower", "upper", "work", "root"):
            (Path(name) / part).mkdir()
        options = "lowerdir=lower,upperdir=upper,workdir=work"
        # deleting a file of the lower side takes a device node on the upper one
        script = f"cd {name} && touch lower/f && mount -t overlay overlay root -o {options}"
        script += " && rm root/f"
        command = ["unshare", "--mount", "sh", "-c", script]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stderr.strip().splitlines()[0] if result.returncode else ""


def check_overlay(place: Path, overlay: Callable[[Path], str]) -> Refusal | None:
    if not (why := overlay(place)):
        return None
    return Refusal(
        "no overlay file system",
        f"{place} cannot hold one ({why})",
        f"Mount a disk with ext4 or xfs there: {place} must not be an overlay itself",
    )


def main() -> int:
    """What tools/bootstrap.py runs: all checks but the packages', which it installs."""
    try:
        _require(cache_of(), STATE_ROOT)
    except HostRefused as refused:
        print(refused, file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
