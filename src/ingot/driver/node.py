"""Whether a locked set is there whole on a node, why a build failed, whether dpkg is done.

The configuration is what the role wrote: set, driver, dkms, module, packages, unproved.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ingot.driver import RefusedError, dkms, machine, output

Check = Callable[..., dict[str, Any]]  # of the configuration, and whether the kernel that runs counts


def problems(config: dict[str, Any], kernels: list[str], device: str, *, running: bool) -> list[str]:
    """Everything that is not as the set has it, for each kernel, and the one that runs."""
    found = [] if kernels else ["there is no kernel in /boot, and so no module for one"]
    found += dkms.problems(dkms.status(output(["dkms", "status"])), config["dkms"], config["driver"], kernels)
    for kernel in kernels:
        found += machine.module_problems(kernel, config["module"], config["driver"], device)
    found += machine.package_problems(config["packages"], machine.packages())
    if running and (release := os.uname().release) not in kernels:
        found.append(f"kernel {release} runs, and /boot has {', '.join(kernels) or 'none'}: reboot")
    return found


def facts(config: dict[str, Any], kernels: list[str]) -> dict[str, Any]:
    """What the image's manifest keeps of a set that is there whole."""
    return {
        "set": config["set"],
        "driver": config["driver"],
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


def parser(description: str, check: Check) -> tuple[argparse.ArgumentParser, Any]:
    """The commands that every such program has, and where it adds its own: each sets what it runs."""
    made = argparse.ArgumentParser(description=description)
    commands = made.add_subparsers(required=True)
    checked = commands.add_parser("check")
    checked.add_argument("config", type=configuration)
    checked.add_argument("--running", action="store_true")
    checked.set_defaults(run=lambda options: check(options.config, running=options.running))
    explained = commands.add_parser("explain")
    explained.add_argument("config", type=configuration)
    explained.add_argument("--log", type=Path, required=True)
    explained.set_defaults(run=lambda options: explain(options.config, options.log))
    commands.add_parser("whole").set_defaults(run=lambda _: whole())
    return made, commands


def configuration(path: str) -> dict[str, Any]:
    """What the role wrote."""
    found: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return found


def run(made: argparse.ArgumentParser, arguments: Sequence[str] | None) -> int:
    """Run one command: what it finds is printed as JSON, what it refuses goes to standard error."""
    options = made.parse_args(arguments)
    try:
        found = options.run(options)
    except RefusedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if found is not None:
        print(json.dumps(found, indent=2))
    return 0
