"""Role gateway: what a client and an operator rely on."""

from __future__ import annotations

import json

import pytest
from node_http import ask
from testinfra.host import Host


@pytest.mark.install
def test_haproxy_is_installed(host: Host) -> None:
    assert host.package("haproxy").is_installed


@pytest.mark.hygiene
def test_an_image_neither_runs_nor_enables_it(host: Host) -> None:
    assert not host.service("haproxy").is_running
    assert not host.service("haproxy").is_enabled


@pytest.fixture
def endpoint(host: Host) -> str:
    """Where the gateway listens; a node that is no gateway has nothing to test here."""
    if not host.service("haproxy").is_enabled:
        pytest.skip("this node is no gateway")
    (line,) = [
        line for line in host.file("/etc/haproxy/haproxy.cfg").content_string.splitlines() if " bind " in line
    ]
    return str(line.split()[1])


@pytest.mark.configure
def test_it_listens_on_one_address(host: Host, endpoint: str) -> None:
    address, port = endpoint.rsplit(":", 1)
    assert host.service("haproxy").is_running
    assert host.socket(f"tcp://{endpoint}").is_listening
    assert not host.socket(f"tcp://0.0.0.0:{port}").is_listening
    assert address not in ("0.0.0.0", "*")


@pytest.mark.configure
def test_health_needs_no_key_and_everything_else_does(host: Host, endpoint: str) -> None:
    assert ask(host, f"http://{endpoint}/health") == (200, {"status": "ready"})
    status, body = ask(host, f"http://{endpoint}/v1/models")
    assert status == 401
    assert body["error"]["code"] == "invalid_api_key"


@pytest.mark.configure
def test_a_key_opens_the_api_and_nothing_else(host: Host, endpoint: str) -> None:
    keys = "/etc/ingot/credentials/gateway-keys"
    probe = json.loads(host.check_output("grep -o '{\"model\".*}' /etc/haproxy/haproxy.cfg"))
    status, body = ask(host, f"http://{endpoint}/v1/completions", probe, key_file=keys)
    assert status == 200, body
    assert body["choices"]
    assert ask(host, f"http://{endpoint}/metrics", key_file=keys)[0] == 404


@pytest.mark.configure
def test_keys_are_for_root_alone(host: Host, endpoint: str) -> None:
    for name in ("gateway-keys", "gateway-backend-key"):
        file = host.file(f"/etc/ingot/credentials/{name}")
        assert (file.user, file.mode) == ("root", 0o600)
    key = host.check_output("head -n1 /etc/ingot/credentials/gateway-keys")
    assert key not in host.file("/etc/haproxy/haproxy.cfg").content_string
    # By file: a key among the arguments would find the search itself.
    keys = "/etc/ingot/credentials/gateway-keys"
    assert host.run(f"grep -lFf {keys} /proc/[0-9]*/cmdline").stdout == ""
    assert host.run(f"journalctl --no-pager -u haproxy | grep -cFf {keys}").stdout.strip() == "0"


@pytest.mark.configure
def test_the_admin_socket_is_for_root_alone(host: Host, endpoint: str) -> None:
    socket = host.file("/run/haproxy/admin.sock")
    assert socket.is_socket
    assert socket.mode & 0o077 == 0
