"""What else belongs to the driver on the machine: the library, the initramfs."""

from __future__ import annotations

import re
from pathlib import Path

from ingot.driver import output

BLACKLIST = "etc/modprobe.d/ingot-nouveau.conf"


def library_versions(root: Path = Path("/")) -> list[str]:
    """Versions of libcuda, by the names of its files."""
    names = {
        path.name
        for place in ("usr/lib", "usr/lib64")
        for path in (root / place).glob("**/libcuda.so.*.*")
        if not path.is_symlink()
    }
    return sorted(name.removeprefix("libcuda.so.") for name in names)


def library_problems(versions: list[str], driver: str) -> list[str]:
    """The library is there once, and of the module's version."""
    if not versions:
        return ["there is no libcuda: programs would find no driver"]
    return [
        f"libcuda is {version}, and the module {driver}: every CUDA program would end with a version mismatch"
        for version in versions
        if version != driver
    ]


def initramfs_problems(kernel: str, root: Path = Path("/")) -> list[str]:
    """nouveau, which would take the GPU first, is blacklisted before the root file system is there, too."""
    image = root / "boot" / f"initrd.img-{kernel}"
    if not image.exists():
        return []
    listed = output(["lsinitramfs", str(image)])
    if re.search(rf"^(\./)?{re.escape(BLACKLIST)}$", listed, flags=re.MULTILINE):
        return []
    return [f"{image} does not blacklist nouveau: run update-initramfs -u -k {kernel}"]
