"""Start a service: check first, hand over credentials, become the program.

A unit's ``ExecStart`` goes through here so that a start that cannot succeed ends with one line that says
why, and so that a secret reaches the program without standing in a command line, a unit or a file of
variables.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from .causes import REFUSED
from .checks import preflight, processor
from .finding import Finding
from .settings import Settings

# sysexits.h. The units do not restart after EX_CONFIG: the next attempt would end the same way.
EX_TEMPFAIL = 75
EX_CONFIG = 78

LACKING = "launch this node from an image that was baked with the role python_runtime, or run that role"

# For what another process has just given back, such as the memory of the engine that this one replaces.
PATIENCE_SECONDS = 5.0

# All that the engine needs; or what Ray's units check, below which replicas come and go.
CHECKS = ("all", "processor")


def refusal(finding: Finding) -> str:
    """One journal line, which the table of causes reads again."""
    return f"{REFUSED} {finding.what.rstrip('.')}. Do: {finding.action}"


def credential(name: str) -> str:
    """The content of one of the unit's credentials (systemd's LoadCredential)."""
    directory = os.environ.get("CREDENTIALS_DIRECTORY")
    if not directory:
        raise SystemExit(f"{REFUSED} credential {name} was not handed over. Do: start this through its unit")
    try:
        return (Path(directory) / name).read_text(encoding="utf-8").strip()
    except OSError as error:
        why = f"credential {name} cannot be read ({error.strerror})"
        raise SystemExit(f"{REFUSED} {why}. Do: run site.yml, which writes it") from None


def launch(
    settings: Settings, command: Sequence[str], *, credentials: Sequence[str] = (), check: str = "all"
) -> int:
    """Check, set ``VARIABLE=credential`` pairs in the environment and replace this process by ``command``.

    Returns:
        The exit status when the checks refuse, or there is no such program; otherwise it does not return.
    """
    look = preflight if check == "all" else processor
    findings = list(look(settings))
    patience = time.monotonic() + PATIENCE_SECONDS
    while findings and all(item.transient for item in findings) and time.monotonic() < patience:
        time.sleep(0.5)
        findings = list(look(settings))
    for finding in findings:
        print(refusal(finding), file=sys.stderr)
    if findings:
        return EX_TEMPFAIL if all(item.transient for item in findings) else EX_CONFIG
    environment = dict(os.environ)
    for pair in credentials:
        variable, _, name = pair.partition("=")
        environment[variable] = credential(name)
    sys.stderr.flush()
    try:
        os.execvpe(command[0], list(command), environment)
    except OSError as error:
        print(f"{REFUSED} {command[0]} cannot be run ({error.strerror}). Do: {LACKING}", file=sys.stderr)
    return EX_CONFIG
