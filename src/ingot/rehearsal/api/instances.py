"""Instances whose states are those of their machines.

moto's ``start``, ``stop`` and ``terminate`` are immediate. Here they are the *end* of a transition: asking
for one sets the state on the way (``pending``, ``stopping``, ``shutting-down``), the machine does it, and
moto's own method then books the result. That holds for whoever asks: a client, an autoscaling group or a
fleet.
"""

from __future__ import annotations

import base64
import copy
import logging
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from moto.ec2.models.instances import Instance, InstanceState, StateReason

from ingot.rehearsal.api import errors
from ingot.rehearsal.api.catalogue import instance_size
from ingot.rehearsal.model import Machine, MachineError, MachineState, NoCapacity

if TYPE_CHECKING:
    from ingot.rehearsal.api.region import Region

log = logging.getLogger(__name__)

CODES = {
    MachineState.PENDING: 0,
    MachineState.RUNNING: 16,
    MachineState.SHUTTING_DOWN: 32,
    MachineState.TERMINATED: 48,
    MachineState.STOPPING: 64,
    MachineState.STOPPED: 80,
}

# EC2 says "initializing" for the first minutes of an instance, then "impaired" if it does not answer.
INITIALIZING_SECONDS = 300


class LocalInstance(Instance):
    """One instance and its machine. moto makes the object, ``adopt`` makes it one of ours."""

    ena_support = True

    layers: tuple[Path, ...]
    public_key: str | None
    running_since: float
    terminated_at: float | None
    spot_notice: str | None

    @classmethod
    def adopt(cls, instance: Instance, layers: tuple[Path, ...], public_key: str | None) -> LocalInstance:
        """Give moto's fresh instance the behaviour of this class; its state becomes ``pending``."""
        instance.__class__ = cls
        ours = cast(LocalInstance, instance)
        ours.layers = layers
        ours.public_key = public_key
        ours.running_since = 0.0
        ours.terminated_at = None
        ours.spot_notice = None
        if not ours.security_groups:
            # The VPC's default group, which moto gives to the interface and not to the instance
            ours.security_groups = list(ours.nics[0].group_set)
        for nic in ours.nics.values():
            # Nothing answers on a public address in the local region; a client would wait for it in vain.
            nic.public_ip_auto_assign = False
            nic.public_ip = None
            if nic.description == "Primary network interface" or nic.delete_on_termination is None:
                # EC2's default for an interface that the launch itself made; moto keeps them for ever
                nic.delete_on_termination = True
        ours.set_state(MachineState.PENDING)
        return ours

    # -- what the API shows ------------------------------------------------------------------------------

    def set_state(self, state: MachineState, reason: StateReason | None = None) -> None:
        self._state.name = state.value
        self._state.code = CODES[state]
        if reason is not None:
            self.state_reason = reason
            self._reason = reason.message
        if state is MachineState.RUNNING:
            self.running_since = time.time()
        elif state is MachineState.TERMINATED:
            self.terminated_at = time.time()

    @property
    def now(self) -> MachineState:
        return MachineState(self._state.name)

    @property
    def region(self) -> Region:
        return cast("Region", self.ec2_backend.region)

    @property
    def instance_status(self) -> dict[str, Any]:
        if self.now is not MachineState.RUNNING:
            return {"Status": "not-applicable"}
        if self.region.host.reachable(self.id):
            return _check("ok", "passed")
        if time.time() - self.running_since < INITIALIZING_SECONDS:
            return _check("initializing", "initializing")
        return _check("impaired", "failed")

    @property
    def system_status(self) -> dict[str, Any]:
        """The host of the instance is this machine, which answers."""
        if self.now is not MachineState.RUNNING:
            return {"Status": "not-applicable"}
        return _check("ok", "passed")

    @property
    def alive(self) -> bool:
        return self.now not in (MachineState.SHUTTING_DOWN, MachineState.TERMINATED)

    @property
    def root_volume(self) -> Any:
        attachment = self.block_device_mapping[self.root_device_name]
        return self.ec2_backend.get_volume(attachment.volume_id)

    @property
    def user_data_bytes(self) -> bytes | None:
        return base64.b64decode(str(self.user_data)) if self.user_data is not None else None

    # -- transitions -------------------------------------------------------------------------------------

    def machine(self) -> Machine:
        """What the machine side must build, scaled to this host."""
        size = instance_size(self.instance_type)
        scale = self.region.scale
        vpc = self.ec2_backend.get_vpc(self.vpc_id)
        return Machine(
            instance_id=self.id,
            layers=self.layers,
            architecture=self.architecture,
            instance_type=self.instance_type,
            private_ip=str(self.private_ip),
            prefix_length=int(vpc.cidr_block.split("/")[1]),
            mac=self.nics[0].mac_address,
            hostname=self.private_dns_name.split(".")[0],
            vcpus=size.vcpus * scale.vcpus,
            memory_bytes=int(size.memory_bytes * scale.memory),
        )

    def boot(self) -> None:
        """Build and start the machine in the background. Returns when the host has accepted it.

        Raises:
            NoCapacity: the host cannot hold it; nothing was created.
        """
        machine = self.machine()
        ended = threading.Event()  # the host is done with it, one way or the other
        refusals: list[NoCapacity] = []

        def launch() -> None:
            try:
                self.region.host.launch(machine)
            except NoCapacity as error:
                refusals.append(error)
                return
            except MachineError as error:
                ended.set()  # before the lock is asked for: the caller holds it while it waits
                self._launch_failed(str(error))
                return
            finally:
                ended.set()
            self._settle(MachineState.PENDING, MachineState.RUNNING)

        self.region.queues.submit(self.id, launch)
        # The host books the machine before it builds it; the rest of the launch needs no waiting client.
        while self.region.host.state(self.id) is MachineState.TERMINATED and not ended.wait(0.02):
            pass
        if refusals:
            raise refusals[0]

    def start(self, *args: Any, **kwargs: Any) -> InstanceState:
        previous = copy.copy(self._state)
        if self.now in (MachineState.RUNNING, MachineState.PENDING):
            return previous
        if self.now is not MachineState.STOPPED:
            raise errors.incorrect_instance_state(
                f"The instance '{self.id}' is not in a state from which it can be started."
            )
        self.set_state(MachineState.PENDING, StateReason())
        self.region.queues.submit(self.id, self._start)
        return previous

    def _start(self) -> None:
        try:
            self.region.host.start(self.id)
        except (MachineError, NoCapacity) as error:
            log.error("start of %s: %s", self.id, error)
            with self.region.lock:
                self.set_state(
                    MachineState.STOPPED,
                    StateReason(f"Server.InternalError: {error}", "Server.InternalError"),
                )
                self.region.changed()
            return
        self._settle(MachineState.PENDING, MachineState.RUNNING)

    def stop(self, *args: Any, force: bool = False, **kwargs: Any) -> InstanceState:
        previous = copy.copy(self._state)
        if self.now in (MachineState.STOPPED, MachineState.STOPPING) and not force:
            return previous
        if not self.alive or self.now is MachineState.PENDING:
            raise errors.incorrect_instance_state(
                f"The instance '{self.id}' is not in a state from which it can be stopped."
            )
        self.set_state(MachineState.STOPPING)

        def shut_down() -> None:
            self.region.host.stop(self.id, force=force)
            with self.region.lock:
                if self.now is MachineState.STOPPING:
                    Instance.stop(self)
                    self.region.changed()

        self.region.queues.submit(self.id, shut_down)
        return previous

    def reboot(self, *args: Any, **kwargs: Any) -> None:
        if self.now is not MachineState.RUNNING:
            raise errors.incorrect_instance_state(
                f"The instance '{self.id}' is not in a state from which it can be rebooted."
            )
        self.running_since = time.time()
        self.region.queues.submit(self.id, lambda: self.region.host.reboot(self.id))

    def terminate(self, *args: Any, reason: StateReason | None = None, **kwargs: Any) -> InstanceState:
        previous = copy.copy(self._state)
        if not self.alive:
            return previous
        self.set_state(MachineState.SHUTTING_DOWN)

        def remove() -> None:
            self.region.host.terminate(self.id)
            with self.region.lock:
                self.book_termination(reason)

        self.region.queues.submit(self.id, remove)
        return previous

    def book_termination(self, reason: StateReason | None = None) -> None:
        """The machine is gone: free what the instance held in moto's books (address, interfaces, volumes)."""
        Instance.terminate(self)
        self.set_state(MachineState.TERMINATED, reason)
        self.layers = ()
        self.region.discard_unused_layers()
        self.region.changed()

    def _settle(self, before: MachineState, after: MachineState) -> None:
        """End a transition, unless something else was asked for meanwhile."""
        with self.region.lock:
            if self.now is before:
                self.set_state(after)
                self.region.changed()

    def _launch_failed(self, message: str) -> None:
        log.error("launch of %s: %s", self.id, message)
        with self.region.lock:
            self.book_termination(StateReason(f"Server.InternalError: {message}", "Server.InternalError"))

    def refresh(self) -> None:
        """Notice a machine that ended by itself: shut down from inside, or killed."""
        if self.now is not MachineState.RUNNING or self.region.busy(self.id):
            return
        seen = self.region.host.state(self.id)
        if seen is MachineState.TERMINATED:
            self.book_termination(
                StateReason("Server.InternalError: the machine is gone", "Server.InternalError")
            )
        elif seen is MachineState.STOPPED:
            reason = StateReason(
                "Client.InstanceInitiatedShutdown: Instance initiated shutdown",
                "Client.InstanceInitiatedShutdown",
            )
            if self.instance_initiated_shutdown_behavior == "terminate":
                self.terminate(reason=reason)
            else:
                Instance.stop(self)
                self.set_state(MachineState.STOPPED, reason)
                self.region.changed()


def _check(status: str, reachability: str) -> dict[str, Any]:
    return {"Status": status, "Details": [{"Name": "reachability", "Status": reachability}]}
