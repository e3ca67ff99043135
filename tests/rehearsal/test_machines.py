"""Instances are machines: what a user of EC2 relies on, tried on real ones."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from local_region import CLI, LocalRegion, eventually, listening

GIB = 1 << 30


@pytest.fixture(scope="module")
def machine(region: LocalRegion) -> Iterator[Any]:
    """An instance that has booted."""
    (instance,) = region.launch()
    region.answer(instance, "systemctl is-system-running --wait")
    yield instance
    region.ec2.terminate_instances(InstanceIds=[instance["InstanceId"]])
    region.wait_state(instance, "terminated")


def test_boots_without_a_failed_unit(region: LocalRegion, machine: Any) -> None:
    assert region.answer(machine, "systemctl is-system-running") == "running"
    assert "status: done" in region.answer(machine, "sudo cloud-init status --long")
    assert "extended_status: done" in region.answer(machine, "sudo cloud-init status --long")


def test_is_called_as_ec2_calls_it(region: LocalRegion, machine: Any) -> None:
    name = f"ip-{machine['PrivateIpAddress'].replace('.', '-')}.ec2.internal"
    assert region.answer(machine, "hostname --fqdn") == name
    resolved = region.cli("run", "--", "getent", "hosts", name.partition(".")[0]).stdout
    assert resolved.split() == [machine["PrivateIpAddress"], name]


def test_ssh_takes_the_key_that_the_region_made(region: LocalRegion, machine: Any) -> None:
    region.answer(machine, "true")
    said = region.cli("ssh", machine["InstanceId"], "--", "id", "--user", "--name")
    assert (said.returncode, said.stdout) == (0, "admin\n"), said.stderr


FETCH = """
import sys, urllib.error, urllib.request
headers = dict(argument.split("=") for argument in sys.argv[3:])
request = urllib.request.Request(sys.argv[2], method=sys.argv[1], headers=headers)
try:
    print(urllib.request.urlopen(request).read().decode())
except urllib.error.HTTPError as error:
    print(error.code)
