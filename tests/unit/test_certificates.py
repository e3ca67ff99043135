"""The gateway with TLS: its certificate is refused by name, and what answers must show that very one."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from certificate import Issued, issue
from client_gateway import ANSWER, KEY, MODEL, gateway, served
from program import load

from ingot import certificates, report
from ingot.filters import preflight as faces

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def authority() -> Issued:
    return issue(authority=True)


def pem(path: Path, *parts: str) -> str:
    path.write_text("".join(parts))
    return str(path)


def head(path: str = "", **more: Any) -> dict[str, Any]:
    return {
        "inventory_hostname": "head",
        "ansible_host": "127.0.0.1",
        "gateway_port": 8080,
        "gateway_tls_certificate": path,
        "cluster_name": "ingot",
        "ingot_config_dir": "/home/me/.config/ingot/ingot",
        **more,
    }


# --- the file -----------------------------------------------------------------------------------------------


def test_a_certificate_that_can_serve_is_let_through(tmp_path: Path, authority: Issued) -> None:
    path = served(tmp_path, issue("LLM.example.com", "203.0.113.7", by=authority), authority)
    assert certificates.refusals(path) == []
    found = certificates.read(path)
    assert found.names == ("llm.example.com", "203.0.113.7")
    assert found.chain.count("BEGIN CERTIFICATE") == 2
    assert "PRIVATE" not in found.chain
    assert certificates.refusals("") == []


def planted(directory: Path, defect: str) -> str:
    good, other, path = issue("a.example"), issue("b.example"), directory / "gateway.pem"
    parts = {
        "absent": None,
        "relative": None,
        "no key": [good.public],
        "no certificate": [good.private()],
        "of another": [good.public, other.private()],
        "chain first": [other.public, good.public, good.private()],
        "passphrase": [good.public, good.private("words")],
        "damaged": [good.public.replace("M", "N"), good.private()],
        "expired": [(old := issue("a.example", days=-1)).public, old.private()],
        "no name": [(bare := issue()).public, bare.private()],
    }[defect]
    if parts is None:
        return "certs/gateway.pem" if defect == "relative" else str(path)
    return pem(path, *parts)


@pytest.mark.parametrize(
    ("defect", "name", "said"),
    [
        ("absent", "no-certificate", "cannot be read"),
        ("relative", "no-certificate", "certs/gateway.pem is not a path from / or ~"),
        ("no key", "bad-certificate", "has no private key"),
        ("no certificate", "bad-certificate", "has no certificate"),
        ("of another", "bad-certificate", "is not the private key's"),
        ("chain first", "bad-certificate", "the first certificate of"),
        ("passphrase", "bad-certificate", "without a passphrase"),
        ("damaged", "bad-certificate", "cannot be used"),
        ("expired", "expired-certificate", "Have it renewed"),
        ("no name", "nameless-certificate", "subjectAltName"),
    ],
)
def test_one_that_cannot_is_refused_before_a_node_has_it(
    tmp_path: Path, defect: str, name: str, said: str
) -> None:
    (refusal,) = certificates.refusals(planted(tmp_path, defect))
    assert refusal.name == name
    assert "gateway_tls_certificate: " in refusal.why
    assert said in str(refusal)


def test_the_cluster_is_refused_with_its_certificate(tmp_path: Path) -> None:
    variables = {"head": head(planted(tmp_path, "no key"))}
    names = [refusal.name for refusal in faces.cluster_refusals(variables, {"ray_head": ["head"]})]
    assert "bad-certificate" in names


def test_a_clock_that_is_wrong_is_thought_of(tmp_path: Path) -> None:
    path = served(tmp_path, issue("a.example"))
    with pytest.raises(certificates.CertificateError) as refused:
        certificates.read(path, datetime.now(UTC) - timedelta(days=400))
    assert "set the clock" in str(refused.value.refusal)


# --- where it is --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "address", "url"),
    [
        (["llm.example.com"], "10.0.0.7", "https://llm.example.com:8080"),
        (["llm.example.com", "10.0.0.7"], "10.0.0.7", "https://10.0.0.7:8080"),
        (["a.example.com", "b.example.com"], "B.example.com", "https://B.example.com:8080"),
        (["*.example.com"], "head.example.com", "https://head.example.com:8080"),
        (["*.example.com"], "10.0.0.7", "https://ingot.example.com:8080"),
        (["*.example.com"], "a.b.example.com", "https://ingot.example.com:8080"),
        (["10.0.0.7"], "203.0.113.9", "https://10.0.0.7:8080"),
    ],
)
def test_clients_ask_for_what_the_certificate_is_for(
    tmp_path: Path, names: list[str], address: str, url: str
) -> None:
    found = certificates.endpoint(head(served(tmp_path, issue(*names)), ansible_host=address))
    assert (found.url, found.address) == (url, address)
    assert found.certificate_file == "/home/me/.config/ingot/ingot/gateway-certificate.pem"


def test_without_tls_nothing_changes() -> None:
    assert certificates.endpoint(head()) == certificates.Endpoint("http://127.0.0.1:8080", "127.0.0.1")
    assert certificates.endpoint(head(ansible_host="fd00::7")).url == "http://[fd00::7]:8080"


# --- asking -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return load(ROOT / "plugins/modules/ask_endpoint.py")


def ask(module: ModuleType, variables: dict[str, Any], key: str = KEY) -> dict[str, Any]:
    found = certificates.endpoint(variables)
    question = report.question(MODEL)
    answer: dict[str, Any] = module.ask(found.url, found.address, key, question, found.certificates, 10)
    return answer


@pytest.mark.parametrize("self_signed", [True, False])
def test_the_question_is_asked_and_the_certificate_is_the_given_one(
    module: ModuleType, tmp_path: Path, authority: Issued, self_signed: bool
) -> None:
    """Its name leads nowhere, and it is in no store of this machine."""
    issuers = () if self_signed else (authority,)
    path = served(tmp_path, issue("llm.example.com", by=None if self_signed else authority), *issuers)
    with gateway(path) as port:
        assert ask(module, head(path, gateway_port=port)) == {
            "status": 200,
            "content": json.dumps(ANSWER),
            "answer": ANSWER,
        }
        assert ask(module, head(path, gateway_port=port), key="wrong")["status"] == 401


def test_another_certificate_is_not_believed_even_for_the_same_name(
    module: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    path, other = (
        served(directory, issue("llm.example.com")) for directory in (tmp_path, tmp_path / "other")
    )
    with gateway(other) as port:
        answer = ask(module, head(path, gateway_port=port))
    assert answer["status"] == 0
    assert "another certificate than gateway_tls_certificate for llm.example.com" in answer["content"]


def test_a_gateway_that_does_not_speak_tls_is_said_to_be_so(module: ModuleType, tmp_path: Path) -> None:
    path = served(tmp_path, issue("llm.example.com"))
    with gateway() as port:
        answer = ask(module, head(path, gateway_port=port))
    assert answer["status"] == 0
    assert "does not speak TLS" in answer["content"]
    assert "Connection refused" in ask(module, head(path, gateway_port=port))["content"]


# --- what the user sees -------------------------------------------------------------------------------------


def last_play(directory: Path, variables: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """The last play of site.yml, for a cluster of one head that has been configured."""
    plays = yaml.safe_load((ROOT / "playbooks/site.yml").read_text())
    facts = {"default_ipv4": {"address": "10.0.0.7"}, "cacheable": True}
    configured = {
        "hosts": "ray_head",
        "gather_facts": False,
        "tasks": [{"name": "Know it", "ansible.builtin.set_fact": facts}],
    }
    asking = plays[-1] | {"vars_files": [str(ROOT / "playbooks/vars/wiring.yml")]}
    (directory / "play.yml").write_text(yaml.safe_dump([configured, asking], sort_keys=False))
    (directory / "hosts.yml").write_text(
        yaml.safe_dump(
            {"all": {"vars": variables, "children": {"ray_head": {"hosts": {"head": {}}}, "ray_worker": {}}}}
        )
    )
    return subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), "-i", directory / "hosts.yml", "play.yml"],
        cwd=directory,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("certificate", [True, False])
def test_the_playbook_ends_with_a_command_that_works_as_printed(tmp_path: Path, certificate: bool) -> None:
    path = served(tmp_path, issue("llm.example.com")) if certificate else ""
    (tmp_path / "api-key").write_text(KEY + "\n")
    variables = head(path, ingot_config_dir=str(tmp_path), ingot_api_key_file=str(tmp_path / "api-key"))
    del variables["inventory_hostname"]
    variables |= {"serving_model_id": MODEL, "serving_mode": "vllm"}
    with gateway(path) as port:
        done = last_play(tmp_path, variables | {"gateway_port": port})
        assert done.returncode == 0, done.stdout + done.stderr
        (command,) = [
            line.strip().removeprefix("try: ") for line in done.stdout.splitlines() if "try: " in line
        ]
        tried = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert json.loads(tried.stdout) == ANSWER, command + tried.stderr
    assert KEY not in done.stdout
    if certificate:
        assert f"endpoint: https://llm.example.com:{port}/v1" in done.stdout
        assert "name: llm.example.com must lead clients to 127.0.0.1" in done.stdout
        kept = (tmp_path / "gateway-certificate.pem").read_text()
        assert kept == certificates.read(path).chain
    else:
        assert shlex.split(command)[:3] == ["curl", "-s", f"http://127.0.0.1:{port}/v1/chat/completions"]


def test_the_playbook_fails_where_another_certificate_is_shown(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = served(tmp_path / "other", issue("llm.example.com"))
    (tmp_path / "api-key").write_text(KEY + "\n")
    variables = head(
        served(tmp_path, issue("llm.example.com")),
        ingot_config_dir=str(tmp_path),
        ingot_api_key_file=str(tmp_path / "api-key"),
    )
    del variables["inventory_hostname"]
    with gateway(other) as port:
        done = last_play(
            tmp_path,
            variables | {"serving_model_id": MODEL, "serving_mode": "vllm", "gateway_port": port},
        )
    assert done.returncode != 0
    said = " ".join(done.stdout.split())
    assert f"https://llm.example.com:{port} answered nothing: 127.0.0.1:{port} shows another cert" in said
