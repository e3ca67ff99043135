"""Whether an engine that spreads over several nodes has the network that was meant for it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from .causes import RANK_CHECK
from .finding import Finding
from .settings import Settings, read_json

EXPECTED = Path("/etc/ingot/nccl.json")  # written by the role nccl_efa, as is the program
ASK = ("/usr/bin/python3", "-I", "/usr/lib/ingot/efa/efa_node.py", "ask")
# NCCL says which network it took, and over which each channel goes; the plugin, which provider. With
# NCCL_DEBUG=INFO alone.
SAID = "NET/|Using network"
_FELL_BACK = re.compile(r"Using network Socket|via NET/Socket|NET/OFI Selected [Pp]rovider is (?!efa)")


def efa(settings: Settings) -> Iterator[Finding]:
    """Every interface of EFA is attached, driven and usable; else NCCL sends by TCP, and says nothing.

    Where an engine is on one node, or the type has no EFA, nothing of it is missed.
    """
    expected = read_json(EXPECTED, {})
    if int(expected.get("engine_nodes", 1)) < 2 or not expected.get("interfaces"):
        return
    type_name, may = expected["instance_type"], expected["interfaces"]
    answer = subprocess.run(ASK, capture_output=True, text=True, check=False)
    if answer.returncode:
        yield _finding(
            cause="efa-not-asked",
            what=f"{ASK[2]} does not answer: {answer.stderr.strip().splitlines()[-1]}",
            action="Run site.yml: the role nccl_efa installs it.",
        )
        return
    there = json.loads(answer.stdout)
    attached, driven, usable = there["interfaces"], len(there["driven"]), len(there["domains"])
    instead = "NCCL sends by TCP instead, many times slower, and says nothing."
    if not attached:
        yield _finding(
            cause="efa-not-attached",
            what=f"No interface of EFA is attached; {type_name} may have {may}. {instead}",
            action="Launch it with interfaces of type efa, in a security group that allows all traffic "
            "from itself and to itself.",
        )
    elif driven < attached:
        yield _finding(
            cause="efa-not-driven",
            what=f"{attached} interfaces of EFA are attached, and the driver has {driven} of them. {instead}",
            action="modprobe efa; journalctl -k -g efa. If there is no such module for this kernel: launch "
            "from an image baked with the role nccl_efa.",
        )
    elif usable < driven:
        yield _finding(
            cause="efa-not-usable",
            what=f"The driver has {driven} interfaces of EFA, and libfabric can use {usable}. {instead}",
            action="/opt/amazon/efa/bin/fi_info -p efa -t FI_EP_RDM says why; ls -l /dev/infiniband shows "
            "who may open them.",
        )


def unused(logs: Iterable[tuple[str, Iterable[str]]]) -> Iterator[Finding]:
    """An engine that could use EFA, and by its own words does not. ``logs``: their places and lines."""
    if read_json(EXPECTED, {}).get("across") != "efa":
        return
    for source, lines in logs:
        if line := fell_back(lines):
            yield Finding(
                cause="efa-not-used",
                what="NCCL sends by TCP, though this node has EFA: many times slower.",
                action="Let it say why: NCCL_DEBUG: INFO, FI_LOG_LEVEL: warn in serving_environment; "
                "docs/nccl.md has the lines. A plugin that it did not find: run site.yml.",
                rank=RANK_CHECK + 6,
                source=source,
                evidence=line,
            )


def fell_back(lines: Iterable[str]) -> str:
    """The first line by which NCCL or the plugin says that it does not use EFA; empty where none does."""
    return next((line.strip() for line in lines if _FELL_BACK.search(line)), "")


def _finding(cause: str, what: str, action: str) -> Finding:
    return Finding(cause=cause, what=what, action=action, rank=RANK_CHECK + 5, source=str(EXPECTED))
