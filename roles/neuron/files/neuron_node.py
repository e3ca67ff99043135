#!/usr/bin/env python3
"""What the role neuron asks of a node. Run it with the node's own Python.

    neuron_node.py check CONFIG             whether the set is there whole, for every kernel; JSON
    neuron_node.py check CONFIG --running   the same, and for the kernel that runs
    neuron_node.py explain CONFIG --log F   why the module was not built, for which kernel; JSON (F: the log)
    neuron_node.py whole                    whether dpkg has finished with every package
    neuron_node.py chips                    the chips that neuron-ls lists; JSON
    neuron_node.py health CONFIG            whether every chip can be used: all of the PCI bus listed, their
                                            files for the group alone, nothing that ECC could not correct
    neuron_node.py health CONFIG --free     the same, and that no process has one: before an engine starts
    neuron_node.py export --address A --port P    what neuron-monitor reports, for Prometheus, at /metrics
    neuron_node.py programs PLAN            whether all that the engine needs is compiled
    neuron_node.py compile PLAN --model DIR --program FILE --log FILE      compile it
    neuron_node.py pack PLAN ARCHIVE        what is compiled as one file; JSON: what is kept beside it
    neuron_node.py take PLAN ARCHIVE RECORD      take that in, if it is what the plan wants

CONFIG and PLAN are what the role wrote: set, driver, dkms, module, packages, group; and which programs there
must be. Exit status: 0 yes, 1 no (the reason is on standard error), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import grp
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # `python -I` does not look beside the program

from ingot_neuron import chips, exporter, monitor, programs, tools

from ingot.driver import RefusedError, machine, node


def check(config: dict[str, Any], *, running: bool) -> dict[str, Any]:
    """Everything that is not as the set has it, at once; else what is there."""
    kernels = machine.kernels()
    if found := node.problems(config, kernels, "Neuron chip", running=running):
        raise RefusedError(f"Neuron set {config['set']}: " + "; ".join(found))
    return node.facts(config, kernels)


def listed() -> list[dict[str, Any]]:
    """The chips, of which there is at least one."""
    there = chips.listed(tools.listed())
    if not there:
        bus = chips.on_bus()
        raise RefusedError(
            f"neuron-ls lists no chip, and the PCI bus has {', '.join(bus)}: the module is not loaded, or"
            " failed (dmesg says why)"
            if bus
            else "there is no Neuron chip: launch a type that has one"
        )
    return [asdict(chip) for chip in there]


def health(config: dict[str, Any], *, free: bool) -> None:
    """Everything that keeps a chip from being used, at once."""
    there = chips.listed(tools.listed())
    bus = chips.on_bus()
    found = [] if there else ["neuron-ls lists no chip"]
    if bus and len(bus) != len(there):
        found.append(f"the PCI bus has {len(bus)} chips, and neuron-ls lists {len(there)}")
    found += chips.file_problems(there, grp.getgrnam(config["group"]).gr_gid)
    found += monitor.problems(tools.reported(), len(there))
    found += chips.used(there) if free else []
    if found:
        raise RefusedError("; ".join(found))


def main(arguments: list[str] | None = None) -> int:
    made, commands = node.parser("What the role neuron asks of a node.", check)
    commands.add_parser("chips").set_defaults(run=lambda _: listed())
    healthy = commands.add_parser("health")
    healthy.add_argument("config", type=node.configuration)
    healthy.add_argument("--free", action="store_true")
    healthy.set_defaults(run=lambda options: health(options.config, free=options.free))
    exported = commands.add_parser("export")
    exported.add_argument("--address", required=True)
    exported.add_argument("--port", type=int, required=True)
    exported.set_defaults(run=lambda options: exporter.serve(options.address, options.port))
    for name, run in (("programs", _programs), ("compile", _compile), ("pack", _pack), ("take", _take)):
        command = commands.add_parser(name)
        command.add_argument("plan", type=node.configuration)
        command.set_defaults(run=run)
        if name in ("pack", "take"):
            command.add_argument("archive", type=Path)
        if name == "take":
            command.add_argument("record", type=Path)
        if name == "compile":
            for option in ("--model", "--program", "--log"):
                command.add_argument(option, type=Path, required=True)
    return node.run(made, arguments)


def _programs(options: argparse.Namespace) -> None:
    programs.check(options.plan)


def _compile(options: argparse.Namespace) -> None:
    there = len(chips.on_bus())
    programs.compile_all(options.plan, options.model, options.program, options.log, chips=there)


def _pack(options: argparse.Namespace) -> dict[str, Any]:
    return programs.pack(options.plan, options.archive)


def _take(options: argparse.Namespace) -> None:
    programs.take(options.plan, options.archive, options.record)


if __name__ == "__main__":
    sys.exit(main())
