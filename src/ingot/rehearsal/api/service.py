"""Puts the parts of the API together and brings the books back to what is true after a restart."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from moto.ec2.models import ec2_backends
from moto.ec2.models.instances import Instance, StateReason

from ingot.rehearsal.api.app import MIRROR_PREFIX, Endpoint, moto_application
from ingot.rehearsal.api.calls import Recorder
from ingot.rehearsal.api.images import LocalAmi, register_base
from ingot.rehearsal.api.mirror import Mirror
from ingot.rehearsal.api.region import Region, Scale
from ingot.rehearsal.api.store import ACCOUNT, Store
from ingot.rehearsal.base import BaseTree
from ingot.rehearsal.metadata import MetadataService
from ingot.rehearsal.model import MachineHost, MachineState

log = logging.getLogger(__name__)

# Changes that machines make by themselves are written together when they come in a row.
SAVE_DELAY_SECONDS = 0.2


@dataclass
class Service:
    """The API of one region, ready to be served."""

    region: Region
    store: Store
    endpoint: Endpoint
    metadata: MetadataService
    saver: Saver

    def close(self) -> None:
        """Finish what was asked for and write the books."""
        self.region.queues.shutdown()
        self.saver.close()
        self.store.close()


class Saver:
    """Writes the books after changes that no API call makes: a machine has booted, an image is complete."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._dirty = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="saver", daemon=True)
        self._thread.start()

    def changed(self) -> None:
        self._dirty.set()

    def close(self) -> None:
        self._closing.set()
        self._dirty.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._dirty.wait()
            if self._closing.wait(SAVE_DELAY_SECONDS):
                return
            self._dirty.clear()
            try:
                self._store.save()
            except Exception:  # a write that fails now (disk full) is tried again at the next change
                log.exception("cannot write the books")


def build(
    host: MachineHost, *, state: Path, mirror: Path, bases: Iterable[BaseTree], scale: Scale, region_name: str
) -> Service:
    """Make the API of a region from its saved books, or new ones.

    Raises:
        StateError: saved books are there and cannot be read.
    """
    # moto's own AMIs cannot be launched, so they must not be found.
    os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"
    moto = moto_application()
    region = Region(host, state, scale)
    store = Store(state, region.lock)
    store.restore()
    region.attach(ec2_backends[ACCOUNT][region_name])
    for base in bases:
        register_base(region.backend, base)
    saver = Saver(store)
    region.on_change(saver.changed)
    endpoint = Endpoint(moto, region, store, Recorder(state / "calls.json"), Mirror(mirror, MIRROR_PREFIX))
    store.save()
    return Service(region, store, endpoint, MetadataService(region), saver)


def expect_resume(region: Region) -> None:
    """Before the machines are started again: say of those that ran that they are on their way."""
    for instance in region.instances():
        if instance.now is MachineState.RUNNING:
            instance.set_state(MachineState.PENDING)


def after_resume(region: Region, running: Collection[str], known: Collection[str]) -> None:
    """Make the books agree with the machines that are there: ``known`` have a root, ``running`` run."""
    with region.lock:
        for instance in region.instances():
            if instance.now is MachineState.TERMINATED or region.busy(instance.id):
                continue
            if instance.now is MachineState.SHUTTING_DOWN or instance.id not in known:
                if instance.now is not MachineState.SHUTTING_DOWN:
                    log.error("%s has no root any more: terminated", instance.id)
                    reason = StateReason(
                        "Server.InternalError: the local EC2 ended while it was made", "Server.InternalError"
                    )
                else:
                    reason = None
                instance.set_state(MachineState.RUNNING)
                instance.terminate(reason=reason)
            elif instance.id in running:
                instance.set_state(MachineState.RUNNING)
            else:
                Instance.stop(instance)
                instance.set_state(MachineState.STOPPED)
        for image in region.backend.amis.values():
            if isinstance(image, LocalAmi) and image.state == "pending":
                image.fail("the local EC2 ended while the image was made")
        booked = {instance.id for instance in region.instances()}
        region.changed()
    for orphan in set(known) - booked:
        # Launched and not booked: the daemon was killed in between, and nobody was told of it.
        log.warning("%s has a root and is in no books: removed", orphan)
        region.host.terminate(orphan)
