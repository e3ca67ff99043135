"""An arm64 instance is a machine like the others, on the core of its type, emulated."""

from __future__ import annotations

import base64
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from local_region import LocalRegion, eventually

from ingot.rehearsal.machines import STOP_TIMEOUT

pytestmark = pytest.mark.long  # the base tree alone takes minutes where the cache lacks it


def _features(cpuinfo: str) -> set[str]:
    line = next(line for line in cpuinfo.splitlines() if line.startswith("Features"))
    return set(line.partition(":")[2].split())


@pytest.fixture(scope="module")
def image(region: LocalRegion) -> str:
    """Debian's AMI for arm64; what it takes is made by `up`, so that the tests measure machines only."""
    result = region.cli("up", "--arm64")
    assert result.returncode == 0, result.stderr
    return region.base_image("arm64")


@pytest.fixture(scope="module")
def machine(region: LocalRegion, image: str) -> Iterator[Any]:
    (instance,) = region.launch(image=image, kind="c7g.medium")
    eventually("its start to end", lambda: "ing" not in _state(region, instance), 300)
    yield instance
    region.ec2.terminate_instances(InstanceIds=[instance["InstanceId"]])
    region.wait_state(instance, "terminated")


def _state(region: LocalRegion, instance: Any) -> str:
    """What systemd says of the machine, "starting" while nobody is let in."""
    answer = region.ssh(instance, "systemctl is-system-running")
    return "starting" if answer.returncode == 255 else answer.stdout.strip().replace("running", "up")


def test_boots_without_a_failed_unit(region: LocalRegion, machine: Any) -> None:
    assert region.answer(machine, "systemctl --failed --plain --no-legend") == ""
    assert region.answer(machine, "systemctl is-system-running") == "running"
    assert "extended_status: done" in region.answer(machine, "sudo cloud-init status --long --wait")


def test_is_the_core_of_its_type_however_a_process_is_started(region: LocalRegion, machine: Any) -> None:
    assert region.answer(machine, "uname -m") == "aarch64"
    for how in ("", "sudo", "sudo -i", "sudo su -c", "sudo systemd-run --quiet --pipe --wait"):
        look = "'cat /proc/cpuinfo'" if how.endswith("-c") else "cat /proc/cpuinfo"
        cpuinfo = region.answer(machine, f"{how} {look}")
        assert {"sve", "bf16", "i8mm"} <= _features(cpuinfo), how
        assert "sve2" not in _features(cpuinfo), how  # what qemu's own default core would have
        assert "0xd40" in cpuinfo, how


def test_status_says_so(region: LocalRegion, machine: Any) -> None:
    assert f"{machine['InstanceId']} is emulated: neoverse-v1" in region.cli("status").stdout


def test_has_its_address_and_reaches_the_archive(region: LocalRegion, machine: Any) -> None:
    assert machine["PrivateIpAddress"] in region.answer(machine, "ip -4 -brief address show ens5")
    region.answer(machine, "getent hosts deb.debian.org && sudo apt-get -qq update")


def test_units_have_their_sandbox_and_credentials(region: LocalRegion, machine: Any) -> None:
    sandbox = (
        "ProtectSystem=strict",
        "PrivateTmp=yes",
        "PrivateNetwork=yes",
        "LoadCredential=x:/etc/hostname",
    )
    options = " ".join(f"-p {setting}" for setting in sandbox)
    look = "sh -c 'touch /etc/x 2>&1; cat $CREDENTIALS_DIRECTORY/x; ip -brief link'"
    said = region.answer(machine, f"sudo systemd-run --quiet --pipe --wait {options} {look}")
    assert "Read-only file system" in said
    assert "ip-172-31-" in said
    assert "ens5" not in said


