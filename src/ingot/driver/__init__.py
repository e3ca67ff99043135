"""What is asked of a node with a module of DKMS. Standard library only: roles copy it to the node."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence


class RefusedError(Exception):
    """The node is not as the set has it; the message is for a person."""


def output(argv: Sequence[str]) -> str:
    """What a program says, whatever its exit status; nothing where there is no such program."""
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return ""
