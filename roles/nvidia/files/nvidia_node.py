#!/usr/bin/env python3
"""What the role nvidia asks of a node. Run it with the node's own Python.

    nvidia_node.py check CONFIG             whether the driver set is there whole, for every kernel; JSON
    nvidia_node.py check CONFIG --running   the same, and for the kernel that runs
    nvidia_node.py explain CONFIG --log F   why the module was not built, for which kernel; JSON (F: the log)
    nvidia_node.py whole                    whether dpkg has finished with every package
    nvidia_node.py has gpu | nvswitch       whether there is one on the PCI bus: for ExecCondition= of units

CONFIG is what the role wrote: set, driver, dkms, module, packages. Exit status: 0 yes, 1 no (the reason is on
standard error), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # `python -I` does not look beside the program

from ingot_nvidia import RefusedError, devices, dkms, machine, output


def check(config: dict[str, Any], *, running: bool) -> dict[str, Any]:
    """Everything that is not as the set has it, at once; else what is there."""
    driver, module = config["driver"], config["module"]
    kernels = machine.kernels()
    libraries = machine.library_versions()
    found = [] if kernels else ["there is no kernel in /boot, and so no module for one"]
    found += dkms.problems(dkms.status(output(["dkms", "status"])), config["dkms"], driver, kernels)
    for kernel in kernels:
        found += machine.module_problems(kernel, module, driver)
        found += machine.initramfs_problems(kernel)
    found += machine.library_problems(libraries, driver)
    found += machine.package_problems(config["packages"], machine.packages())
    if running and (release := os.uname().release) not in kernels:
        found.append(f"kernel {release} runs, and /boot has {', '.join(kernels) or 'none'}: reboot")
    if found:
        raise RefusedError(f"driver set {config['set']}: " + "; ".join(found))
    return {
        "set": config["set"],
        "driver": driver,
        "unproved": config["unproved"],
        "kernels": kernels,
        "packages": config["packages"],
    }


def explain(config: dict[str, Any], keep: Path) -> dict[str, str]:
    """The first cause of a build that failed; without text where no build did."""
    log = dkms.failed_log(config["dkms"], config["driver"])
    if log is None:
        return {"kernel": "", "text": ""}
    keep.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(log, keep)
    failure = dkms.failure(log.read_text(encoding="utf-8", errors="replace"))
    if failure is None:
        return {"kernel": "", "text": f"DKMS failed, and its log is not one of a build (log: {keep})"}
    return {"kernel": failure.kernel, "text": f"{failure} (log: {keep})"}


def whole() -> None:
    """No package is left half installed."""
    if names := machine.half_configured(machine.packages()):
        raise RefusedError(f"dpkg has not finished with {', '.join(names)}: run dpkg --configure -a")


def has(device: str) -> None:
    """The device is there."""
    if not {"gpu": lambda: bool(devices.gpus()), "nvswitch": devices.nvswitch}[device]():
        raise RefusedError(f"there is no NVIDIA {device} on the PCI bus")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What the role nvidia asks of a node.")
    commands = parser.add_subparsers(dest="command", required=True)
    checked = commands.add_parser("check")
    checked.add_argument("config", type=Path)
    checked.add_argument("--running", action="store_true")
    explained = commands.add_parser("explain")
    explained.add_argument("config", type=Path)
    explained.add_argument("--log", type=Path, required=True)
    commands.add_parser("whole")
    commands.add_parser("has").add_argument("device", choices=["gpu", "nvswitch"])
    options = parser.parse_args(arguments)
    try:
        if options.command == "check":
            print(
                json.dumps(check(json.loads(options.config.read_text()), running=options.running), indent=2)
            )
        elif options.command == "explain":
            print(json.dumps(explain(json.loads(options.config.read_text()), options.log)))
        elif options.command == "whole":
            whole()
        else:
            has(options.device)
    except RefusedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
