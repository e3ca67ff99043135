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

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # `python -I` does not look beside the program

from ingot_nvidia import devices
from ingot_nvidia import machine as system

from ingot.driver import RefusedError, machine, node


def check(config: dict[str, Any], *, running: bool) -> dict[str, Any]:
    """Everything that is not as the set has it, at once; else what is there."""
    kernels = machine.kernels()
    found = node.problems(config, kernels, "GPU", running=running)
    for kernel in kernels:
        found += system.initramfs_problems(kernel)
    found += system.library_problems(system.library_versions(), config["driver"])
    if found:
        raise RefusedError(f"driver set {config['set']}: " + "; ".join(found))
    return node.facts(config, kernels)


def has(device: str) -> None:
    """The device is there."""
    if not {"gpu": lambda: bool(devices.gpus()), "nvswitch": devices.nvswitch}[device]():
        raise RefusedError(f"there is no NVIDIA {device} on the PCI bus")


def main(arguments: list[str] | None = None) -> int:
    made, commands = node.parser("What the role nvidia asks of a node.", check)
    there = commands.add_parser("has")
    there.add_argument("device", choices=["gpu", "nvswitch"])
    there.set_defaults(run=lambda options: has(options.device))
    return node.run(made, arguments)


if __name__ == "__main__":
    sys.exit(main())
