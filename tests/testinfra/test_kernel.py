"""Role kernel: the kernel that was tested is the one that runs, with the parameters that were asked for."""

from __future__ import annotations

import pytest
from testinfra.host import Host

PARAMETERS = {
    "vm.swappiness": "1",
    "kernel.numa_balancing": "0",
    "net.ipv4.tcp_keepalive_time": "120",
    "net.ipv4.tcp_keepalive_intvl": "30",
    "net.ipv4.tcp_keepalive_probes": "4",
}


def is_container(host: Host) -> bool:
    return bool(host.run("systemd-detect-virt --container --quiet").rc == 0)


@pytest.mark.install
def test_no_kernel_package_can_move(host: Host) -> None:
    """Every one that is there, the metapackages too, since they pull in a new kernel."""
    query = (
        "dpkg-query --show --showformat='${Package} ${db:Status-Want}\\n' 'linux-image-*' 'linux-headers-*'"
    )
    states = dict(line.split() for line in host.run(query).stdout.splitlines())
    installed = {name: state for name, state in states.items() if state != "unknown"}
    if not installed:
        pytest.skip("this machine has no kernel package of its own")
    assert set(installed.values()) == {"hold"}


@pytest.mark.install
def test_the_parameters_are_written_as_the_kernel_reads_them(host: Host) -> None:
    """systemd-sysctl's own reading of all files in their order: ours must not be undone by a later one."""
    effective: dict[str, str] = {}
    for line in host.check_output("/usr/lib/systemd/systemd-sysctl --cat-config").splitlines():
        name, separator, value = line.partition("=")
        if separator and not line.startswith(("#", ";")):
            effective[name.strip().lstrip("-").replace("/", ".")] = value.strip()
    assert {name: effective.get(name) for name in PARAMETERS} == PARAMETERS


@pytest.mark.install
@pytest.mark.parametrize(("name", "value"), PARAMETERS.items())
def test_the_parameters_are_in_force(host: Host, name: str, value: str) -> None:
    if is_container(host):
        pytest.skip("the kernel is the host's, which a container must not change")
    found = host.run("sysctl --values %s", name)
    if name == "kernel.numa_balancing" and found.rc != 0:
        pytest.skip("this kernel was built without it")
    assert found.stdout.strip() == value


@pytest.mark.install
def test_the_policy_of_huge_pages_is_valid_and_harmless_where_it_cannot_be_set(host: Host) -> None:
    applied = host.run("systemd-tmpfiles --create /etc/tmpfiles.d/ingot-thp.conf")
    assert applied.rc == 0, applied.stderr
    rules = [
        line.split()
        for line in host.file("/etc/tmpfiles.d/ingot-thp.conf").content_string.splitlines()
        if not line.startswith("#")
    ]
    assert {rule[1].rsplit("/", 1)[1]: rule[-1] for rule in rules} == {
        "enabled": "always",
        "defrag": "defer+madvise",
    }
    if not is_container(host):
        assert "[always]" in host.file("/sys/kernel/mm/transparent_hugepage/enabled").content_string


@pytest.mark.install
def test_the_governor_is_valid_and_harmless_where_there_is_none(host: Host) -> None:
    applied = host.run("systemd-tmpfiles --create /etc/tmpfiles.d/ingot-governor.conf")
    assert applied.rc == 0, applied.stderr
    governors = host.run("cat /sys/devices/system/cpu/cpufreq/policy*/scaling_governor").stdout.split()
    if not is_container(host):
        assert set(governors) <= {"performance"}
