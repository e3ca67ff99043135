"""The vendor's tools, asked with patience that ends: one that hangs is a finding, too."""

from __future__ import annotations

import select
import subprocess
from pathlib import Path

from ingot.driver import RefusedError

PLACE = Path("/opt/aws/neuron/bin")
PATIENCE = 30.0  # seconds


def listed(place: Path = PLACE, patience: float = PATIENCE) -> str:
    """What neuron-ls says of the chips, as JSON."""
    tool = place / "neuron-ls"
    try:
        done = subprocess.run(
            [tool, "--json-output"], capture_output=True, text=True, check=False, timeout=patience
        )
    except FileNotFoundError as error:
        raise RefusedError(f"there is no {tool}: the package aws-neuronx-tools is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise RefusedError(f"neuron-ls did not answer within {patience:g} s: the driver hangs") from error
    if done.returncode != 0:
        raise RefusedError(f"neuron-ls: {_last(done.stderr or done.stdout)}")
    return done.stdout


def reported(place: Path = PLACE, patience: float = PATIENCE) -> str:
    """The first report of neuron-monitor, which goes on for ever: one line of JSON."""
    tool = place / "neuron-monitor"
    try:
        running = subprocess.Popen([tool], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except FileNotFoundError as error:
        raise RefusedError(f"there is no {tool}: the package aws-neuronx-tools is not installed") from error
    with running:
        assert running.stdout and running.stderr
        try:
            if not select.select([running.stdout], [], [], patience)[0]:
                raise RefusedError(f"neuron-monitor did not report within {patience:g} s: the driver hangs")
            if line := running.stdout.readline():
                return line
        finally:
            running.kill()
        raise RefusedError(f"neuron-monitor ended without a report: {_last(running.stderr.read())}")


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it says nothing"
