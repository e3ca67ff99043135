"""What is on the machine: kernels, the module that each would load, the library, packages, the initramfs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ingot_nvidia import output

BLACKLIST = "etc/modprobe.d/ingot-nouveau.conf"
GONE = ("n", "c")  # of dpkg's states: not installed; removed, and its configuration kept


def kernels(root: Path = Path("/")) -> list[str]:
    """The releases of all kernels that the machine could boot."""
    return sorted(path.name.removeprefix("vmlinuz-") for path in (root / "boot").glob("vmlinuz-*"))


def modinfo(kernel: str, module: str, field: str) -> str:
    """One field of the module that this kernel would load; empty where it would find none."""
    return output(["modinfo", "-k", kernel, "-F", field, module]).strip()


def module_problems(kernel: str, module: str, driver: str) -> list[str]:
    """The module that a kernel would load is the set's, and made for that kernel."""
    version = modinfo(kernel, module, "version")
    if not version:
        return [f"kernel {kernel} has no module {module}: booted, it would have no GPU"]
    found = []
    if version != driver:
        file = modinfo(kernel, module, "filename")
        found.append(f"kernel {kernel} would load {module} {version} ({file}), and {driver} is wanted")
    if (magic := modinfo(kernel, module, "vermagic").partition(" ")[0]) != kernel:
        found.append(f"{module} for kernel {kernel} was built for {magic}, which that kernel refuses")
    return found


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


def packages() -> dict[str, tuple[str, str]]:
    """Version and state, in dpkg's words, of all packages it knows."""
    asked = output(["dpkg-query", "-W", "-f", "${Package} ${Version} ${db:Status-Abbrev}\n"])
    rows = (line.split() for line in asked.splitlines())
    return {row[0]: (row[1], row[2]) for row in rows if len(row) == 3}


def package_problems(wanted: Mapping[str, str], installed: Mapping[str, tuple[str, str]]) -> list[str]:
    """Every package of the set is installed whole, in its version, and held."""
    found = []
    for name, version in wanted.items():
        have, state = installed.get(name, ("", "un"))
        if state[1] in GONE:
            found.append(f"package {name} is not installed")
        elif state[1] != "i":
            found.append(f"package {name} is half installed ({state} in dpkg's words)")
        elif have != version:
            found.append(f"package {name} is {have}, and the set has {version}")
        elif state[0] != "h":
            found.append(f"package {name} is not held: an upgrade would replace it")
    return found


def half_configured(installed: Mapping[str, tuple[str, str]]) -> list[str]:
    """Packages that dpkg began with and did not end."""
    return sorted(name for name, (_, state) in installed.items() if state[1] not in ("i", *GONE))


def initramfs_problems(kernel: str, root: Path = Path("/")) -> list[str]:
    """nouveau, which would take the GPU first, is blacklisted before the root file system is there, too."""
    image = root / "boot" / f"initrd.img-{kernel}"
    if not image.exists():
        return []
    listed = output(["lsinitramfs", str(image)])
    if re.search(rf"^(\./)?{re.escape(BLACKLIST)}$", listed, flags=re.MULTILINE):
        return []
    return [f"{image} does not blacklist nouveau: run update-initramfs -u -k {kernel}"]
