"""Role serving: the engine answers, asks for its key, and its failures can be explained."""

from __future__ import annotations

import json
from typing import Any

import pytest
from node_http import ask
from testinfra.host import Host

KEY = "/etc/ingot/credentials/api-key"
UNITS = ("vllm.service", "ingot-serve.service", "ingot-firewall.service")


@pytest.mark.install
@pytest.mark.parametrize("unit", UNITS)
def test_systemd_accepts_the_units(host: Host, unit: str) -> None:
    done = host.run("systemd-analyze verify --man=no /etc/systemd/system/%s", unit)
    assert (done.rc, done.stderr) == (0, "")


@pytest.mark.install
def test_the_doctor_needs_the_system_s_python_only(host: Host) -> None:
    done = host.run("env -i /usr/bin/ingot --help")
    assert done.rc == 0
    assert "what is wrong here, root causes first" in done.stdout


@pytest.mark.hygiene
@pytest.mark.parametrize("unit", UNITS)
def test_an_image_neither_runs_nor_enables_them(host: Host, unit: str) -> None:
    assert not host.service(unit).is_enabled
    assert not host.service(unit).is_running


@pytest.fixture
def settings(host: Host) -> dict[str, Any]:
    """What the role decided for this node."""
    file = host.file("/etc/ingot/serving.json")
    if not file.exists:
        pytest.skip("this node does not serve")
    values: dict[str, Any] = json.loads(file.content_string)
    return values


def asked(host: Host, settings: dict[str, Any], path: str, body: Any = None, **key: str) -> tuple[int, Any]:
    return ask(host, f"http://{settings['address']}:{settings['port']}{path}", body, **key)


@pytest.mark.configure
def test_the_engine_answers_right(host: Host, settings: dict[str, Any]) -> None:
    body = {
        "model": settings["model_id"],
        "prompt": "The capital of France is",
        "max_tokens": 8,
        "temperature": 0,
    }
    key_file = KEY if settings["mode"] == "vllm" else ""
    status, answer = asked(host, settings, "/v1/completions", body, key_file=key_file)
    assert status == 200, answer
    assert "Paris" in answer["choices"][0]["text"]


@pytest.mark.configure
def test_the_engine_answers_many_at_once_as_each_alone(host: Host, settings: dict[str, Any]) -> None:
    done = host.run("ingot compare")
    assert done.rc == 0, done.stdout + done.stderr


@pytest.mark.configure
def test_the_engine_asks_for_its_key(host: Host, settings: dict[str, Any]) -> None:
    if settings["mode"] != "vllm":
        pytest.skip("Ray Serve has no keys; its port is closed instead")
    assert asked(host, settings, "/v1/models")[0] == 401
    assert asked(host, settings, "/v1/models", key="sk-wrong")[0] == 401
    assert asked(host, settings, "/v1/models", key_file=KEY)[0] == 200
    assert not host.socket(f"tcp://0.0.0.0:{settings['port']}").is_listening


@pytest.mark.configure
def test_the_port_of_serve_is_closed_to_strangers(host: Host, settings: dict[str, Any]) -> None:
    if settings["mode"] != "ray_serve":
        pytest.skip("the engine has a key of its own")
    rules = host.check_output("nft list table inet ingot_serving")
    assert f"tcp dport {settings['port']} counter" in rules
    assert "drop" in rules


@pytest.mark.configure
def test_the_key_is_in_no_argument_cache_or_journal(host: Host, settings: dict[str, Any]) -> None:
    file = host.file(KEY)
    if not file.exists:
        pytest.skip("this mode needs no key on the node")
    assert (file.user, file.mode) == ("root", 0o600)
    assert host.run(f"grep -lFf {KEY} /proc/[0-9]*/cmdline 2>/dev/null").stdout == ""
    assert host.run(f"journalctl --no-pager --boot | grep -cFf {KEY}").stdout.strip() == "0"
    assert (
        host.run(f"grep -rlFf {KEY} /var/cache/ingot /var/lib/ingot /etc/systemd /etc/ingot/*.*").stdout == ""
    )


@pytest.mark.configure
def test_the_doctor_finds_nothing(host: Host, settings: dict[str, Any]) -> None:
    done = host.run("/usr/bin/ingot doctor")
    assert done.rc == 0, done.stdout
    assert "nothing wrong" in done.stdout


@pytest.mark.configure
def test_the_users_environment_wins(host: Host, settings: dict[str, Any]) -> None:
    """Where the scenario sets one: over the image's file, and with what would mean something to a shell."""
    given = host.ansible.get_variables().get("planted_environment")
    if not given:
        pytest.skip("this cluster sets no environment of its own")
    process = host.check_output("systemctl show vllm.service --property=MainPID --value")
    environment = host.file(f"/proc/{process}/environ").content_string.split("\0")
    assert sorted(f"{name}={value}" for name, value in given.items()) == sorted(
        line for line in environment if line.partition("=")[0] in given
    )
    assert "PLANTED_ONLY_THERE=image" in environment
    assert host.file("/etc/ingot/serving.env").mode == 0o600


@pytest.mark.configure
def test_the_engine_core_is_forked_from_what_has_imported_it(host: Host, settings: dict[str, Any]) -> None:
    """Else each start takes twice as long; after an upgrade of vLLM, look at serve_vllm.py."""
    if settings["mode"] != "vllm":
        pytest.skip("Ray starts the engines of this mode")
    core = host.check_output("pgrep --uid ingot --full ^VLLM::EngineCore")
    parent = host.check_output("ps --no-headers --format ppid,args %s", core).split()[0]
    assert "multiprocessing.forkserver" in host.check_output("ps --no-headers --format args %s", parent)


@pytest.mark.configure
def test_stopping_outlasts_the_drain(host: Host, settings: dict[str, Any]) -> None:
    if settings["mode"] != "vllm":
        pytest.skip("Serve drains its replicas itself")
    stop = host.check_output("systemctl show vllm.service --property=TimeoutStopUSec --value")
    drain = host.check_output("grep shutdown-timeout /etc/ingot/vllm.yaml").split()[-1]
    assert stop in ("2min 30s", f"{int(drain) + 30}s")
