"""The region's network: a namespace with a bridge, a way out, DHCP and DNS."""

from __future__ import annotations

from ingot.rehearsal.config import Settings
from ingot.rehearsal.model import Machine


class Network:
    """Made by ``up`` before the daemon starts; used by the daemon to attach machines."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def up(self) -> None:
        """Make everything that is missing; what is there already stays."""

    def down(self) -> None:
        """Remove all of it, whatever state it is in."""

    def register(self, machine: Machine) -> None:
        """Let DHCP and DNS know the machine."""

    def forget(self, machine: Machine) -> None:
        """Undo ``register`` and remove the machine's link."""
