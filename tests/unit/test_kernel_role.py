"""The files that the role kernel writes, and that each setting can be switched off."""

from __future__ import annotations

from typing import Any

import pytest
from role_templates import render


def parameters(**variables: Any) -> dict[str, str]:
    lines = render("kernel", "sysctl.conf.j2", variables).splitlines()
    return dict(line.split(" = ") for line in lines if line and not line.startswith("#"))


def test_parameters_of_ones_own_win() -> None:
    assert parameters()["vm.swappiness"] == "1"
    assert (
        parameters(kernel_sysctl_extra={"vm.swappiness": 10, "vm.max_map_count": 1})["vm.swappiness"] == "10"
    )


@pytest.mark.parametrize("name", ["vm.swappiness", "kernel.numa_balancing", "net.ipv4.tcp_keepalive_time"])
def test_each_parameter_can_be_left_alone(name: str) -> None:
    assert name in parameters()
    assert name not in parameters(kernel_sysctl_extra={name: None})


def test_the_governor_is_written_to_every_policy_and_may_fail() -> None:
    (rule,) = (
        line.split()
        for line in render("kernel", "governor.conf.j2", {}).splitlines()
        if line and not line.startswith("#")
    )
    assert rule[0] == "w-"
    assert rule[1] == "/sys/devices/system/cpu/cpufreq/policy*/scaling_governor"
    assert rule[-1] == "performance"
