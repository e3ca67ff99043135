"""Machines: systemd-nspawn on overlays, the implementation of ``model.MachineHost``."""

from __future__ import annotations

from pathlib import Path

from ingot.rehearsal.config import Settings
from ingot.rehearsal.model import Machine, MachineState
from ingot.rehearsal.network import Network


class NspawnHost:
    """``model.MachineHost`` with systemd-nspawn. Lives in the daemon, inside the region's netns."""

    def __init__(self, settings: Settings, network: Network | None = None) -> None:
        self.settings = settings
        self.network = network or Network(settings)

    def resume(self) -> list[str]:
        """Start the machines again that ran when the last daemon ended; ids that could not be started are left stopped.

        To be called once by the daemon, before it serves. Returns the ids that run now.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Stop all machines cleanly and in parallel, remembering which ran (SIGTERM of the daemon)."""
        raise NotImplementedError

    def known(self) -> dict[str, Machine]:
        """Every machine that has a root here, running or stopped."""
        raise NotImplementedError

    def launch(self, machine: Machine) -> None:
        raise NotImplementedError

    def start(self, instance_id: str) -> None:
        raise NotImplementedError

    def stop(self, instance_id: str, *, force: bool = False) -> None:
        raise NotImplementedError

    def reboot(self, instance_id: str) -> None:
        raise NotImplementedError

    def terminate(self, instance_id: str) -> None:
        raise NotImplementedError

    def freeze(self, instance_id: str, snapshot_id: str) -> tuple[Path, ...]:
        raise NotImplementedError

    def discard(self, layer: Path) -> None:
        raise NotImplementedError

    def state(self, instance_id: str) -> MachineState:
        raise NotImplementedError

    def reachable(self, instance_id: str) -> bool:
        raise NotImplementedError

    def console(self, instance_id: str) -> bytes:
        raise NotImplementedError
