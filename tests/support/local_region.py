"""A local region for tests, seen from outside: an EC2 client, ssh to its machines, what it must not leave."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ingot.checkout import ROOT
from ingot.rehearsal import base, binfmt
from ingot.rehearsal.config import Settings
from ingot.rehearsal.control import Control
from ingot.rehearsal.network import SYSCTLS

CLI = Path(sys.executable).parent / "ingot"


class NotInTimeError(AssertionError):
    """What was waited for did not come."""


def eventually(what: str, condition: Callable[[], Any], timeout: float = 180) -> Any:
    """The first true value of ``condition``; an error that says ``what`` if there is none in time."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise NotInTimeError(f"after {timeout:.0f} s still not: {what}")
        time.sleep(0.2)
    return value


class LocalRegion:
    """One region, by default with a key pair of the tests' own."""

    def __init__(self, name: str, directory: Path, *, key: Path | None = None) -> None:
        self.settings = Settings.from_environment({**os.environ, "INGOT_LOCAL_NAME": name})
        self.control = Control(self.settings)
        self.environ = {**os.environ, "INGOT_LOCAL_NAME": name}
        self._key = key or directory / f"{name}.pem"

    @property
    def ec2(self) -> Any:
        return self.control.ec2

    def program(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """What a program of the venv says inside the region, run where the checkout is; errors among it."""
        done = subprocess.run(
            self.control.command([str(CLI.with_name(command[0])), *command[1:]]),
            cwd=ROOT,
            env={**os.environ, **self.control.environment(), "ANSIBLE_NOCOLOR": "1", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        print(done.stdout)
        return done

    @classmethod
    @contextmanager
    def fresh(cls, name: str, directory: Path) -> Iterator[LocalRegion]:
        """A region that is down and has nothing from before; purged at the end."""
        region = cls(name, directory)
        region.control.down(purge=True)
        base.ensure(region.settings)
        try:
            yield region
        finally:
            region.control.down(purge=True)

    def cli(self, *arguments: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
        """`ingot local …` as a user calls it."""
        return subprocess.run(
            [CLI, "local", *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=self.environ,
            **kwargs,
        )

    def base_image(self, architecture: str = "amd64") -> str:
        images = self.ec2.describe_images(
            Owners=["136693071363"], Filters=[{"Name": "name", "Values": [f"debian-13-{architecture}-*"]}]
        )
        return str(images["Images"][0]["ImageId"])

    def launch(self, count: int = 1, *, image: str = "", kind: str = "t3.micro", **more: Any) -> list[Any]:
        """Instances, as soon as the call returns."""
        if not self._key.exists():
            material = self.ec2.create_key_pair(KeyName="tests")["KeyMaterial"]
            self._key.touch(mode=0o600)
            self._key.write_text(material)
        return list(
            self.ec2.run_instances(
                ImageId=image or self.base_image(),
                InstanceType=kind,
                MinCount=count,
                MaxCount=count,
                KeyName="tests",
                **more,
            )["Instances"]
        )

    def describe(self, instance: Any) -> Any:
        answer = self.ec2.describe_instances(InstanceIds=[instance["InstanceId"]])
        return answer["Reservations"][0]["Instances"][0]

    def state(self, instance: Any) -> str:
        return str(self.describe(instance)["State"]["Name"])

    def wait_state(self, instance: Any, state: str) -> None:
        eventually(f"{instance['InstanceId']} {state}", lambda: self.state(instance) == state)

    def ssh(self, instance: Any, command: str) -> subprocess.CompletedProcess[str]:
        options = [
            "BatchMode=yes",
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "ConnectTimeout=2",
        ]
        words = [
            "ssh",
            "-i",
            str(self._key),
            "-o",
            "LogLevel=ERROR",
            *(w for o in options for w in ("-o", o)),
        ]
        inside = self.control.command([*words, f"admin@{instance['PrivateIpAddress']}", command])
        return subprocess.run(inside, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)

    def answer(self, instance: Any, command: str) -> str:
        """What ``command`` prints on the machine, once it lets us in; it must succeed."""
        result = eventually(f"ssh to {instance['InstanceId']}", lambda: self._let_in(instance, command))
        assert result.returncode == 0, f"{command}: {result.stderr}"
        return str(result.stdout).strip()

    def _let_in(self, instance: Any, command: str) -> subprocess.CompletedProcess[str] | None:
        result = self.ssh(instance, command)
        return None if result.returncode == 255 else result  # ssh's own failure


def leftovers(settings: Settings, sysctls_before: dict[str, str]) -> list[str]:
    """Whatever of a region is still on this host after ``down``, in words; empty is right."""
    found = []
    # Every hierarchy there is, also those that we never name: a tool that we call may have used them
    for pattern in (settings.cgroup, f"*/{settings.cgroup}"):
        found += [f"cgroup {path}" for path in Path("/sys/fs/cgroup").glob(pattern)]
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = process.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(settings.runtime) + "/" in words or str(settings.netns_path) in words:
            found.append(f"process {words}")
    found += [f"mount {line}" for line in _lines("/proc/self/mounts") if f"/{settings.name}/" in line]
    found += [f"mount {line}" for line in _lines("/proc/self/mounts") if f"{settings.netns} " in line]
    if settings.netns_path.exists():
        found.append(f"netns {settings.netns_path}")
    if settings.runtime.exists():
        found.append(f"directory {settings.runtime}")
    if settings.nft_table in _said("nft", "list", "tables"):
        found.append(f"nft table {settings.nft_table}")
    registry = settings.runtime_root / "regions.json"
    record = json.loads(registry.read_text()) if registry.exists() else {"regions": {}}
    if settings.name in record["regions"]:
        found.append(f"{settings.name} in {registry}")
    emulation = settings.runtime_root / "binfmt.json"
    emulating = json.loads(emulation.read_text())["regions"] if emulation.exists() else []
    if settings.name in emulating:
        found.append(f"{settings.name} in {emulation}")
    if not emulating and (binfmt.MOUNT / binfmt.ENTRY).exists():
        found.append(f"interpreter {binfmt.MOUNT / binfmt.ENTRY}")
    links = {link["ifname"] for link in json.loads(_said("ip", "-json", "link"))}
    expected = {f"ingot{index}" for index in record["regions"].values()}
    found += [f"link {link}" for link in links if link.startswith("ingot") and link not in expected]
    if not record["regions"] and sysctls() != sysctls_before:
        found.append(f"sysctls {sysctls()} instead of {sysctls_before}")
    return found


def sysctls() -> dict[str, str]:
    """Values of the host's settings that a region may change."""
    values = {key: Path("/proc/sys", key.replace(".", "/")).read_text().strip() for key in SYSCTLS}
    # None where it is not mounted
    entries = [path for path in sorted(binfmt.MOUNT.glob("*")) if path.name != "register"]
    return values | {path.name: path.read_text() for path in entries}


def listening(control: Control) -> set[str]:
    """Addresses of the host's root network namespace that a process of the region listens on."""
    ours = set(control.groups.whole.pids())
    found = set()
    for line in _said("ss", "--no-header", "-tulnp").splitlines():
        if ours.intersection(map(int, re.findall(r"pid=(\d+)", line))):
            found.add(line.split()[4])
    return found


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
