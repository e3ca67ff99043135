"""The API of a local region over real HTTP, with machines that exist in memory only."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import boto3
import pytest
from botocore.config import Config
from moto.backends import get_backend
from moto.core.base_backend import BackendDict
from moto.moto_server.werkzeug_app import MotoRequestHandler
from werkzeug.serving import make_server

from ingot.rehearsal.api.region import Scale
from ingot.rehearsal.api.service import Service, build
from ingot.rehearsal.api.store import SERVICES
from ingot.rehearsal.base import BaseTree
from ingot.rehearsal.model import Machine, MachineError, MachineState, NoCapacity

ROOT = Path(__file__).resolve().parents[3]


class FakeHost:
    """``MachineHost`` in memory. ``gate`` holds machines back while they boot; the rest plants defects."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.machines: dict[str, Machine] = {}
        self.states: dict[str, MachineState] = {}
        self.calls: list[tuple[str, ...]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.capacity = 100
        self.broken = ""
        self.answers = True
        self.discarded: list[Path] = []

    def launch(self, machine: Machine) -> None:
        self.calls.append(("launch", machine.instance_id))
        if len(self.machines) >= self.capacity:
            raise NoCapacity(f"{machine.memory_bytes >> 20} MiB of memory asked for, 100 MiB are left")
        self.machines[machine.instance_id] = machine
        self.states[machine.instance_id] = MachineState.PENDING
        self.gate.wait(10)
        if self.broken:
            self.terminate(machine.instance_id)
            raise MachineError(self.broken)
        self.states[machine.instance_id] = MachineState.RUNNING

    def start(self, instance_id: str) -> None:
        self.calls.append(("start", instance_id))
        self.gate.wait(10)
        self.states[instance_id] = MachineState.RUNNING

    def stop(self, instance_id: str, *, force: bool = False) -> None:
        self.calls.append(("force-stop" if force else "stop", instance_id))
        self.gate.wait(10)
        self.states[instance_id] = MachineState.STOPPED

    def reboot(self, instance_id: str) -> None:
        self.calls.append(("reboot", instance_id))

    def terminate(self, instance_id: str) -> None:
        self.calls.append(("terminate", instance_id))
        self.gate.wait(10)
        self.machines.pop(instance_id, None)
        self.states.pop(instance_id, None)

    def freeze(self, instance_id: str, snapshot_id: str) -> tuple[Path, ...]:
        self.calls.append(("freeze", instance_id, self.states[instance_id].value))
        self.gate.wait(10)
        if self.broken:
            raise MachineError(self.broken)
        layer = self.root / snapshot_id
        layer.mkdir()
        return (layer, *self.machines[instance_id].layers)

    def discard(self, layer: Path) -> None:
        self.discarded.append(layer)

    def state(self, instance_id: str) -> MachineState:
        return self.states.get(instance_id, MachineState.TERMINATED)

    def reachable(self, instance_id: str) -> bool:
        return self.answers

    def console(self, instance_id: str) -> bytes:
        return b"\xffDebian GNU/Linux 13 login:"


# Reading a service's model is the slowest part of a test: done once.
SESSION: Any = boto3.Session(aws_access_key_id="test", aws_secret_access_key="test", region_name="us-east-1")


@dataclass
class LocalEc2:
    """A served region and how to talk to it."""

    service: Service
    host: FakeHost
    url: str
    base: BaseTree
    state: Path
    clients: dict[str, Any] = field(default_factory=dict)

    def client(self, service: str = "ec2") -> Any:
        if service not in self.clients:
            self.clients[service] = SESSION.client(
                service,
                endpoint_url=self.url,
                config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
            )
        return self.clients[service]

    @property
    def image_id(self) -> str:
        return str(self.client().describe_images(Owners=["136693071363"])["Images"][0]["ImageId"])

    def launch(self, wait: bool = True, **options: Any) -> str:
        options = {
            "ImageId": self.image_id,
            "InstanceType": "m7i.large",
            "MinCount": 1,
            "MaxCount": 1,
        } | options
        instance_id = str(self.client().run_instances(**options)["Instances"][0]["InstanceId"])
        if wait:
            self.wait_for(instance_id, "running")
        return instance_id

    def stop(self, instance_id: str) -> None:
        self.client().stop_instances(InstanceIds=[instance_id])
        self.wait_for(instance_id, "stopped")

    def instance(self, instance_id: str) -> dict[str, Any]:
        reservations = self.client().describe_instances(InstanceIds=[instance_id])["Reservations"]
        found: dict[str, Any] = reservations[0]["Instances"][0]
        return found

    def wait_for(self, instance_id: str, state: str) -> dict[str, Any]:
        until(lambda: self.instance(instance_id)["State"]["Name"] == state, f"{instance_id} is {state}")
        return self.instance(instance_id)

    def wait_for_image(self, image_id: str, state: str = "available") -> dict[str, Any]:
        def image() -> dict[str, Any]:
            found: dict[str, Any] = self.client().describe_images(ImageIds=[image_id])["Images"][0]
            return found

        until(lambda: image()["State"] == state, f"{image_id} is {state}")
        return image()

    def own_image(self) -> str:
        """An image of ours, as a bake leaves it."""
        builder = self.launch()
        self.stop(builder)
        specification = {"ResourceType": "image", "Tags": [{"Key": "ingot:image", "Value": "x86"}]}
        made = self.client().create_image(
            InstanceId=builder, Name="ingot-x86-1", TagSpecifications=[specification]
        )
        self.wait_for_image(made["ImageId"])
        self.client().modify_image_attribute(ImageId=made["ImageId"], ImdsSupport={"Value": "v2.0"})
        self.client().terminate_instances(InstanceIds=[builder])
        return str(made["ImageId"])


def until(condition: Callable[[], bool], what: str, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not after {seconds} s: {what}"
        time.sleep(0.02)


def forget_moto() -> None:
    """A new process as far as moto knows: its own reset leaves what services make of each other then."""
    BackendDict.reset()
    for service in SERVICES:
        get_backend(cast(Any, service)).clear()


@pytest.fixture
def base(tmp_path: Path) -> BaseTree:
    tree = tmp_path / "base"
    tree.mkdir()
    return BaseTree(
        tree=tree,
        key="0123456789abcdef",
        architecture="x86_64",
        ami_name="debian-13-amd64-20261101-2290",
        owner="136693071363",
        created="2026-11-01T00:00:00+00:00",
        default_user="admin",
    )


@pytest.fixture
def make_region(tmp_path: Path, base: BaseTree) -> Iterator[Callable[..., LocalEc2]]:
    """Start a region on the state directory of this test; a second call is the next ``up``."""
    servers: list[Any] = []

    def make(host: FakeHost | None = None, state: Path | None = None) -> LocalEc2:
        forget_moto()
        state = state or tmp_path / "state"
        host = host or FakeHost(tmp_path)
        (tmp_path / "mirror").mkdir(exist_ok=True)
        service = build(
            host,
            state=state,
            mirror=tmp_path / "mirror",
            bases=[base],
            scale=Scale(vcpus=1.0, memory=0.5),
            region_name="us-east-1",
        )
        server = make_server(
            "127.0.0.1", 0, service.endpoint, threaded=True, request_handler=MotoRequestHandler
        )
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return LocalEc2(service, host, f"http://127.0.0.1:{server.server_port}", base, state)

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def ec2(make_region: Callable[..., LocalEc2]) -> LocalEc2:
    return make_region()


@dataclass(frozen=True)
class Commands:
    """Commands as a user of the region runs them, with a home of their own."""

    home: Path
    environment: dict[str, str]

    def run(self, *command: str) -> tuple[int, str]:
        """Status of a program of the venv, and what it said."""
        done = subprocess.run(
            [str(Path(sys.executable).with_name(command[0])), *command[1:]],
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def __call__(self, inventory: str, playbook: str, *extra: str) -> tuple[int, str]:
        return self.run("ansible-playbook", "-i", f"inventories/{inventory}", playbook, *extra)


@pytest.fixture
def play(ec2: LocalEc2, tmp_path: Path) -> Commands:
    """Run a playbook against the region; returns status and what it said."""
    home = tmp_path / "home"
    home.mkdir()
    environment = {
        **os.environ,
        "HOME": str(home),
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "AWS_ENDPOINT_URL": ec2.url,
        "AWS_ACCESS_KEY_ID": "AKIATEST",
        "AWS_SECRET_ACCESS_KEY": "3xXq7Yw0LpZtRfVb",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "INGOT_MIRROR": "http://127.0.0.1:9/_mirror/",
    }
    return Commands(home, environment)
