"""Role neuron: one locked set, with a module for every kernel, and chips for those who serve alone."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from testinfra.host import Host

NODE = "python3 -I /usr/lib/ingot/neuron/neuron_node.py"
CONFIG = "/usr/lib/ingot/neuron/set.json"


@pytest.fixture
def wanted(host: Host) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(host.file(CONFIG).content_string)
    return found


@pytest.mark.install
def test_dkms_says_installed_and_nothing_else_for_every_kernel(host: Host, wanted: dict[str, Any]) -> None:
    lines = [
        line for line in host.check_output("dkms status").splitlines() if line.startswith(wanted["dkms"])
    ]
    kernels = host.check_output("ls /boot/vmlinuz-*").replace("/boot/vmlinuz-", "").split()
    assert kernels and len(lines) == len(kernels)
    assert {line.rpartition(": ")[2] for line in lines} == {"installed"}
    for kernel in kernels:
        version = host.check_output(f"modinfo -k {kernel} -F version {wanted['module']}")
        assert version == wanted["driver"], kernel


@pytest.mark.install
def test_the_set_is_held_and_apt_would_take_no_other(host: Host, wanted: dict[str, Any]) -> None:
    held = set(host.check_output("apt-mark showhold").split())
    assert set(wanted["packages"]) <= held
    assert "dkms" in held
    assert any(name.startswith("linux-headers-") for name in held), "the other half of the pair, too"
    assert host.check_output("dpkg --audit") == ""
    for name, version in wanted["packages"].items():
        policy = host.check_output(f"apt-cache policy {name}").splitlines()
        assert policy[2].split() == ["Candidate:", version], name


@pytest.mark.install
def test_unattended_upgrades_leave_the_set_alone(host: Host, wanted: dict[str, Any]) -> None:
    dump = host.check_output("apt-config dump Unattended-Upgrade::Package-Blacklist")
    patterns = re.findall(r'Package-Blacklist:: "(.+)";', dump)
    for name in wanted["packages"]:
        assert any(re.match(pattern, name) for pattern in patterns), name


@pytest.mark.install
def test_the_repository_is_believed_by_its_key_alone(host: Host) -> None:
    sources = host.file("/etc/apt/sources.list.d/ingot-neuron.sources").content_string
    (signed,) = re.findall(r"^Signed-By: (.+)$", sources, flags=re.MULTILINE)
    assert host.file(signed).mode == 0o644


@pytest.mark.install
def test_no_script_of_the_package_was_run(host: Host) -> None:
    """They open the chips to every user, ask the Internet, and load the module on the builder."""
    assert not host.file("/var/tmp/stub-neuron-preinstall").exists
    assert not host.file("/etc/modules-load.d/neuron.conf").exists


@pytest.mark.install
def test_the_chips_are_for_the_group_alone(host: Host, wanted: dict[str, Any]) -> None:
    rule = host.file("/etc/udev/rules.d/neuron-udev.rules").content_string
    assert f'GROUP="{wanted["group"]}", MODE="0660"' in rule
    if host.exists("udevadm"):
        assert host.run("udevadm verify /etc/udev/rules.d/neuron-udev.rules").rc == 0
    assert host.group(wanted["group"]).exists
    assert wanted["module"] in host.file("/etc/modules-load.d/ingot-neuron.conf").content_string.split()


@pytest.mark.install
def test_the_engine_has_an_environment_of_the_sets_versions(host: Host) -> None:
    python = "/opt/ingot/venvs/vllm/bin/python"
    names = "vllm", "vllm-neuron", "neuronx-cc"
    ask = f"import importlib.metadata as m; print(*map(m.version, {names}))"
    assert host.check_output(f'{python} -c "{ask}"') == "0.13.0 0.4.1 2.23.6484.0+3b612583"
    assert host.file("/opt/ingot/venvs/vllm/bin/neuronx-cc").mode & 0o022 == 0


@pytest.mark.configure
def test_the_engine_gets_its_cores_the_cache_and_the_chips(host: Host) -> None:
    plan = json.loads(host.file("/etc/ingot/neuron.json").content_string)
    assert plan["flags"]["tensor-parallel-size"] <= plan["cores"]
    environment = host.check_output("systemctl show --property Environment --value vllm.service").split()
    values = dict(word.split("=", 1) for word in environment)
    cache = values["NEURON_COMPILE_CACHE_URL"]
    assert values["NEURON_RT_VISIBLE_CORES"] == plan["visible_cores"]
    assert host.file(cache).user == host.check_output("systemctl show --property User --value vllm.service")
    programs = json.loads(host.file("/usr/lib/ingot/neuron/programs.json").content_string)
    assert values["NEURON_COMPILED_ARTIFACTS"] == programs["directory"]
    assert host.run(f"{NODE} programs /usr/lib/ingot/neuron/programs.json").rc == 0
    groups = host.check_output("systemctl show --property SupplementaryGroups --value vllm.service")
    assert "neuron" in groups.split()


@pytest.mark.configure
def test_the_engine_has_no_compiler_and_may_not_write_its_programs(host: Host) -> None:
    assert "neuronx-cc" in host.check_output(
        "systemctl show --property InaccessiblePaths --value vllm.service"
    )
    writable = host.check_output("systemctl show --property ReadWritePaths --value vllm.service").split()
    assert not any("/opt/ingot/neuron".startswith(path) for path in writable)


@pytest.mark.configure
def test_prometheus_finds_figures_of_the_chips(host: Host) -> None:
    assert host.service("neuron-exporter.service").is_running
    ask = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8008/metrics').read().decode())"
    assert "neuron_chips 1" in host.check_output(f'python3 -c "{ask}"').splitlines()


@pytest.mark.configure
def test_the_nodes_own_check_passes_and_the_manifest_has_it(host: Host) -> None:
    facts = json.loads(host.check_output(f"{NODE} check {CONFIG}"))
    assert facts == json.loads(host.file("/usr/share/ingot/facts.d/neuron.json").content_string)


@pytest.mark.configure
def test_the_chips_are_healthy_and_the_unit_starts_with_them(host: Host) -> None:
    assert host.run(f"{NODE} health {CONFIG}").rc == 0
    assert host.run("systemctl restart vllm.service").rc == 0
    assert host.service("vllm.service").is_running