def test_compilers_are_not_emulated(region: LocalRegion, machine: Any) -> None:
    program = '#include <arm_sve.h>\n#include <cstdio>\nint main() { std::printf("%lu", svcntb()); }\n'
    compiler = "/amd64/usr/bin/aarch64-linux-gnu-g++-14 -mcpu=neoverse-v1 -x c++ -o /tmp/width /tmp/width.cc"
    source = base64.b64encode(program.encode()).decode()
    said = region.answer(machine, f"echo {source} | base64 -d > /tmp/width.cc && {compiler} && /tmp/width")
    assert said == "32"  # bytes: V1's vectors have 256 bits


def test_a_python_of_the_same_version_is_not_emulated(region: LocalRegion, machine: Any) -> None:
    """It runs Ansible's modules and compiles bytecode, so it has to see what the machine's own does."""
    look = (
        "import apt, apt_pkg, importlib.util as u, platform, sys;"
        "packages = sorted(p.name for p in apt.Cache() if p.is_installed);"
        "print(sys.version_info[:3], u.MAGIC_NUMBER);"
        "print(platform.machine(), apt_pkg.get_architectures(), packages)"
    )
    cpuinfo = "open('/proc/cpuinfo').read().count('sve')"
    seen = [
        region.answer(machine, f'{python} -c "{look}; print({cpuinfo} > 0)"')
        for python in ("/usr/bin/python3", "/amd64/usr/bin/python3")
    ]
    assert seen[0] == seen[1]
    assert "aarch64 ['arm64'] ['adduser', " in seen[0] and seen[0].endswith("True")


def test_a_type_of_another_architecture_is_refused(region: LocalRegion, image: str) -> None:
    with pytest.raises(ClientError, match="architecture 'arm64' of the specified AMI"):
        region.launch(image=image, kind="m7i.large")


def test_survives_its_own_reboot(region: LocalRegion, machine: Any) -> None:
    identity = "cat /etc/machine-id /etc/ssh/ssh_host_ed25519_key.pub"
    boot_id = "cat /proc/sys/kernel/random/boot_id"
    before, boot = region.answer(machine, identity), region.answer(machine, boot_id)
    region.ssh(machine, "sudo systemctl reboot")
    eventually("another boot", lambda: region.answer(machine, boot_id) != boot, 300)
    assert region.answer(machine, identity) == before


def test_a_graviton4_is_the_nearest_core_that_qemu_has(region: LocalRegion, image: str) -> None:
    (instance,) = region.launch(image=image, kind="c8g.medium")
    features = _features(region.answer(instance, "cat /proc/cpuinfo"))
    assert {"sve", "sve2", "bf16", "i8mm"} <= features
    assert "neoverse-n2, the nearest to neoverse-v2" in region.cli("status").stdout
    region.ec2.terminate_instances(InstanceIds=[instance["InstanceId"]])
    region.wait_state(instance, "terminated")


def test_a_stopped_machine_shows_nothing_of_it(region: LocalRegion, machine: Any) -> None:
    started = time.monotonic()
    region.ec2.stop_instances(InstanceIds=[machine["InstanceId"]])
    region.wait_state(machine, "stopped")
    assert time.monotonic() - started < STOP_TIMEOUT / 2  # it shut down, and was not switched off
    upper = region.settings.instances / machine["InstanceId"] / "upper"
    there = {str(path.relative_to(upper)) for path in upper.rglob("*")}
    assert "etc/machine-id" in there
    assert not {path for path in there if "amd64" in path or "x86_64" in path or "emulated" in path}
    assert "QEMU" not in (upper / "etc/environment").read_text()
    region.ec2.start_instances(InstanceIds=[machine["InstanceId"]])
    region.answer(machine, "true")


def test_the_daemon_dies_and_the_machine_comes_back(region: LocalRegion, machine: Any) -> None:
    os.kill(region.control.daemon_pid() or 0, signal.SIGKILL)
    eventually("the region not to be whole", lambda: not region.control.is_up(), 10)
    assert region.cli("up").returncode == 0
    assert region.answer(machine, "uname -m") == "aarch64"
