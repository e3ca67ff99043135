#!/usr/bin/env python3
"""What the role nccl_efa, and the doctor, ask of a node. Run it with the node's own Python.

    efa_node.py check CONFIG            whether the set of libraries is there whole; JSON
    efa_node.py check CONFIG --kernels  the same, and the driver for every kernel
    efa_node.py ask                     interfaces of EFA on the PCI bus, those that a driver has, and what
                                        libfabric makes of them; JSON

CONFIG is what the role wrote: stack, packages, driver, venv. Exit status: 0 yes, 1 no (the reason is on
standard error), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # `python -I` does not look beside the program

from ingot.driver import RefusedError, machine, output
from ingot.driver.machine import modinfo, package_problems, packages

FI_INFO = "/opt/amazon/efa/bin/fi_info"
# What NCCL and its plugin look up by these names, without any path.
LOADED = {"libfabric.so.1": "libfabric", "libnccl-net.so": "aws-ofi-nccl"}
VENDOR, DEVICE = "0x1d0f", "0xefa"  # Amazon's; 0xefa0 to 0xefa3 so far


def library_problems(cache: str, version: str, wanted: str) -> list[str]:
    """The loader finds both libraries, and fi_info is that libfabric's. ``cache``: of ``ldconfig -p``."""
    names = {line.split()[0] for line in cache.splitlines() if line.startswith("\t")}
    found = [
        f"the loader does not find {library} ({owner}): NCCL would send by TCP and say nothing"
        for library, owner in LOADED.items()
        if library not in names
    ]
    said = {line.partition(": ")[0]: line.partition(": ")[2] for line in version.splitlines()}
    have = said.get("libfabric", "")
    if have != wanted:
        found.append(f"fi_info is of libfabric {have or '(there is none)'}, and the set has {wanted}")
    return found


def nccl_problems(venv: Path, wanted: str) -> list[str]:
    """NCCL of the environment is the one that the plugin was tested with."""
    found = []
    for path in sorted(venv.glob("lib/python*/site-packages/nvidia_nccl_*.dist-info")):
        have = path.name.removesuffix(".dist-info").rpartition("-")[2]
        if have != wanted:
            found.append(f"{venv} has NCCL {have}, and the set {wanted}")
    return found


def module_problems(kernels: Sequence[str], driver: str) -> list[str]:
    """Every kernel that the machine could boot has the installer's driver, not its own older one."""
    found = [] if kernels else ["there is no kernel in /boot, and so no driver of EFA for one"]
    for kernel in kernels:
        have = modinfo(kernel, "efa", "version")
        # A letter after the number says what it was built with: 2.1.1g.
        if not have.startswith(driver):
            found.append(
                f"kernel {kernel} would load the EFA driver {have or 'of its own, or none'},"
                f" and the set has {driver}"
            )
    return found


def check(config: Mapping[str, Any], *, kernels: bool) -> dict[str, Any]:
    """Everything that is not as the set has it, at once; else what is there."""
    stack = config["stack"]
    found = package_problems(config["packages"], packages())
    cache = output(["/sbin/ldconfig", "-p"])
    found += library_problems(cache, output([FI_INFO, "--version"]), stack["libfabric"])
    found += nccl_problems(Path(config["venv"]), stack["nccl"])
    found += module_problems(machine.kernels(), config["driver"]) if kernels else []
    if found:
        raise RefusedError(f"EFA installer {stack['efa_installer']}: " + "; ".join(found))
    return {"stack": stack, "packages": config["packages"]}


def interfaces(sys_root: Path) -> int:
    """How many interfaces of EFA are on the PCI bus."""
    return sum(
        (device / "vendor").read_text().strip() == VENDOR
        and (device / "device").read_text().startswith(DEVICE)
        for device in (sys_root / "bus/pci/devices").glob("*")
    )


def driven(sys_root: Path) -> list[str]:
    """Those that the driver has, by their names."""
    return sorted(
        device.name
        for device in (sys_root / "class/infiniband").glob("*")
        if (device / "device/driver").resolve().name == "efa"
    )


def domains(said: str) -> list[str]:
    """The domains of ``fi_info -p efa``: one for each interface that libfabric can use.

    Each can come several times, for there are several fabrics on it (efa, efa-direct).
    """
    found, provider = set(), ""
    for line in said.splitlines():
        name, _, value = line.strip().partition(": ")
        if name == "provider":
            provider = value
        elif name == "domain" and provider == "efa":
            found.add(value)
    return sorted(found)


def ask(sys_root: Path = Path("/sys")) -> dict[str, Any]:
    """What the node has of EFA, from the bus upwards."""
    return {
        "interfaces": interfaces(sys_root),
        "driven": driven(sys_root),
        "domains": domains(output([FI_INFO, "-p", "efa", "-t", "FI_EP_RDM"])),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What the role nccl_efa asks of a node.")
    commands = parser.add_subparsers(dest="command", required=True)
    checked = commands.add_parser("check")
    checked.add_argument("config", type=Path)
    checked.add_argument("--kernels", action="store_true")
    commands.add_parser("ask")
    options = parser.parse_args(arguments)
    try:
        if options.command == "ask":
            found = ask()
        else:
            found = check(json.loads(options.config.read_text()), kernels=options.kernels)
    except RefusedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
