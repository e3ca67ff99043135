"""Machines: systemd-nspawn on overlays, the implementation of ``model.MachineHost``.

One machine is a directory in the state (its record, its root's upper layer, its console) and, while it is on,
a directory in the runtime (mount points, what its hypervisor shows it), a cgroup and a tree of processes
below one ``unshare``: see launch.sh and boot.sh.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ingot.rehearsal import capacity
from ingot.rehearsal.binfmt import BinfmtError
from ingot.rehearsal.cgroups import Group, Limits, RegionGroups
from ingot.rehearsal.config import Settings
from ingot.rehearsal.emulation import Emulation, EmulationError, Processor, clean, foreign
from ingot.rehearsal.hardware import dress, nspawn_options, write_meminfo
from ingot.rehearsal.layers import LayerStore, link_layers, remove_tree
from ingot.rehearsal.model import Machine, MachineError, MachineState, NoCapacity
from ingot.rehearsal.network import Network, link_name
from ingot.rehearsal.processes import affinity, child_of, init_of
from ingot.rehearsal.records import Record, Records
from ingot.rehearsal.trees import TreeError
from ingot.rehearsal.waiting import wait_for

BOOT_TIMEOUT = 120.0  # until the machine's init runs; its own start-up is not waited for
STOP_TIMEOUT = 90.0  # then the plug is pulled, as EC2 does
CONSOLE_BYTES = 64 << 10
REFRESH_SECONDS = 2.0
REBOOT_STATUS = 133  # with --keep-unit, systemd-nspawn leaves it to its caller to start the machine again
_RESUME_AT_ONCE = 4
_HERE = Path(__file__).parent
_UNSHARE = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc")


@dataclass
class _Live:
    """A machine that this process knows: its record, its state and, while it is on, its processes."""

    record: Record
    state: MachineState
    lock: threading.RLock = field(default_factory=threading.RLock)
    process: subprocess.Popen[bytes] | None = None
    init: int | None = None


class NspawnHost:
    """``model.MachineHost`` with systemd-nspawn. Lives in the daemon, inside the region's netns."""

    def __init__(
        self, settings: Settings, network: Network | None = None, emulation: Emulation | None = None
    ) -> None:
        self.settings = settings
        self.network = network or Network(settings)
        self.emulation = emulation or Emulation(settings)
        self._groups = RegionGroups(settings.cgroup)
        self._layers = LayerStore(settings.snapshots)
        self._records = Records(settings)
        self._machines: dict[str, _Live] = {}
        self._lock = (
            threading.RLock()
        )  # of the table of machines; taken after a machine's own lock, never before
        self._closing = threading.Event()
        for record in self._records.load():
            self._machines[record.machine.instance_id] = _Live(record, MachineState.STOPPED)
        threading.Thread(target=self._refresh, name="machines", daemon=True).start()

    def resume(self) -> list[str]:
        """Start the machines that ran when the last daemon ended; those that do not start are left stopped.

        To be called once by the daemon, before it serves. Returns the ids that run now.
        """
        wanted = [name for name, live in self._machines.items() if live.record.should_run]

        def start(instance_id: str) -> str | None:
            try:
                self.start(instance_id)
            except (MachineError, NoCapacity) as error:
                print(f"{instance_id} stays stopped: {error}", flush=True)
                return None
            return instance_id

        with ThreadPoolExecutor(_RESUME_AT_ONCE) as pool:
            return [name for name in pool.map(start, wanted) if name]

    def close(self) -> None:
        """Stop all machines cleanly and in parallel, remembering which ran (the daemon's last act)."""
        self._closing.set()
        with self._lock:
            running = [live for live in self._machines.values() if live.process]
        with ThreadPoolExecutor(max(1, len(running))) as pool:
            list(pool.map(self._halt_held, running))

    def known(self) -> dict[str, Machine]:
        """Every machine that has a root here, running or stopped."""
        with self._lock:
            return {name: live.record.machine for name, live in self._machines.items()}

    def launch(self, machine: Machine) -> None:
        live = _Live(Record(machine=machine, layers=machine.layers), MachineState.PENDING)
        if foreign(machine.architecture) and (why := self.emulation.check()):
            raise NoCapacity(why)
        with live.lock:
            with self._lock:
                if machine.instance_id in self._machines:
                    raise MachineError(f"{machine.instance_id} exists already")
                self._check_capacity(machine)
                self._machines[machine.instance_id] = live
            try:
                (self._state(machine) / "upper").mkdir(parents=True)
                self._records.save(live.record)
                self._boot(live)
            except BaseException:
                self._erase(live)
                raise

    def start(self, instance_id: str) -> None:
        with self._held(instance_id) as live:
            if live.process:
                return
            with self._lock:
                self._check_capacity(live.record.machine)
                live.state = MachineState.PENDING
            try:
                self._boot(live)
            except BaseException:
                live.state = MachineState.STOPPED
                self._keep(live, should_run=False)
                raise
            self._keep(live, should_run=True)

    def stop(self, instance_id: str, *, force: bool = False) -> None:
        with self._held(instance_id) as live:
            live.state = MachineState.STOPPING
            self._halt(live, force=force)
            self._keep(live, should_run=False)
            live.state = MachineState.STOPPED

    def reboot(self, instance_id: str) -> None:
        with self._held(instance_id) as live:
            self._halt(live, force=False)
            self.start(instance_id)

    def terminate(self, instance_id: str) -> None:
        try:
            with self._held(instance_id) as live:
                live.state = MachineState.SHUTTING_DOWN
                self._halt(live, force=False)
                self._erase(live)
        except MachineError:
            if instance_id in self._machines:
                raise

    def freeze(self, instance_id: str, snapshot_id: str) -> tuple[Path, ...]:
        with self._held(instance_id) as live:
            upper = self._state(live.record.machine) / "upper"
            layers = self._layers.record(snapshot_id, live.record.layers)
            if live.process:
                with self._group(live).frozen():
                    self._layers.copy(upper, snapshot_id)
            else:
                # The record first: a kill between these two is mended from it (see Records)
                self._keep(live, layers=layers)
                self._records.rename_upper(live.record)
            return layers

    def discard(self, layer: Path) -> None:
        self._layers.discard(layer)
        self._collect()

    def state(self, instance_id: str) -> MachineState:
        live = self._machines.get(instance_id)
        return live.state if live else MachineState.TERMINATED

    def reachable(self, instance_id: str) -> bool:
        live = self._machines.get(instance_id)
        if not live or not live.init or live.state is not MachineState.RUNNING:
            return False
        # systemd keeps this file until user sessions may start, which is after basic and network targets
        if Path(f"/proc/{live.init}/root/run/nologin").exists():
            return False
        address = live.record.machine.private_ip

        def answers() -> bool:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
                probe.settimeout(1)
                return probe.connect_ex((address, 22)) in (0, errno.ECONNREFUSED)

        return self.network.call(answers)

    def console(self, instance_id: str) -> bytes:
        live = self._machines.get(instance_id)
        path = self._console(live) if live else None
        if not path or not path.exists():
            return b""
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - CONSOLE_BYTES))
            return log.read()

    # A machine's life

    def _boot(self, live: _Live) -> None:
        machine = live.record.machine
        run, group = self._run(machine), self._group(live)
        self._clear(live)
        try:
            for name in ("root", "cgroup", "hypervisor"):
                (run / name).mkdir(parents=True)
            (self._state(machine) / "work").mkdir(exist_ok=True)
            processor = self._emulate(live) if foreign(machine.architecture) else None
            if missing := [str(layer) for layer in live.record.layers if not layer.is_dir()]:
                raise MachineError(f"{machine.instance_id}: its image's layer {missing[0]} is gone")
            lower = link_layers(live.record.layers, run / "layers")
            cores = capacity.cores_for(machine.vcpus, self._cores_in_use())
            group.create(Limits(machine.memory_bytes, machine.vcpus, cores))
            dress(run / "hypervisor", machine, self.settings, cores, processor)
            self._write_meminfo(live)
            self.network.register(machine)
            environ = {
                "PATH": os.environ["PATH"],
                "INGOT_CGROUPS": " ".join(map(str, group.procs)),
                "INGOT_REGION": str(self.settings.netns_path),
                "INGOT_LINK": link_name(machine),
                "INGOT_LOWER": lower,
                "INGOT_RUN": str(run),
                "INGOT_STATE": str(self._state(machine)),
                "INGOT_MAC": machine.mac,
                "INGOT_NAME": machine.instance_id,
            }
            with self._console(live).open("ab") as console:
                live.process = subprocess.Popen(
                    [*_UNSHARE, str(_HERE / "launch.sh"), *nspawn_options(machine, processor)],
                    stdin=subprocess.DEVNULL,
                    stdout=console,
                    stderr=subprocess.STDOUT,
                    env=environ,
                    start_new_session=True,  # Ctrl-C at a daemon in the foreground is for the daemon
                )
            process = live.process
            started = wait_for(lambda: init_of(group) or process.poll() is not None, BOOT_TIMEOUT)
            live.init = init_of(group)
            if not live.init:
                why = "its init did not start in time" if started is None else self._last_words(live)
                raise MachineError(f"{machine.instance_id} did not start: {why} (log: {self._console(live)})")
        except OSError as error:
            self._clear(live)
            raise MachineError(f"{machine.instance_id} did not start: {error}") from error
        except BaseException:
            self._clear(live)
            raise
        live.state = MachineState.RUNNING
        threading.Thread(target=self._watch, args=(live, process), daemon=True).start()

    def _halt(self, live: _Live, *, force: bool) -> None:
        """Switch off; returns when nothing of it runs."""
        process = live.process
        if process and not force and (supervisor := child_of(process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(supervisor, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT)
        self._clear(live)

    def _halt_held(self, live: _Live) -> None:
        with live.lock:
            self._halt(live, force=False)

    def _clear(self, live: _Live) -> None:
        """Remove all that a machine which is on has, whatever of it there is."""
        group = self._group(live)
        group.kill()
        if live.process:
            live.process.kill()
            live.process.wait()
        live.process = live.init = None
        group.remove()
        if foreign(live.record.machine.architecture):
            clean(self._state(live.record.machine) / "upper")
        self.network.unlink(live.record.machine)
        shutil.rmtree(self._run(live.record.machine), ignore_errors=True)

    def _watch(self, live: _Live, process: subprocess.Popen[bytes]) -> None:
        """Notice when a machine ends by itself (reboot, poweroff, a crash, the whole of it out of memory)."""
        status = process.wait()
        with live.lock:
            if live.process is not process:
                return  # somebody switched it off, and knows
            self._clear(live)
            if status == REBOOT_STATUS and not self._closing.is_set():
                with contextlib.suppress(
                    MachineError
                ):  # its console says why, and that it is off is plain to see
                    self._boot(live)
                    return
            live.state = MachineState.STOPPED
            if not self._closing.is_set():
                self._keep(live, should_run=False)

    def _erase(self, live: _Live) -> None:
        machine = live.record.machine
        self._clear(live)
        self.network.forget(machine)
        # The record goes first: what is left of a directory without it is swept by the next daemon
        (self._state(machine) / "machine.json").unlink(missing_ok=True)
        with self._lock:
            self._machines.pop(machine.instance_id, None)
        remove_tree(self._state(machine))
        self._collect()

    def _check_capacity(self, machine: Machine) -> None:
        taken = sum(
            live.record.machine.memory_bytes
            for live in self._machines.values()
            if live.state not in (MachineState.STOPPED, MachineState.TERMINATED)
        )
        capacity.check(machine, taken, self.settings)

    def _cores_in_use(self) -> list[set[int]]:
        with self._lock:
            return [
                affinity(live.init or live.process.pid) for live in self._machines.values() if live.process
            ]

    def _emulate(self, live: _Live) -> Processor:
        """What a machine of another architecture takes; its console says what takes long."""

        @contextmanager
        def step(what: str) -> Iterator[None]:
            with self._console(live).open("a") as console:
                console.write(f"local EC2: {what}\n")
            started = time.monotonic()
            yield
            with self._console(live).open("a") as console:
                console.write(f"local EC2: done after {time.monotonic() - started:.0f} s\n")

        try:
            return self.emulation.prepare(live.record.machine, step)
        except (BinfmtError, EmulationError, TreeError) as error:
            raise MachineError(f"{live.record.machine.instance_id} did not start: {error}") from error

    def _write_meminfo(self, live: _Live) -> None:
        machine = live.record.machine
        path = self._run(machine) / "hypervisor/meminfo"
        write_meminfo(path, machine.memory_bytes, self._group(live).memory())

    def _refresh(self) -> None:
        while not self._closing.wait(REFRESH_SECONDS):
            for live in list(self._machines.values()):
                if live.process and live.state is MachineState.RUNNING:
                    with contextlib.suppress(OSError):
                        self._write_meminfo(live)

    # Places and records

    def _state(self, machine: Machine) -> Path:
        return self._records.directory(machine)

    def _run(self, machine: Machine) -> Path:
        return self.settings.runtime / "machines" / machine.instance_id

    def _console(self, live: _Live) -> Path:
        return self._state(live.record.machine) / "console.log"

    def _group(self, live: _Live) -> Group:
        return self._groups.machine(live.record.machine.instance_id)

    def _keep(self, live: _Live, **changes: object) -> None:
        live.record = live.record.model_copy(update=changes)
        self._records.save(live.record)

    def _collect(self) -> None:
        with self._lock:
            used = {layer for live in self._machines.values() for layer in live.record.layers}
            self._layers.collect(used)

    @contextmanager
    def _held(self, instance_id: str) -> Iterator[_Live]:
        with self._lock:
            live = self._machines.get(instance_id)
        if live is None:
            raise MachineError(f"{instance_id} is not a machine of this region")
        with live.lock:
            if instance_id not in self._machines:
                raise MachineError(f"{instance_id} has been terminated meanwhile")
            yield live

    def _last_words(self, live: _Live) -> str:
        lines = [
            line
            for line in self.console(live.record.machine.instance_id).decode(errors="replace").splitlines()
            if line.strip()
        ]
        return lines[-1] if lines else "it said nothing"
