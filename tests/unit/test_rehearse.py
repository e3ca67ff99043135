"""`ingot rehearse`: what decides whether to bake, what it prints, and what it says when a phase fails."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import client_gateway
import pytest
import yaml
from certificate import issue
from client_gateway import KEY, MODEL, served
from typer.testing import CliRunner

from ingot import certificates, image_inputs, images, instance_types, rehearse
from ingot.certificates import Endpoint
from ingot.checkout import ROOT
from ingot.cli import app
from ingot.rehearsal.config import Settings
from ingot.rehearsal.control import Control
from ingot.rehearse_target import INVENTORY, TARGETS, RehearsalError, Target

SPEC = """argument_specs:
  main:
    options:
      vllm_lock: {type: path}
      vllm_compiler: {type: bool}
      vllm_everywhere: {type: int}
      vllm_key: {type: str, no_log: true}
"""
BAKED = {"vllm_lock": "a.txt", "vllm_compiler": False, "vllm_key": "secret", "cluster_name": "x"}


def test_a_host_too_small_for_the_cluster_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    settings = Settings(cache=tmp_path)
    gib = 1 << 30
    refusal = rehearse.no_room(settings, 16 * gib)
    assert "3 nodes m7i.large take 18.0 GiB here (75% of their type's), and this host has 13.0 GiB" in refusal
    assert rehearse.no_room(settings, 24 * gib) == ""


def test_every_image_of_the_table_can_be_rehearsed() -> None:
    known = images.load().images
    assert TARGETS.keys() == known.keys()
    for name, target in TARGETS.items():
        assert (ROOT / target.template).is_file()
        kind = str(target.variables.get("launch_instance_type", known[name].instance_type))
        assert instance_types.get(kind).arch == known[name].architecture
        inventory = yaml.safe_load((INVENTORY / "group_vars/all.yml").read_text())
        launched = inventory | target.variables
        assert launched["launch_volume_gib"] >= known[name].volume.size
    assert rehearse.no_room(Settings(cache=Path("/")), 23 << 30, TARGETS["graviton3"]) == ""


def test_another_image_is_refused_by_name() -> None:
    done = CliRunner().invoke(app, ["rehearse", "--image", "graviton2"])
    assert done.exit_code == 2
    assert "graviton2 cannot be rehearsed" in " ".join(done.output.replace("│", "").split())


def test_variables_of_a_persons_reach_bake_launch_and_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []
    api = SimpleNamespace(
        describe_images=lambda **_: {"Images": []}, describe_instances=lambda **_: {"Reservations": []}
    )
    monkeypatch.setattr(Control, "ec2", api)
    monkeypatch.setattr(rehearse.Rehearsal, "bring_up", lambda _: None)
    monkeypatch.setattr(rehearse.Rehearsal, "run", lambda _, *command: ran.append(list(command)))
    monkeypatch.setattr(images, "check_packer", lambda *_: [])
    monkeypatch.setattr(images, "base_refusals", lambda *_: (None, []))
    extra = {"vllm_compiler": True, "launch_workers": 0}
    target = TARGETS["x86"].with_extra(extra)
    rehearse.Rehearsal(Settings(cache=tmp_path, state_root=tmp_path), target).prepare()
    _, build, launch, site = ran
    # A launch of fewer machines is of the same image.
    assert 'playbook_extra_vars={"vllm_compiler": true}' in build
    assert [command[-1] for command in (launch, site)] == [json.dumps(extra)] * 2
    other = TARGETS["x86"].with_extra({"gateway_port": 9090})
    assert rehearse.Cluster.of_inventory(other).gateway_port == 9090


def test_another_value_on_the_image_means_another_image(repository: Path) -> None:
    inventory = repository / "inventories/rehearsal"
    made = {digest(repository)} | {
        image_inputs.digest(repository, inventory, {"vllm_compiler": value}) for value in (True, False)
    }
    assert len(made) == 3


def test_fewer_machines_fit_a_smaller_host() -> None:
    alone = TARGETS["x86"].with_extra({"launch_workers": 0})
    assert rehearse.no_room(Settings(cache=Path("/")), 16 << 30, alone) == ""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{", "--extra-vars is no JSON"),
        ("[]", "--extra-vars must be a JSON object"),
        ('{"launch_workrs": 0}', "Write 'launch_workers' if that is meant"),
        ('{"launch_workers": "two"}', "launch_workers is 'two'"),
        ('{"launch_instance_type": "m7i.lrge"}', "unknown-instance-type"),
        ('{"cluster_name": "blue"}', "Set INGOT_CLUSTER in the environment instead"),
        ('{"launch_image": "graviton3"}', "Name it with --image instead"),
    ],
)
def test_variables_that_would_go_astray_are_refused(
    given: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Control, "up", lambda _: pytest.fail("it went on"))
    done = CliRunner().invoke(app, ["rehearse", "--extra-vars", given])
    assert done.exit_code == 1
    assert said in done.output


def checkout(root: Path) -> Path:
    for name, text in {
        "packer/x86.pkr.hcl": "build {}",
        "roles/base/tasks/main.yml": "- name: x",
        "roles/base/README.md": "# base",
        "files/versions.yml": "ray: 1",
        "files/iam/packer.json": "{}",
        "roles/vllm/meta/argument_specs.yml": SPEC,
        "inventories/aws/group_vars/all.yml": "{cluster_name: x, vllm_everywhere: 1}",
        "playbooks/image.yml": "- hosts: image",
        "playbooks/site.yml": "- hosts: all",
        "inventories/rehearsal/group_vars/all.yml": "a: 1",
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return checkout(tmp_path)


def digest(repository: Path) -> str:
    return image_inputs.digest(repository, repository / "inventories/rehearsal", {})


@pytest.mark.parametrize(
    "name",
    [
        "packer/x86.pkr.hcl",
        "roles/base/tasks/main.yml",
        "files/versions.yml",
        "playbooks/image.yml",
        "inventories/rehearsal/group_vars/all.yml",
        "roles/new/files/added.conf",
    ],
)
def test_an_image_is_baked_again_when_what_it_is_made_of_changes(repository: Path, name: str) -> None:
    before = digest(repository)
    assert digest(repository) == before
    path = repository / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("changed")
    assert digest(repository) != before


@pytest.mark.parametrize("name", ["roles/base/README.md", "playbooks/site.yml", "files/iam/packer.json"])
def test_an_image_is_not_baked_again_for_what_is_not_on_it(repository: Path, name: str) -> None:
    before = digest(repository)
    (repository / name).write_text("changed")
    assert digest(repository) == before


def test_a_renamed_file_changes_the_hash(repository: Path) -> None:
    before = digest(repository)
    (repository / "files/versions.yml").rename(repository / "files/pins.yml")
    assert digest(repository) != before


def test_the_record_of_a_bake_says_that_install_would_change_nothing(repository: Path) -> None:
    record = image_inputs.record(BAKED, repository)
    assert "secret" not in record
    assert image_inputs.is_current(record, BAKED, repository)
    assert image_inputs.is_current(
        record, {"vllm_lock": "a.txt"}, repository
    )  # the others were the image's own
    assert image_inputs.is_current(record, {**BAKED, "cluster_name": "y", "vllm_everywhere": 2}, repository)


@pytest.mark.parametrize("change", [{"vllm_lock": "b.txt"}, {"vllm_compiler": True}])
def test_another_value_of_a_role_means_to_install(repository: Path, change: dict[str, object]) -> None:
    record = image_inputs.record(BAKED, repository)
    assert not image_inputs.is_current(record, {**BAKED, **change}, repository)


def test_two_checkouts_at_two_places_tell_the_same(tmp_path: Path) -> None:
    # The name of one is that of a folder that the hash leaves out.
    one, two = checkout(tmp_path / "iam"), checkout(tmp_path / "elsewhere")
    assert digest(one) == digest(two)

    def variables(root: Path) -> dict[str, object]:
        lock = f"{root}/playbooks/../files/versions.yml"
        return {
            **BAKED,
            "vllm_lock": lock,
            "vllm_everywhere": [{"file": f"{root}/files", "on": "/opt/ingot"}],
        }

    record = image_inputs.record(variables(one), one)
    assert record == image_inputs.record(variables(two), two)
    assert str(tmp_path) not in record
    assert '[{"file":"files","on":"/opt/ingot"}]' in record
    assert image_inputs.is_current(record, variables(two), two)


def test_a_lock_is_known_by_what_is_in_it(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    lock = tmp_path_factory.mktemp("mine") / "lock.txt"
    lock.write_text("vllm==1")
    record = image_inputs.record({"vllm_lock": str(lock)}, repository)
    assert str(lock.parent) not in record
    moved = tmp_path_factory.mktemp("moved") / "lock.txt"
    moved.write_text("vllm==1")
    assert image_inputs.is_current(record, {"vllm_lock": str(moved)}, repository)
    moved.write_text("vllm==2")
    assert not image_inputs.is_current(record, {"vllm_lock": str(moved)}, repository)


def test_a_value_that_the_bake_did_not_have_means_to_install(repository: Path) -> None:
    record = image_inputs.record({"vllm_lock": "a.txt"}, repository)
    assert not image_inputs.is_current(record, BAKED, repository)


@pytest.mark.parametrize("record", ["", "{}", "[]", "no json", '{"code": "x", "variables": {}}'])
def test_no_record_or_another_checkouts_means_to_install(repository: Path, record: str) -> None:
    assert not image_inputs.is_current(record, {}, repository)


def test_a_changed_role_means_to_install(repository: Path) -> None:
    record = image_inputs.record(BAKED, repository)
    (repository / "roles/base/tasks/main.yml").write_text("- name: y")
    assert not image_inputs.is_current(record, BAKED, repository)


def test_the_key_is_where_the_inventory_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("INGOT_CLUSTER", "blue")
    variables = yaml.safe_load((INVENTORY / "group_vars/all.yml").read_text())
    home = "{{ lookup('ansible.builtin.env', 'HOME') }}"
    written = (
        variables["ingot_config_dir"].replace(home, "/home/somebody").replace("{{ cluster_name }}", "blue")
    )
    assert variables["ingot_api_key_file"] == "{{ ingot_config_dir }}/api-key"
    assert rehearse.Cluster.of_inventory().key_file == Path(written) / "api-key"
    assert rehearse.Cluster.of_inventory().head == "blue-head"


def test_the_examples_are_shell_that_keeps_the_key_out_of_itself() -> None:
    gateway = Endpoint("http://172.31.0.9:8080", "172.31.0.9")
    found = rehearse.examples(gateway, 8080, "a/model", Path("/home/some body/api-key"))
    words = shlex.split(found["curl"].replace("$(cat '/home/some body/api-key')", "KEY"))
    assert words[:3] == ["curl", "-s", "http://127.0.0.1:8080/v1/chat/completions"]
    assert "Authorization: Bearer KEY" in words
    assert yaml.safe_load(words[-1])["model"] == "a/model"
    assert 'base_url="http://127.0.0.1:8080/v1"' in found["openai"]
    compile(found["openai"].split("<<'EOF'\n")[1].removesuffix("EOF"), "example", "exec")


@pytest.mark.parametrize("issued_by", ["", "itself", "an authority"])
def test_the_examples_work_as_printed_also_with_a_certificate(tmp_path: Path, issued_by: str) -> None:
    """Whose name leads nowhere, and whose issuer this machine does not know."""
    (tmp_path / "api-key").write_text(KEY + "\n")
    path, told = "", Endpoint("http://172.31.0.9:8080", "172.31.0.9")
    if issued_by:
        authority = issue(authority=True) if issued_by == "an authority" else None
        path = served(tmp_path, issue("llm.example.com", by=authority))
        known = tmp_path / "gateway-certificate.pem"
        known.write_text(certificates.read(path).chain)
        told = Endpoint("https://llm.example.com:8080", "172.31.0.9", "", str(known))
    with client_gateway.gateway(path) as port:
        for command in rehearse.examples(told, port, MODEL, tmp_path / "api-key").values():
            done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
            assert "Paris." in done.stdout, command + done.stderr


def test_another_certificate_is_not_believed_by_the_examples(tmp_path: Path) -> None:
    (tmp_path / "api-key").write_text(KEY + "\n")
    (tmp_path / "known.pem").write_text(issue("llm.example.com").public)
    told = Endpoint("https://llm.example.com:8080", "172.31.0.9", "", str(tmp_path / "known.pem"))
    with client_gateway.gateway(served(tmp_path, issue("llm.example.com"))) as port:
        examples = rehearse.examples(told, port, MODEL, tmp_path / "api-key")
        curl = subprocess.run(["bash", "-c", examples["curl"]], capture_output=True, text=True, check=False)
        openai = subprocess.run(
            ["bash", "-c", examples["openai"]], capture_output=True, text=True, check=False
        )
    assert curl.returncode == 60 and not curl.stdout, "not the certificate that it knows"
    assert "CERTIFICATE_VERIFY_FAILED" in openai.stderr and not openai.stdout


class NoRegion:
    """In the place of a region's control: commands are run where the test is."""

    def command(self, words: tuple[str, ...]) -> list[str]:
        return [str(rehearse.BIN / words[0]), *words[1:]]

    def environment(self) -> dict[str, str]:
        return {}


