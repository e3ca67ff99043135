"""The local region: moto's books, the machines, and what ties them together."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingot.rehearsal.api.instances import LocalInstance
from ingot.rehearsal.api.keys import KeyStore
from ingot.rehearsal.api.lifecycle import SerialQueues
from ingot.rehearsal.model import MachineHost, MachineState

log = logging.getLogger(__name__)

# EC2 shows a terminated instance for about an hour; tools only need to see that it ended.
TERMINATED_SECONDS = 900.0


@dataclass(frozen=True)
class Scale:
    """Share of an instance type's vCPU and memory that its machine gets."""

    vcpus: float = 1.0
    memory: float = 1.0


class Region:
    """Shared by all parts of the API. ``lock`` guards moto's books, which are not made for threads."""

    def __init__(self, host: MachineHost, state: Path, scale: Scale | None = None) -> None:
        self.host = host
        self.state = state
        self.scale = scale or Scale()
        self.lock = threading.RLock()
        self.queues = SerialQueues()
        self.keys = KeyStore(state)
        self.backend: Any = None  # LocalBackend of this region, set by attach()
        self._listeners: list[Callable[[], None]] = []

    def attach(self, backend: Any) -> None:
        """Make this region the one whose instances are machines."""
        self.backend = backend
        backend.region = self

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener``, which must not block, whenever the books changed."""
        self._listeners.append(listener)

    def changed(self) -> None:
        for listener in self._listeners:
            listener()

    def busy(self, instance_id: str) -> bool:
        """Whether an operation on this instance runs or waits."""
        return self.queues.busy(instance_id)

    def instances(self) -> Iterator[LocalInstance]:
        for reservation in list(self.backend.reservations.values()):
            yield from list(reservation.instances)

    def by_address(self, address: str) -> LocalInstance | None:
        """The instance that has this private address now."""
        for instance in self.instances():
            if instance.now is not MachineState.TERMINATED and instance.private_ip == address:
                return instance
        return None

    def refresh(self, clock: float) -> None:
        """Bring the books up to date with the machines, and forget instances that ended long ago."""
        for instance in self.instances():
            instance.refresh()
            if instance.terminated_at is not None and clock - instance.terminated_at > TERMINATED_SECONDS:
                self.backend.forget_instance(instance)

    def discard_unused_layers(self) -> None:
        """Remove the trees of snapshots that neither a snapshot nor an instance uses any more."""
        used = {layer for snapshot in self.backend.snapshots.values() for layer in snapshot_layers(snapshot)}
        used |= {layer for instance in self.instances() for layer in instance.layers}
        for layer in sorted(self.backend.frozen_layers - used):
            self.backend.frozen_layers.discard(layer)
            try:
                self.host.discard(layer)
            except OSError as error:
                log.warning("cannot remove %s: %s", layer, error)


def snapshot_layers(snapshot: Any) -> tuple[Path, ...]:
    """Trees behind a snapshot; one that a client made of a volume alone has none."""
    layers: tuple[Path, ...] = getattr(snapshot, "layers", ())
    return layers
