"""Role ray: supervision, authentication, addresses."""

from __future__ import annotations

import json

import pytest
from node_http import ask
from testinfra.host import Host

UNITS = ("ray-head.service", "ray-worker.service")


@pytest.mark.install
@pytest.mark.parametrize("unit", UNITS)
def test_systemd_accepts_the_units(host: Host, unit: str) -> None:
    done = host.run("systemd-analyze verify --man=no /etc/systemd/system/%s", unit)
    assert (done.rc, done.stderr) == (0, "")


@pytest.mark.install
@pytest.mark.parametrize("unit", UNITS)
def test_the_sandbox_is_tight(host: Host, unit: str) -> None:
    report = json.loads(host.check_output("systemd-analyze security --no-pager --json=short %s", unit))
    exposed = {item["json_field"] for item in report if item["exposure"] and float(item["exposure"]) >= 0.2}
    assert exposed <= {
        # The network is what it is for.
        "PrivateNetwork",
        "IPAddressDeny",
        "RestrictAddressFamilies_AF_INET_INET6",
        # Replicas open the node's accelerators.
        "PrivateDevices",
        "DeviceAllow",
        # Processes share /dev/shm by their user.
        "PrivateUsers",
        # Ray lowers its workers' priority and the engine binds its threads; what else is privileged in
        # system-service needs capabilities, and there are none.
        "SystemCallFilter_resources",
        "SystemCallFilter_privileged",
    }


@pytest.mark.install
def test_what_the_units_start_through_is_there(host: Host) -> None:
    assert host.run("ingot launch --check processor -- /usr/bin/true").rc == 0


@pytest.mark.hygiene
@pytest.mark.parametrize("unit", UNITS)
def test_an_image_neither_runs_nor_enables_them(host: Host, unit: str) -> None:
    assert not host.service(unit).is_enabled
    assert not host.service(unit).is_running
    assert not host.file("/etc/ingot/ray.env").exists
    assert not host.file("/etc/ingot/credentials/ray-token").exists


@pytest.fixture
def unit(host: Host) -> str:
    """The unit of this node's role; a cluster that serves without Ray has nothing to test here."""
    enabled = [name for name in UNITS if host.service(name).is_enabled]
    if not enabled:
        pytest.skip("Ray is not used on this node")
    assert len(enabled) == 1, "a node is a head or a worker"
    return enabled[0]


@pytest.mark.configure
def test_it_runs_and_has_joined(host: Host, unit: str) -> None:
    assert host.service(unit).is_running


@pytest.mark.configure
def test_limits_are_what_many_workers_need(host: Host, unit: str) -> None:
    values = dict(
        line.split("=", 1)
        for line in host.check_output(
            "systemctl show %s --property=LimitNOFILE,LimitMEMLOCK,TasksMax", unit
        ).splitlines()
    )
    assert int(values["LimitNOFILE"]) >= 65535
    assert values["LimitMEMLOCK"] == "infinity"
    assert values["TasksMax"] == "infinity"


@pytest.mark.configure
def test_a_stranger_gets_nothing_from_control_or_agent(host: Host, unit: str) -> None:
    """Ray's servers are reachable from the network; without the token they only say that they live."""
    address = host.check_output("sed -n 's/^RAY_NODE_ADDRESS=//p' /etc/ingot/ray.env")
    job = {"entrypoint": "true"}
    assert ask(host, f"http://{address}:52365/api/job_agent/jobs/", job)[0] == 401
    refused = host.run(
        "env RAY_AUTH_MODE=token RAY_AUTH_TOKEN=not-the-token-of-this-cluster-at-all "
        "/opt/ingot/venvs/vllm/bin/python -I /usr/lib/ingot/ray_node.py joined --address %s --head "
        "\"$(sed -n 's/^RAY_HEAD=//p' /etc/ingot/ray.env)\"",
        address,
    )
    assert refused.rc == 78
    assert "does not accept this node's Ray token" in refused.stderr


@pytest.mark.configure
def test_the_dashboard_is_on_loopback_and_asks_for_the_token(host: Host, unit: str) -> None:
    if unit != "ray-head.service":
        pytest.skip("only the head has a dashboard")
    assert host.socket("tcp://127.0.0.1:8265").is_listening
    url = "http://127.0.0.1:8265/api/version"
    assert ask(host, url)[0] == 401
    assert ask(host, url, key_file="/etc/ingot/credentials/ray-token")[0] == 200


@pytest.mark.configure
def test_the_token_is_in_no_argument_environment_or_journal(host: Host, unit: str) -> None:
    file = host.file("/etc/ingot/credentials/ray-token")
    assert (file.user, file.mode) == ("root", 0o600)
    found = host.run(
        "grep -lFf /etc/ingot/credentials/ray-token /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null"
    )
    assert found.stdout == ""
    assert (
        host.run("journalctl --no-pager --boot | grep -cFf /etc/ingot/credentials/ray-token").stdout.strip()
        == "0"
    )
