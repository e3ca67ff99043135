"""A region's life cycle: up, down, and commands put into it.

One rule makes it robust against a kill at any point: a region is either whole (its daemon is ready and its
dnsmasq runs) or it is swept. Sweeping needs no knowledge of how far anything came: every process is in the
region's cgroup, every mount in a namespace that ends with its processes, and what touches the host is on
record (network.HostRegistry).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from ingot.checkout import ROOT
from ingot.rehearsal import base, host
from ingot.rehearsal.cgroups import RegionGroups
from ingot.rehearsal.client import ec2_client
from ingot.rehearsal.config import Settings
from ingot.rehearsal.emulation import Emulation, foreign
from ingot.rehearsal.layers import remove_tree
from ingot.rehearsal.network import Network
from ingot.rehearsal.waiting import wait_for

DAEMON_MODULE = "ingot.rehearsal.daemon"
READY_TIMEOUT = 300.0  # machines that ran before are booted again before it is ready
STOP_TIMEOUT = 150.0
# Name resolution of commands in the region is that of its machines. A mount namespace of their own, so that
# the host's /etc/resolv.conf stays as it is; what the host unmounts is unmounted there too.
_WITH_DNS = 'mount --bind "$INGOT_RESOLV_CONF" /etc/resolv.conf; unset INGOT_RESOLV_CONF; exec "$@"'

Step = Callable[[str], AbstractContextManager[None]]


class ControlError(Exception):
    """The region cannot be brought to the state that was asked for; the message says why and what to do."""


class Control:
    """What ``ingot local`` does with one region. ``step`` wraps each step for whoever watches."""

    def __init__(self, settings: Settings, step: Step | None = None) -> None:
        self.settings = settings
        self.groups = RegionGroups(settings.cgroup)
        self.network = Network(settings)
        self.emulation = Emulation(settings, wrap=self.command)
        self._step = step or (lambda _: contextlib.nullcontext())
        self._ready = settings.runtime / "daemon.ready"

    def is_up(self) -> bool:
        return bool(self._ready.exists() and self.daemon_pid() and self.network.dns_pid())

    def require_up(self) -> None:
        if not self.is_up():
            raise ControlError(f"the local region {self.settings.name!r} is down: `ingot local up` starts it")

    def daemon_pid(self) -> int | None:
        for pid in self.groups.daemon.pids():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if DAEMON_MODULE.encode() in words and b"python" in words[0]:
                    return pid
        return None

    def up(self) -> bool:
        """Bring the region up; False if it was up already.

        Raises:
            HostRefused: this host cannot hold one; nothing was created.
            ControlError, TreeError, NetworkError, CgroupError: a step failed; all was removed again.
        """
        with self._alone():
            if self.is_up():
                return False
            with self._step("check the host"):
                host.require(self.settings)
            try:
                self._build()
            except BaseException:
                self._sweep()
                raise
            return True

    def make_ready(self, architecture: str) -> None:
        """Make now what the first machine of this architecture would wait for.

        Raises:
            BinfmtError, EmulationError, TreeError: it cannot be made.
        """
        self.require_up()
        if foreign(architecture):
            self.emulation.make_base(self._step)

    def down(self, *, purge: bool = False) -> bool:
        """End the region and remove all it has outside of its state (and that too, to ``purge``).

        Returns False if nothing was up. Machines that run are shut down cleanly; `up` starts them again.
        """
        if self.groups.holds(os.getpid()):
            raise ControlError("this shell is inside the region that is to end: leave it first")
        with self._alone():
            daemon = self.daemon_pid()
            was_there = (
                daemon is not None or self.groups.whole.unified.exists() or self.settings.runtime.exists()
            )
            if daemon:
                with self._step("shut the machines down"):
                    self._stop_daemon(daemon)
            if was_there:
                with self._step("remove network, cgroups and what else is left"):
                    self._sweep()
            if purge:
                was_there |= self._purge()
            return was_there

    def command(self, command: Sequence[str], *, netns: bool = True) -> list[str]:
        """``command`` as it has to be run to be part of the region (not ``netns``: of its cgroup only)."""
        if not netns:
            return self.groups.run.enter(command)
        resolv_conf = self.settings.runtime / "resolv.conf"
        inside = [
            "nsenter",
            f"--net={self.settings.netns_path}",
            "unshare",
            "--mount",
            "--propagation",
            "slave",
        ]
        with_dns = ["env", f"INGOT_RESOLV_CONF={resolv_conf}", "sh", "-c", _WITH_DNS, "sh", *command]
        return self.groups.run.enter([*inside, *with_dns])

    def environment(self) -> dict[str, str]:
        """What a command in the region has to have in its environment, beside what the caller has."""
        cache = self.settings.cache
        path = [
            str(cache / "packer/bin"),
            str(Path(sys.executable).parent),
            os.environ.get("PATH", os.defpath),
        ]
        return {
            "AWS_ENDPOINT_URL": self.settings.endpoint_url,
            "AWS_ACCESS_KEY_ID": "AKIAINGOTLOCALREGION",
            "AWS_SECRET_ACCESS_KEY": "0nlyTheL0calRegionTakesThis",
            "AWS_REGION": self.settings.region,
            "AWS_DEFAULT_REGION": self.settings.region,
            "AWS_EC2_METADATA_DISABLED": "true",
            "INGOT_MIRROR": self.settings.mirror_url,
            "INGOT_LOCAL_NAME": self.settings.name,
            "PKR_VAR_inventory": str(ROOT / "inventories/rehearsal"),
            # Packer runs inside the VPC here, and comes from the bridge's address.
            "PKR_VAR_ssh_interface": "private_ip",
            "PKR_VAR_builder_cidrs": f'["{self.settings.gateway}/32"]',
            "PATH": ":".join(path),
            "PACKER_PLUGIN_PATH": str(cache / "packer/plugins"),
            "PACKER_CONFIG_DIR": str(cache / "packer/config"),
            "CHECKPOINT_DISABLE": "1",
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        }

    @cached_property
    def ec2(self) -> Any:
        """boto3's EC2 client, whose calls are made from inside the region."""
        return ec2_client(self.environment(), self.network)

    def _build(self) -> None:
        settings = self.settings
        with self._step("remove what an earlier region left"):
            self._sweep()
            remove_tree(settings.purged)
        settings.runtime.mkdir(parents=True)
        settings.state.mkdir(parents=True, exist_ok=True)
        settings.state.chmod(0o700)  # roots of machines, with their keys
        self.groups.create()
        if not base.find(settings, "x86_64"):
            with self._step("make the Debian base tree (once, a minute or two)"):
                base.ensure(settings, "x86_64", wrap=self.groups.run.enter)
        with self._step("make the network"):
            self.network.up(self.groups.daemon)
            resolv_conf = f"search ec2.internal\nnameserver {settings.dns_address}\n"
            (settings.runtime / "resolv.conf").write_text(resolv_conf)
        (settings.runtime / "settings.json").write_text(settings.model_dump_json())
        with self._step("start the API, the metadata service and the machines that ran"):
            self._start_daemon()

    def _start_daemon(self) -> None:
        inside = ["nsenter", f"--net={self.settings.netns_path}", sys.executable, "-m", DAEMON_MODULE]
        environ = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        environ |= {
            "INGOT_CACHE": str(self.settings.cache),
            "INGOT_LOCAL_NAME": self.settings.name,
            "INGOT_LOCAL_MEMORY_SCALE": str(self.settings.memory_scale),
            "INGOT_LOCAL_CPU_SCALE": str(self.settings.cpu_scale),
        }
        with self.settings.daemon_log.open("ab") as log:
            started_at = log.tell()
            process = subprocess.Popen(
                self.groups.daemon.enter(inside),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environ,
                cwd="/",
                start_new_session=True,
            )
        wait_for(lambda: self._ready.exists() or process.poll() is not None, READY_TIMEOUT)
        if not self._ready.exists() or process.poll() is not None:
            said = self.settings.daemon_log.read_bytes()[started_at:].decode(errors="replace")
            raise ControlError(
                f"the daemon did not start: {_first_error(said)} (log: {self.settings.daemon_log})"
            )

    def _stop_daemon(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        # Killed by the sweep that follows if it takes longer
        wait_for(lambda: self.daemon_pid() is None, STOP_TIMEOUT)

    def _purge(self) -> bool:
        """Remove the state; False if there is none.

        Renamed first, at one stroke: of a removal that is interrupted, records of images would stay whose
        layers are gone.
        """
        state, purged = self.settings.state, self.settings.purged
        if not state.exists() and not purged.exists():
            return False
        with self._step("remove machines, images and records"):
            remove_tree(purged)  # left by a purge that was interrupted
            if state.exists():
                state.rename(purged)
                remove_tree(purged)
        return True

    def _sweep(self) -> None:
        self.groups.destroy()
        self.emulation.end()
        self.network.down()
        remove_tree(self.settings.runtime)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One ``up`` or ``down`` of a region at a time."""
        if refusal := host.check_root(os.geteuid()):
            raise host.HostRefused([refusal])
        self.settings.runtime_root.mkdir(parents=True, exist_ok=True)
        with (self.settings.runtime_root / f"{self.settings.name}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                with self._step("wait for another `ingot local up` or `down` of this region"):
                    fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def settings_of_running(settings: Settings) -> Settings:
    """The settings that a region which is up was brought up with: the environment may say others by now."""
    record = settings.runtime / "settings.json"
    try:
        return Settings.model_validate_json(record.read_text())
    except (FileNotFoundError, ValueError):  # the latter of an `up` that was killed: `down` must work
        return settings


def _first_error(log: str) -> str:
    """The first error among the daemon's JSON lines, or its last line."""
    last = "it said nothing"
    for line in log.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            last = line.strip() or last
            continue
        if entry.get("level") == "error":
            return str(entry["message"])
        last = str(entry.get("message", last))
    return last
