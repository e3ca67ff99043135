"""A node of the local EC2 to measure on, in a region of its own: baked, launched, and asked by ssh."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ingot.rehearsal import cli as local
from ingot.rehearsal.config import Settings
from ingot.rehearsal.control import settings_of_running
from ingot.rehearse import EXPECTED, Rehearsal
from ingot.rehearse_target import TARGETS
from steps import ROOT, ToolError

INGOT = ROOT / ".venv/bin/ingot"
NAME = "bench-cpu"
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
WEIGHTS = f"/opt/ingot/models/{MODEL}"
PYTHON = "/opt/ingot/venvs/vllm/bin/python"
SCRATCH = "/var/cache/ingot/bench"

# The rehearsal's inventory has these off, for its three nodes share two cores; this one has them to itself.
ALONE: dict[str, Any] = {
    "serving_mode": "vllm",
    "vllm_compiler": True,
    "serving_enforce_eager": False,
    "serving_environment": {},
    "launch_workers": 0,
}


class Node:
    """The one node of the region and the cluster that are both called NAME."""

    def __init__(self) -> None:
        self.key = Path.home() / ".config/ingot/rehearsal" / NAME / "ssh-key"

    def ingot(self, *arguments: str) -> None:
        """An `ingot local` command that must succeed, its output passing through."""
        argv = [str(INGOT), "local", *arguments]
        if (status := subprocess.run(argv, cwd=ROOT, check=False).returncode) != 0:
            raise ToolError(f"`{shlex.join(argv)}` failed (status {status}); what it said is above")

    def playbook(self, name: str, variables: dict[str, Any]) -> None:
        """Run one with the variables of every native node that is measured on, and these."""
        extra = json.dumps({**ALONE, **variables})
        self.ingot("run", "--", "ansible-playbook", "-i", "inventories/rehearsal", name, "-e", extra)

    def root(self, command: str, *, stdin: str = "") -> str:
        """What a command prints on the node, run as root.

        Raises:
            ToolError: it failed; the message ends with what it said last.
        """
        login = [str(INGOT), "local", "ssh", "--key", str(self.key), f"{NAME}-head", "--"]
        done = subprocess.run(
            [*login, f"sudo sh -c {shlex.quote(command)}"],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            said = (done.stdout + done.stderr).strip()
            raise ToolError(f"on the node, `{command[:200]}` failed: {said[-2000:]}")
        return done.stdout

    def engine(self) -> str:
        """What the node's engine is, in a few words."""
        facts = json.loads(self.root("cat /usr/share/ingot/image.json"))["facts"]["vllm"]
        return f"vLLM {facts['vllm']} ({facts['distribution']}), torch {facts['torch']}"


@contextmanager
def prepared(image: str, variables: dict[str, Any]) -> Iterator[Node]:
    """A configured node of an image; it and its region are removed however this ends."""
    os.environ.update(INGOT_LOCAL_NAME=NAME, INGOT_CLUSTER=NAME)
    try:
        try:
            target = TARGETS[image].with_extra(variables)
            Rehearsal(settings_of_running(Settings.from_environment()), target).prepare()
        except EXPECTED as error:
            raise ToolError(local.failure(error)) from error
        yield Node()
    finally:
        subprocess.run([INGOT, "local", "down", "--purge"], check=False)


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The options of a bench with rounds. A signal ends it as Ctrl-C does, so that its region is purged."""
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be 1 or more")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return options


def transient(unit: str, *options: str) -> list[str]:
    """systemd-run as the engine's user, with the places of its own and none of its unit's settings."""
    return [
        *("systemd-run", "--quiet", f"--unit={unit}", "--uid=ingot", "--gid=ingot"),
        *("--setenv=HOME=/var/lib/ingot", f"--setenv=VLLM_CACHE_ROOT={SCRATCH}-cache"),
        "--setenv=PATH=/opt/ingot/venvs/vllm/bin:/usr/bin:/bin",
        "--property=WorkingDirectory=/var/lib/ingot",
        *options,
    ]


def machine() -> str:
    """Cores, processor and memory of this host."""
    names = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return f"{os.cpu_count()} cores of {names[0] if names else os.uname().machine}, {memory:.0f} GiB"


def commit() -> str:
    """What is checked out, and whether it was changed since."""
    argv = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