def rehearsal(monkeypatch: pytest.MonkeyPatch, directory: Path, certificate: str) -> rehearse.Rehearsal:
    """One whose inventory has a head, started with this certificate."""
    inventory = directory / "hosts.yml"
    head = {"ansible_host": "172.31.0.9", "gateway_port": 8080, "cluster_name": "ingot"}
    shared = {"ingot_config_dir": str(directory)}
    groups = {"ray_head": {"hosts": {"ingot-head": head}}}
    inventory.write_text(yaml.safe_dump({"all": {"vars": shared, "children": groups}}))
    monkeypatch.setattr(rehearse, "INVENTORY", inventory)
    one = object.__new__(rehearse.Rehearsal)
    one.control = cast(Control, NoRegion())
    one.target = Target("x86", extra={"gateway_tls_certificate": certificate})
    return one


def test_where_the_gateway_is_comes_from_the_inventory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = served(tmp_path, issue("llm.example.com"))
    found = rehearsal(monkeypatch, tmp_path, "{{ ingot_config_dir }}/gateway.pem").gateway()
    assert (found.url, found.address) == ("https://llm.example.com:8080", "172.31.0.9")
    assert found.certificate_file == f"{tmp_path}/gateway-certificate.pem"
    Path(path).unlink()
    with pytest.raises(RehearsalError, match=r"did not say where the gateway is: .*gateway\.pem"):
        rehearsal(monkeypatch, tmp_path, path).gateway()


def test_an_image_is_told_which_commit_it_is_of(tmp_path: Path) -> None:
    assert rehearse.commit_of(tmp_path) == ""
    who = ("-c", "user.name=t", "-c", "user.email=t@example.com")
    for command in (("init", "-q"), (*who, "commit", "-q", "--allow-empty", "-m", "x"), ("tag", "v1")):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    clean = rehearse.commit_of(tmp_path)
    assert re.fullmatch("[0-9a-f]{40}", clean)
    (tmp_path / "new").touch()
    subprocess.run(["git", "add", "new"], cwd=tmp_path, check=True)
    assert rehearse.commit_of(tmp_path) == f"{clean}-dirty"


def test_phases_are_timed_also_when_they_fail() -> None:
    phases = rehearse.Phases()
    with pytest.raises(RuntimeError), phases.phase("image"):
        raise RuntimeError
    with phases.phase("launch"):
        pass
    assert list(phases.seconds) == ["image", "launch"]
    lines = phases.table()
    assert lines[0].split() == ["phase", "seconds"]
    assert lines[-1].split()[0] == "all"