"""


def test_metadata_wants_a_token(region: LocalRegion, machine: Any) -> None:
    def fetch(*arguments: str) -> str:
        return region.answer(machine, shlex.join(["python3", "-c", FETCH, *arguments]))

    latest, header = "http://169.254.169.254/latest", "X-aws-ec2-metadata-token"
    assert fetch("GET", f"{latest}/meta-data/instance-id") == "401"
    token = fetch("PUT", f"{latest}/api/token", f"{header}-ttl-seconds=60")
    assert fetch("GET", f"{latest}/meta-data/instance-id", f"{header}={token}") == machine["InstanceId"]


def test_has_the_memory_of_its_type(region: LocalRegion, machine: Any) -> None:
    scaled = GIB * region.settings.memory_scale
    assert int(region.answer(machine, "awk '/MemTotal/ {print $2}' /proc/meminfo")) * 1024 == scaled
    # A process that takes more is killed, and nothing but it
    greedy = region.ssh(machine, f"python3 -c 'x = bytearray({int(scaled)})'")
    assert greedy.returncode != 0
    assert region.answer(machine, "systemctl is-system-running") == "running"


def test_kernel_settings_are_its_own(region: LocalRegion, machine: Any) -> None:
    settings = {"vm/swappiness": "7", "kernel/pid_max": "123456", "net/core/rmem_max": "16777216"}
    before = {name: _host_setting(name) for name in settings}
    for name, value in settings.items():
        key = name.replace("/", ".")
        assert (
            region.answer(machine, f"sudo sysctl -n -w {key}={value} && cat /proc/sys/{name}").split()[-1]
            == value
        )
    assert {name: _host_setting(name) for name in settings} == before


def test_reaches_the_package_archive(region: LocalRegion, machine: Any) -> None:
    region.answer(machine, "sudo apt-get -qq update && apt-cache policy hello | grep -q Candidate")


def test_survives_its_own_reboot(region: LocalRegion, machine: Any) -> None:
    identity = "cat /etc/machine-id /etc/ssh/ssh_host_ed25519_key.pub"
    before, boot = (
        region.answer(machine, identity),
        region.answer(machine, "cat /proc/sys/kernel/random/boot_id"),
    )
    region.ssh(machine, "sudo systemctl reboot")
    eventually("another boot", lambda: region.answer(machine, "cat /proc/sys/kernel/random/boot_id") != boot)
    assert region.answer(machine, identity) == before
    assert region.answer(machine, "awk '/MemTotal/ {print $2}' /proc/meminfo") == str(768 * 1024)


def test_poweroff_inside_is_stopped_and_starts_again(region: LocalRegion, machine: Any) -> None:
    region.answer(machine, "echo kept | sudo tee /etc/kept")
    region.ssh(machine, "sudo systemctl poweroff")
    region.wait_state(machine, "stopped")
    region.ec2.start_instances(InstanceIds=[machine["InstanceId"]])
    assert region.answer(machine, "cat /etc/kept") == "kept"


def test_a_machine_that_is_killed_is_stopped(region: LocalRegion, machine: Any) -> None:
    region.answer(machine, "true")
    nspawn = next(
        pid
        for pid in region.control.groups.whole.pids()
        if _runs(pid, "systemd-nspawn", machine["InstanceId"])
    )
    os.kill(nspawn, signal.SIGKILL)
    region.wait_state(machine, "stopped")
    group = region.control.groups.machine(machine["InstanceId"])
    eventually("its cgroup to be gone", lambda: not group.unified.exists(), 10)
    region.ec2.start_instances(InstanceIds=[machine["InstanceId"]])
    region.answer(machine, "true")


def test_an_image_is_the_machine_as_it_stood(region: LocalRegion, machine: Any) -> None:
    """Deleted files stay deleted and replaced directories replaced, also in an image of an image."""
    region.answer(
        machine,
        "sudo rm /etc/issue.net && sudo rm -r /usr/share/doc/sudo && sudo mkdir /usr/share/doc/sudo"
        " && sudo touch /usr/share/doc/sudo/only && echo kept | sudo tee /etc/kept",
    )
    look = "ls /etc/issue.net; ls -A /usr/share/doc/sudo; cat /etc/kept; cat /etc/second; true"
    first = _image(region, machine, "first")
    (clone,) = region.launch(image=first)
    assert region.answer(clone, f"{look} 2>/dev/null").split() == ["only", "kept"]
    assert region.answer(clone, "cat /etc/machine-id") == region.answer(machine, "cat /etc/machine-id")
    # and once more on top of it, with what was deleted put back
    region.answer(
        clone, "echo second | sudo tee /etc/second /etc/issue.net && sudo rm /usr/share/doc/sudo/only"
    )
    second = _image(region, clone, "second")
    (grandchild,) = region.launch(image=second)
    assert region.answer(grandchild, f"{look} 2>/dev/null").split() == ["/etc/issue.net", "kept", "second"]
    # the first image may go while the second needs its layer
    region.ec2.deregister_image(ImageId=first)
    for snapshot in region.ec2.describe_snapshots(OwnerIds=["self"])["Snapshots"]:
        if first in snapshot["Description"] or _tag(snapshot, "of") == "first":
            region.ec2.delete_snapshot(SnapshotId=snapshot["SnapshotId"])
    region.ec2.stop_instances(InstanceIds=[grandchild["InstanceId"]])
    region.wait_state(grandchild, "stopped")
    region.ec2.start_instances(InstanceIds=[grandchild["InstanceId"]])
    assert region.answer(grandchild, "cat /etc/kept /etc/second").split() == ["kept", "second"]
    region.ec2.terminate_instances(InstanceIds=[clone["InstanceId"], grandchild["InstanceId"]])
    region.wait_state(grandchild, "terminated")


def test_an_image_of_a_running_machine(region: LocalRegion, machine: Any) -> None:
    """Without a reboot the machine goes on where it was; it stands still only while it is copied."""
    boot = region.answer(machine, "echo live | sudo tee /etc/live >&2; cat /proc/sys/kernel/random/boot_id")
    image = region.ec2.create_image(InstanceId=machine["InstanceId"], Name="live", NoReboot=True)["ImageId"]
    _wait_available(region, image)
    assert region.answer(machine, "cat /proc/sys/kernel/random/boot_id") == boot
    (clone,) = region.launch(image=image)
    assert region.answer(clone, "cat /etc/live") == "live"
    region.ec2.terminate_instances(InstanceIds=[clone["InstanceId"]])


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core cannot be shared out")
def test_has_the_processors_of_its_type(region: LocalRegion) -> None:
    (instance,) = region.launch(kind="c7a.medium")
    assert region.answer(instance, "nproc; grep -c ^processor /proc/cpuinfo").split() == ["1", "1"]
    region.ec2.terminate_instances(InstanceIds=[instance["InstanceId"]])


def test_what_the_host_cannot_hold_is_refused(region: LocalRegion) -> None:
    with pytest.raises(ClientError) as refused:
        region.launch(kind="r7i.24xlarge")
    assert refused.value.response["Error"]["Code"] == "InsufficientInstanceCapacity"
    assert "GiB" in refused.value.response["Error"]["Message"]


def test_nothing_listens_on_the_host(region: LocalRegion, machine: Any) -> None:
    region.answer(machine, "true")
    assert listening(region.control) == set()


def test_ports_are_forwarded_on_the_loopback_only(region: LocalRegion, machine: Any) -> None:
    region.answer(machine, "true")
    forward = subprocess.Popen(
        [CLI, "local", "ports", "--open", f"20022:{machine['InstanceId']}:22"],
        env=region.environ,
        stderr=subprocess.PIPE,
    )
    try:
        eventually("the forwarded port", lambda: "127.0.0.1:20022" in listening(region.control), 30)
        assert listening(region.control) == {"127.0.0.1:20022"}
        with socket.create_connection(("127.0.0.1", 20022), timeout=10) as connection:
            assert connection.recv(4) == b"SSH-"
        assert "127.0.0.1:20022 -> " + machine["PrivateIpAddress"] + ":22" in region.cli("ports").stdout
    finally:
        forward.terminate()
        forward.wait(10)


def test_run_ends_with_the_commands_status(region: LocalRegion) -> None:
    result = region.cli("run", "--", "sh", "-c", "echo $AWS_ENDPOINT_URL $1; exit 7", "sh", "--flag")
    assert (result.returncode, result.stdout) == (7, "http://169.254.169.252 --flag\n")


def test_a_shell_in_the_region_cannot_end_it(region: LocalRegion) -> None:
    result = region.cli("run", "--", str(CLI), "local", "down")
    assert result.returncode == 1
    assert "leave it first" in result.stderr
    assert region.control.is_up()


def test_status_says_what_runs_and_how_it_is_scaled(region: LocalRegion, machine: Any) -> None:
    said = region.cli("status").stdout
    assert machine["InstanceId"] in said
    assert "75% of their type's memory" in said


def test_terminated_leaves_nothing(region: LocalRegion) -> None:
    (instance,) = region.launch()
    region.answer(instance, "true")
    started = time.monotonic()
    region.ec2.terminate_instances(InstanceIds=[instance["InstanceId"]])
    region.wait_state(instance, "terminated")
    assert time.monotonic() - started < 60
    assert not (region.settings.instances / instance["InstanceId"]).exists()
    assert not (region.settings.runtime / "machines" / instance["InstanceId"]).exists()
    assert not region.control.groups.machine(instance["InstanceId"]).unified.exists()


def test_down_and_up_keep_machines(region: LocalRegion, machine: Any) -> None:
    region.answer(machine, "echo kept | sudo tee /etc/kept")
    boot = region.answer(machine, "cat /proc/sys/kernel/random/boot_id")
    assert region.cli("down").returncode == 0
    refused = region.cli("run", "--", "true")
    assert refused.returncode == 1
    assert "`ingot local up`" in refused.stderr
    assert region.cli("up").returncode == 0
    assert region.answer(machine, "cat /etc/kept") == "kept"
    assert region.answer(machine, "cat /proc/sys/kernel/random/boot_id") != boot
    # and addresses are given on from where they were
    (other,) = region.launch()
    assert other["PrivateIpAddress"] not in (machine["PrivateIpAddress"], str(region.settings.gateway))
    region.ec2.terminate_instances(InstanceIds=[other["InstanceId"]])


def _image(region: LocalRegion, instance: Any, name: str) -> str:
    region.ec2.stop_instances(InstanceIds=[instance["InstanceId"]])
    region.wait_state(instance, "stopped")
    tags = [{"ResourceType": "snapshot", "Tags": [{"Key": "of", "Value": name}]}]
    started = time.monotonic()
    image = region.ec2.create_image(InstanceId=instance["InstanceId"], Name=name, TagSpecifications=tags)[
        "ImageId"
    ]
    _wait_available(region, image)
    assert time.monotonic() - started < 5
    region.ec2.start_instances(InstanceIds=[instance["InstanceId"]])
    return str(image)


def _wait_available(region: LocalRegion, image: str) -> None:
    def available() -> bool:
        return bool(region.ec2.describe_images(ImageIds=[image])["Images"][0]["State"] == "available")

    eventually(f"{image} available", available, 60)


def _tag(resource: Any, key: str) -> str:
    return next((tag["Value"] for tag in resource.get("Tags", []) if tag["Key"] == key), "")


def _host_setting(name: str) -> str:
    path = Path("/proc/sys", name)
    return path.read_text() if path.exists() else ""


def _runs(pid: int, program: str, argument: str) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return False
    return words[0] == program and any(argument in word for word in words)
