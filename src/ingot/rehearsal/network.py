"""The region's network: a namespace with a bridge, a way out, DHCP and DNS.

What has to change in the host's root namespace (a /30 link, masquerading, forwarding, inotify limits) is
written down before it is done, in one file for all regions of the host, so that the last region to go puts it
back.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import signal
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from ctypes import CDLL, get_errno
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any, TypeVar

from ingot.rehearsal.cgroups import Group
from ingot.rehearsal.config import Settings
from ingot.rehearsal.model import Machine, MachineError

T = TypeVar("T")

UPLINKS = IPv4Network("10.213.0.0/16")  # one /30 for each region
NETNS_DIRECTORY = Path("/run/netns")
# Least values while a region is up. Each machine's systemd alone takes a dozen inotify instances.
SYSCTLS = {
    "net.ipv4.ip_forward": 1,
    "fs.inotify.max_user_instances": 8192,
    "fs.inotify.max_user_watches": 1048576,
}
_CLONE_NEWNET = 0x40000000


class NetworkError(Exception):
    """The region's network cannot be made; the message holds the command and what it said."""


class Network:
    """Made by ``up`` before the daemon starts; used by the daemon to attach machines."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._registry = HostRegistry(settings.runtime_root)
        self._hosts = settings.runtime / "dhcp-hosts"
        self._pidfile = settings.runtime / "dnsmasq.pid"

    def up(self, group: Group) -> None:
        """Make what is missing; dnsmasq runs in ``group``.

        Raises:
            NetworkError: a step failed.
        """
        index = self._registry.claim(self.settings.name)
        if not self.settings.netns_path.exists():
            _run("ip", "netns", "add", self.settings.netns)
            self._link(index)
        _nft(self._root_rules(index))
        self._pass_firewall(index)
        self._hosts.mkdir(parents=True, exist_ok=True)
        if not self.dns_pid():
            self._start_dnsmasq(group)

    def down(self) -> None:
        """Remove all of it, whatever state it is in. The region's processes must have ended."""
        index = self._registry.index(self.settings.name)
        if index is not None:
            _run("ip", "link", "del", f"ingot{index}", may_fail=True)
        _run("nft", "delete", "table", "ip", self.settings.nft_table, may_fail=True)
        self._close_firewall()
        if self.settings.netns_path.exists():
            _run("ip", "netns", "del", self.settings.netns, may_fail=True)
            self.settings.netns_path.unlink(
                missing_ok=True
            )  # a file without its mount, of an `add` cut short
        self._registry.release(self.settings.name)

    def dns_pid(self) -> int | None:
        """Process id of the region's dnsmasq, if it runs."""
        try:
            pid = int(self._pidfile.read_text())
            return pid if b"dnsmasq" in Path(f"/proc/{pid}/cmdline").read_bytes() else None
        except (OSError, ValueError):
            return None

    def register(self, machine: Machine) -> None:
        """Let DHCP and DNS know the machine.

        Raises:
            MachineError: its address is outside of the region's VPC.
        """
        if IPv4Address(machine.private_ip) not in self.settings.vpc:
            raise MachineError(
                f"{machine.instance_id}: {machine.private_ip} is outside of {self.settings.vpc}; the local "
                "region routes its default VPC only: launch the instance into a subnet of that one"
            )
        short_name = machine.hostname.partition(".")[0]
        (self._hosts / machine.instance_id).write_text(f"{machine.mac},{machine.private_ip},{short_name}\n")

    def forget(self, machine: Machine) -> None:
        """Undo ``register`` and remove the machine's link, if there is any."""
        (self._hosts / machine.instance_id).unlink(missing_ok=True)
        self.unlink(machine)
        self._release_lease(machine)
        if pid := self.dns_pid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGHUP)  # dnsmasq notices new files by itself, but not that one has gone

    def unlink(self, machine: Machine) -> None:
        """Remove the machine's end on the bridge; by itself it goes a while after the machine's namespace."""
        _run(*self._inside, "ip", "link", "del", link_name(machine), may_fail=True)

    def call(self, function: Callable[[], T]) -> T:
        """``function`` run in the region's network namespace (sockets made there stay there)."""
        return in_netns(self.settings.netns_path, function)

    @property
    def _inside(self) -> tuple[str, ...]:
        return ("nsenter", f"--net={self.settings.netns_path}")

    def _link(self, index: int) -> None:
        host, region = _uplink(index)
        outside, gateway, vpc = f"ingot{index}", self.settings.gateway, self.settings.vpc
        _run(
            "ip",
            "link",
            "add",
            outside,
            "type",
            "veth",
            "peer",
            "name",
            "uplink",
            "netns",
            self.settings.netns,
        )
        _run("ip", "link", "set", outside, "addrgenmode", "none")
        _run("ip", "address", "add", f"{host}/30", "dev", outside)
        _run("ip", "link", "set", outside, "up")
        services = (self.settings.imds_address, self.settings.dns_address, self.settings.endpoint_address)
        batch = [
            "link set lo up",
            *(f"address add {address}/32 dev lo" for address in services),
            f"address add {region}/30 dev uplink",
            "link set uplink up",
            f"route add default via {host}",
            "link add br0 type bridge forward_delay 0",
            f"address add {gateway}/{vpc.prefixlen} dev br0",
            "link set br0 up",
        ]
        _run(*self._inside, "ip", "-batch", "-", stdin="\n".join(batch) + "\n")
        _run(*self._inside, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
        # Out is open, in is closed: only who is in this namespace reaches what is in it.
        rules = """
            table ip ingot {
              chain out { type nat hook postrouting priority srcnat; oifname "uplink" masquerade; }
              chain in { type filter hook input priority filter;
                iifname "uplink" ct state established,related accept; iifname "uplink" drop; }
              chain through { type filter hook forward priority filter;
                iifname "uplink" ct state established,related accept; iifname "uplink" drop; }
            }"""
        _nft(rules, self._inside)

    def _root_rules(self, index: int) -> str:
        host, _ = _uplink(index)
        network = IPv4Network(f"{host}/30", strict=False)
        table = self.settings.nft_table
        return f"""
            add table ip {table}
            delete table ip {table}
            table ip {table} {{
              chain out {{ type nat hook postrouting priority srcnat;
                ip saddr {network} oifname != "ingot{index}" masquerade; }}
            }}"""

    def _pass_firewall(self, index: int) -> None:
        """Let the region's packets through chains that drop what they do not know: Docker's, for one.

        No table of ours can do that: a packet passes only if every chain of the hook accepts it.
        """
        self._close_firewall()
        for chain in _ruleset("chain"):
            if chain.get("hook") == "forward" and chain.get("policy") == "drop":
                place = f"{chain['family']} {chain['table']} {chain['name']}"
                for direction in ("iifname", "oifname"):
                    rule = f'{direction} "ingot{index}" accept comment "{self.settings.netns}"'
                    _nft(f"insert rule {place} {rule}")

    def _close_firewall(self) -> None:
        for rule in _ruleset("rule"):
            if rule.get("comment") == self.settings.netns:
                place = (rule["family"], rule["table"], rule["chain"])
                _run("nft", "delete", "rule", *place, "handle", str(rule["handle"]), may_fail=True)

    def _start_dnsmasq(self, group: Group) -> None:
        settings = self.settings
        self._pidfile.unlink(missing_ok=True)
        log = settings.runtime / "dnsmasq.log"
        command = [
            "dnsmasq",
            "--conf-file=/dev/null",
            "--user=root",
            f"--pid-file={self._pidfile}",
            f"--log-facility={log}",
            "--bind-interfaces",
            f"--listen-address={settings.dns_address},{settings.gateway}",
            "--no-hosts",
            "--no-resolv",
            *(f"--server={server}" for server in _name_servers()),
            "--domain=ec2.internal",
            "--local=/ec2.internal/",
            f"--address=/instance-data.ec2.internal/{settings.imds_address}",
            f"--dhcp-range={settings.vpc.network_address},static,{settings.vpc.netmask},1h",
            f"--dhcp-hostsdir={self._hosts}",
            f"--dhcp-option=option:router,{settings.gateway}",
            f"--dhcp-option=option:dns-server,{settings.dns_address}",
            f"--dhcp-leasefile={settings.runtime / 'dhcp.leases'}",
            "--dhcp-authoritative",
            "--no-ping",
        ]
        # dnsmasq forks into the background once it listens, so the call returns when it is ready
        _run(*group.enter([*self._inside, *command]))

    def _release_lease(self, machine: Machine) -> None:
        """Tell dnsmasq on the machine's behalf that its address is free, so that the next one may have it."""
        mac = bytes.fromhex(machine.mac.replace(":", ""))
        server = IPv4Address(self.settings.gateway).packed
        packet = struct.pack(
            "!BBBBIHH4s4s4s4s16s64s128s4s",
            *(1, 1, 6, 0, secrets.randbits(32), 0, 0),
            *(IPv4Address(machine.private_ip).packed, b"", b"", b"", mac, b"", b"", b"\x63\x82\x53\x63"),
        )
        packet += b"\x35\x01\x07" + b"\x36\x04" + server + b"\xff"  # DHCPRELEASE, server identifier, end

        def send() -> None:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as release:
                release.sendto(packet, (str(self.settings.gateway), 67))

        with contextlib.suppress(OSError):
            self.call(send)


class HostRegistry:
    """Which regions the host holds, and what its settings were before the first of them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = directory / "regions.json"

    def claim(self, name: str) -> int:
        """The region's index (kept until released); raises the host's settings to what regions need."""
        with self._locked() as record:
            if name not in record["regions"]:
                taken = set(record["regions"].values())
                record["regions"][name] = next(i for i in range(1 << 14) if i not in taken)
            record.setdefault("netns_mounted", os.path.ismount(NETNS_DIRECTORY))
            changes = {}
            for key, least in SYSCTLS.items():
                value = int(_sysctl(key).read_text())
                if value < least:
                    record["sysctls"].setdefault(key, value)
                    changes[key] = least
            self._write(
                record
            )  # before the change: a kill in between leaves nothing that is not written down
            for key, least in changes.items():
                _sysctl(key).write_text(str(least))
            return int(record["regions"][name])

    def index(self, name: str) -> int | None:
        with self._locked() as record:
            return record["regions"].get(name)  # type: ignore[no-any-return]

    def release(self, name: str) -> None:
        """Forget the region; the last one puts the host's settings back."""
        with self._locked() as record:
            record["regions"].pop(name, None)
            if record["regions"]:
                self._write(record)
                return
            for key, value in record["sysctls"].items():
                _sysctl(key).write_text(str(value))
            # `ip netns add` makes this directory a mount point for ever
            there = NETNS_DIRECTORY.is_dir() and not any(NETNS_DIRECTORY.iterdir())
            if record.get("netns_mounted") is False and there:
                _run("umount", str(NETNS_DIRECTORY), may_fail=True)
            self._file.unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[dict[str, Any]]:
        self._directory.mkdir(parents=True, exist_ok=True)
        with (self._directory / "regions.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            record = (
                json.loads(self._file.read_text()) if self._file.exists() else {"regions": {}, "sysctls": {}}
            )
            yield record

    def _write(self, record: dict[str, Any]) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.write_text(json.dumps(record, indent=2))
        fresh.replace(self._file)


def link_name(machine: Machine) -> str:
    """Name of the machine's link on the bridge: at most 15 characters, the unique end of the id."""
    return f"m-{machine.instance_id[-12:]}"


def in_netns(path: Path, function: Callable[[], T]) -> T:
    """``function`` run by a thread that has entered the network namespace at ``path``."""

    def enter_and_call() -> T:
        with path.open() as namespace:
            if CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
                raise OSError(get_errno(), f"setns {path}")
        return function()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(enter_and_call).result()


def _uplink(index: int) -> tuple[IPv4Address, IPv4Address]:
    first = UPLINKS.network_address + 4 * index
    return first + 1, first + 2


def _sysctl(key: str) -> Path:
    return Path("/proc/sys") / key.replace(".", "/")


def _name_servers() -> list[str]:
    """The host's name servers that other network namespaces reach: not systemd-resolved's stub."""
    for path in (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf")):
        if not path.exists():
            continue
        words = (line.split() for line in path.read_text().splitlines())
        servers = [line[1] for line in words if len(line) > 1 and line[0] == "nameserver"]
        servers = [server for server in servers if not server.startswith("127.") and ":" not in server]
        if servers:
            return servers
    raise NetworkError(
        "the host has no name server outside of its loopback (in /etc/resolv.conf or "
        "/run/systemd/resolve/resolv.conf), so machines could resolve no name: name one there"
    )


def _ruleset(kind: str) -> list[dict[str, Any]]:
    """The host's nftables objects of one kind ("chain", "rule"), as nft describes them."""
    command = ["nft", "--json", "--handle", "list", "ruleset"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    if listed.returncode:
        raise NetworkError(f"`{' '.join(command)}` failed: {listed.stderr.strip()}")
    return [entry[kind] for entry in json.loads(listed.stdout)["nftables"] if kind in entry]


def _nft(rules: str, prefix: tuple[str, ...] = ()) -> None:
    _run(*prefix, "nft", "-f", "-", stdin=rules)


def _run(*command: str, stdin: str | None = None, may_fail: bool = False) -> None:
    result = subprocess.run(
        command,
        input=stdin,
        stdin=None if stdin is not None else subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode and not may_fail:
        said = (result.stderr or result.stdout).strip()
        raise NetworkError(f"`{' '.join(command)}` failed: {said or f'exit status {result.returncode}'}")
