"""What is on the machine: kernels, the module that each would load, packages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ingot.driver import output

GONE = ("n", "c")  # of dpkg's states: not installed; removed, and its configuration kept


def kernels(root: Path = Path("/")) -> list[str]:
    """The releases of all kernels that the machine could boot."""
    return sorted(path.name.removeprefix("vmlinuz-") for path in (root / "boot").glob("vmlinuz-*"))


def modinfo(kernel: str, module: str, field: str) -> str:
    """One field of the module that this kernel would load; empty where it would find none."""
    return output(["modinfo", "-k", kernel, "-F", field, module]).strip()


def module_problems(kernel: str, module: str, driver: str, device: str) -> list[str]:
    """The module that a kernel would load, for the ``device``, is the set's, and made for that kernel."""
    version = modinfo(kernel, module, "version")
    if not version:
        return [f"kernel {kernel} has no module {module}: booted, it would have no {device}"]
    found = []
    if version != driver:
        file = modinfo(kernel, module, "filename")
        found.append(f"kernel {kernel} would load {module} {version} ({file}), and {driver} is wanted")
    if (magic := modinfo(kernel, module, "vermagic").partition(" ")[0]) != kernel:
        found.append(f"{module} for kernel {kernel} was built for {magic}, which that kernel refuses")
    return found


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
