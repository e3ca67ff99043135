"""What the parts of the local EC2 say to each other.

The API side (``rehearsal.api``) decides *what* must exist, in EC2's terms; the machine side
(``rehearsal.machines``) makes it true with systemd-nspawn and overlays. They meet here and nowhere else.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ConfigDict


class MachineState(StrEnum):
    """States of an EC2 instance, spelt as EC2 spells them."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    SHUTTING_DOWN = "shutting-down"
    TERMINATED = "terminated"


class Machine(BaseModel):
    """Everything the machine side needs to build one instance.

    ``memory_bytes`` and ``vcpus`` are the *scaled* limits that the machine's cgroup gets, ``layers`` the
    AMI's read-only trees, uppermost first (the order that overlayfs's ``lowerdir`` wants).
    """

    model_config = ConfigDict(frozen=True)

    instance_id: str
    layers: tuple[Path, ...]
    architecture: str  # "x86_64" or "arm64", EC2's words
    instance_type: str
    private_ip: str
    prefix_length: int  # of the VPC's network, for the route on the bridge
    mac: str
    hostname: str
    vcpus: float
    memory_bytes: int


class NoCapacity(Exception):  # noqa: N818  (EC2's own word is InsufficientInstanceCapacity)
    """The host cannot hold the machine; the message says what is lacking and how much."""


class MachineError(Exception):
    """A machine could not be started or stopped; the message holds the first cause and where its log is."""


class MachineHost(Protocol):
    """The machine side, as the API side sees it. Every call is safe from several threads."""

    def launch(self, machine: Machine) -> None:
        """Create the root overlay and boot. Returns once the machine's init runs.

        Raises:
            NoCapacity: memory or disk of the host would be overcommitted; nothing was created.
            MachineError: it did not start; what was created is removed again.
        """

    def start(self, instance_id: str) -> None:
        """Boot a stopped machine from its own root again (same upper layer)."""

    def stop(self, instance_id: str, *, force: bool = False) -> None:
        """Shut the machine down and wait until it is off; ``force`` pulls the plug."""

    def reboot(self, instance_id: str) -> None:
        """Stop and start, keeping the root."""

    def terminate(self, instance_id: str) -> None:
        """Stop the machine and remove all that it had. Unknown ids are already gone: no error."""

    def freeze(self, instance_id: str, snapshot_id: str) -> tuple[Path, ...]:
        """Turn the machine's root, as it stands, into read-only layers, uppermost first.

        On a stopped machine this is a rename: the upper directory becomes the layer of that snapshot and the
        machine continues on a fresh one above it. A running machine's upper is copied.
        """

    def discard(self, layer: Path) -> None:
        """Remove the layer of a snapshot that nothing uses any more."""

    def state(self, instance_id: str) -> MachineState:
        """State as it is now, seen from the processes; unknown ids are ``TERMINATED``."""

    def reachable(self, instance_id: str) -> bool:
        """Whether the machine's init has finished booting and its network answers (instance status check)."""

    def console(self, instance_id: str) -> bytes:
        """What the machine wrote on its console, at most the last 64 KiB."""
