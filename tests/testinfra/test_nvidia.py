"""Role nvidia: one locked set, with a module for every kernel that the machine could boot."""

from __future__ import annotations

import json
import re

import pytest
from testinfra.host import Host

NODE = "python3 -I /usr/lib/ingot/nvidia/nvidia_node.py"
CONFIG = "/usr/lib/ingot/nvidia/set.json"


@pytest.fixture
def wanted(host: Host) -> dict[str, str]:
    found: dict[str, str] = json.loads(host.file(CONFIG).content_string)
    return found


@pytest.mark.install
def test_dkms_says_installed_and_nothing_else(host: Host, wanted: dict[str, str]) -> None:
    lines = [
        line for line in host.check_output("dkms status").splitlines() if line.startswith(wanted["dkms"])
    ]
    assert lines
    assert {line.rpartition(": ")[2] for line in lines} == {"installed"}


@pytest.mark.install
def test_every_kernel_has_the_module_and_the_library_is_of_its_version(
    host: Host, wanted: dict[str, str]
) -> None:
    kernels = host.check_output("ls /boot/vmlinuz-*").replace("/boot/vmlinuz-", "").split()
    assert kernels
    for kernel in kernels:
        version = host.check_output(f"modinfo -k {kernel} -F version {wanted['module']}")
        assert version == wanted["driver"], kernel
    library = host.check_output("find /usr/lib -name 'libcuda.so.*.*' -type f -printf '%f\\n'")
    assert library.split() == [f"libcuda.so.{wanted['driver']}"]


@pytest.mark.install
def test_the_set_is_held_and_no_package_is_half_configured(
    host: Host, wanted: dict[str, dict[str, str]]
) -> None:
    held = set(host.check_output("apt-mark showhold").split())
    assert set(wanted["packages"]) <= held
    assert {"dkms", "nvidia-alternative"} <= held, "what the set depends on is held, too"
    assert host.check_output("dpkg --audit") == ""


@pytest.mark.install
def test_apt_would_take_no_other_version(host: Host, wanted: dict[str, dict[str, str]]) -> None:
    for name, version in wanted["packages"].items():
        policy = host.check_output(f"apt-cache policy {name}").splitlines()
        assert policy[2].split() == ["Candidate:", version], name


@pytest.mark.install
def test_unattended_upgrades_leave_the_set_alone(host: Host, wanted: dict[str, dict[str, str]]) -> None:
    dump = host.check_output("apt-config dump Unattended-Upgrade::Package-Blacklist")
    patterns = re.findall(r'Package-Blacklist:: "(.+)";', dump)
    for name in wanted["packages"]:
        assert any(re.match(pattern, name) for pattern in patterns), name


@pytest.mark.install
def test_nouveau_is_blacklisted_before_the_root_file_system_too(host: Host) -> None:
    assert "blacklist nouveau" in host.check_output("modprobe --showconfig")
    for image in host.check_output("ls /boot").split():
        if image.startswith("initrd.img-"):
            assert "etc/modprobe.d/ingot-nouveau.conf" in host.check_output(f"lsinitramfs /boot/{image}")


@pytest.mark.configure
def test_a_daemon_without_its_device_is_skipped_and_does_not_fail(host: Host) -> None:
    if host.run(f"{NODE} has gpu").rc == 0:
        pytest.skip("this machine has a GPU")
    assert host.service("nvidia-persistenced").is_enabled
    assert host.run("systemctl start nvidia-persistenced").rc == 0
    assert host.check_output("systemctl --failed --no-legend") == ""


@pytest.mark.configure
def test_what_serves_comes_after_the_daemons(host: Host) -> None:
    after = host.check_output("systemctl show --property Before --value nvidia-persistenced.service").split()
    assert {"vllm.service", "ray-head.service", "ray-worker.service", "ingot-serve.service"} <= set(after)


@pytest.mark.configure
def test_the_nodes_own_check_passes_and_the_manifest_has_it(host: Host) -> None:
    facts = json.loads(host.check_output(f"{NODE} check {CONFIG}"))
    assert facts == json.loads(host.file("/usr/share/ingot/facts.d/nvidia.json").content_string)
