"""A cluster that site.yml has configured, as its users and its operators see it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.configure

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
QUESTION = {"model": MODEL, "messages": [{"role": "user", "content": "What is the capital of France?"}]}


def key() -> str:
    return (Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]) / "secrets/api-key").read_text().strip()


def is_head(host: Any) -> bool:
    return "ray_head" in host.ansible.get_variables()["group_names"]


def address(host: Any) -> str:
    return str(host.check_output("hostname -I").split()[0])


@pytest.fixture
def gateway(host: Any) -> str:
    """The gateway's URL, on the head; other nodes have none."""
    if not is_head(host):
        pytest.skip("the gateway is on the head")
    return f"http://{address(host)}:8080"


def post(host: Any, url: str, body: dict[str, Any], token: str) -> tuple[int, str]:
    """Status and body. The key goes in by standard input, not by argv."""
    script = (
        "import json, sys, urllib.error, urllib.request\n"
        "url, token, body = json.loads(sys.stdin.readline())\n"
        "request = urllib.request.Request(url, json.dumps(body).encode(),"
        " {'Content-Type': 'application/json', 'Authorization': 'Bearer ' + token})\n"
        "try:\n"
        "    answer = urllib.request.urlopen(request, timeout=120)\n"
        "    print(answer.status); print(answer.read().decode())\n"
        "except urllib.error.HTTPError as error:\n"
        "    print(error.code); print(error.read().decode())\n"
    )
    given = json.dumps([url, token, body])
    done = host.run("printf '%%s' %s | python3 -c %s", given, script)
    assert done.rc == 0, done.stderr
    status, _, text = done.stdout.partition("\n")
    return int(status), text


def test_the_gateway_answers(host: Any, gateway: str) -> None:
    status, text = post(host, f"{gateway}/v1/chat/completions", QUESTION, key())
    assert status == 200, text
    assert "Paris" in json.loads(text)["choices"][0]["message"]["content"]


def test_the_gateway_streams(host: Any, gateway: str) -> None:
    status, text = post(host, f"{gateway}/v1/chat/completions", {**QUESTION, "stream": True}, key())
    assert status == 200, text
    chunks = [line for line in text.splitlines() if line.startswith("data: ")]
    assert len(chunks) > 3
    assert chunks[-1] == "data: [DONE]"


def test_a_wrong_key_gets_nothing(host: Any, gateway: str) -> None:
    status, text = post(host, f"{gateway}/v1/chat/completions", QUESTION, "wrong-key-of-some-length")
    assert status == 401
    assert "Paris" not in text


def test_every_node_has_a_replica_that_the_gateway_uses(host: Any, gateway: str) -> None:
    stat = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('/run/haproxy/admin.sock');"
    stat += " s.sendall(b'show stat\\n'); print(s.makefile().read())"
    lines = host.check_output("python3 -c %s", stat).splitlines()
    servers = [line.split(",") for line in lines if line.startswith("engines,")]
    states = {fields[1]: fields[17] for fields in servers if fields[1] != "BACKEND"}
    assert len(states) == 3
    assert set(states.values()) == {"UP"}


def test_the_key_and_the_token_are_in_no_argument_and_no_journal(host: Any) -> None:
    # grep itself must not be found, hence the pattern on standard input.
    secret = key()
    found = host.run(
        "printf '%%s\\n' %s > /run/pattern; cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'"
        " | grep -v printf | grep -c -F -f /run/pattern; journalctl --no-pager -q"
        " | grep -v sudo | grep -c -F -f /run/pattern; rm /run/pattern",
        secret,
    )
    assert found.stdout.split() == ["0", "0"]


def test_the_engine_has_the_allocator_and_ray_has_not(host: Any) -> None:
    """By what the processes have mapped, whatever their environment says."""
    preload = json.loads(host.file("/etc/ingot/tuning.json").content_string)["environment"]["LD_PRELOAD"]
    library = host.check_output("readlink -f %s", preload)
    with host.sudo():
        mapping = host.check_output("grep -l %s /proc/[0-9]*/maps 2>/dev/null || true", library).split()
        users = {
            host.file(maps.replace("/maps", "/cmdline")).content_string.split("\0")[0] for maps in mapping
        }
    assert any(name.startswith("VLLM::Worker") for name in users), users
    assert not [name for name in users if "raylet" in name or "gcs_server" in name]


def test_no_unit_failed(host: Any) -> None:
    assert host.check_output("systemctl list-units --failed --plain --no-legend") == ""
