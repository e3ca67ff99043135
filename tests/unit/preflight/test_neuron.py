"""What speaks against a Neuron SDK, each defect planted in a choice that is let through."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from refusals import names

from ingot import images, neuron_lock, neuron_sets
from ingot.checkout import ROOT
from ingot.preflight import neuron
from ingot.preflight.refusal import Refusal

SETS: dict[str, Any] = yaml.safe_load((ROOT / "files/neuron-sets.yml").read_text())["sets"]
NAME = "sdk-2.28.1"
UBUNTU = {"name": "Ubuntu", "version": "24"}
KERNEL = "6.14.0-1018-aws"

GOOD: dict[str, Any] = {
    "neuron_set": NAME,
    "neuron_sets": SETS,
    "neuron_repository": {},
    "neuron_kernel": "",
    "neuron_instance_types": ["inf2.xlarge", "inf2.48xlarge"],
}


def newer(**parts: Any) -> dict[str, Any]:
    """A table with a second set, of which some parts are newer."""
    later = copy.deepcopy(SETS[NAME])
    for path, value in parts.items():
        place = later
        *parents, last = path.split("__")
        for part in parents:
            place = place[part]
        place[last] = value
    return {"neuron_set": "later", "neuron_sets": SETS | {"later": later}}


def test_good_choices_are_let_through() -> None:
    assert neuron.refusals(GOOD, "inf2.xlarge") == []
    assert neuron.refusals(GOOD, "m7i.xlarge") == [], "it may be baked on a type without a chip"
    assert neuron.refusals({}) == [], "the role's own defaults are judged when it comes to it"
    assert neuron.refusals(GOOD | {"neuron_kernel": KERNEL}) == []
    assert neuron.machine_refusals(GOOD, "node", UBUNTU, [KERNEL], ["dkms", "aws-neuronx-dkms"], "") == []


@pytest.mark.parametrize(
    ("change", "name", "said", "do"),
    [
        ({"neuron_set": "sdk-2.28.2"}, "unknown-neuron-set", "no set 'sdk-2.28.2'", f"Write '{NAME}'"),
        ({"neuron_set": "x"}, "unknown-neuron-set", "no set 'x'", f"Name one of {NAME}"),
        (
            newer(plugin__tag="0.5.0", plugin__vllm="0.16.0"),
            "neuron-part-too-new",
            "set later has plugin 0.5.0, vllm 0.16.0, and the last for Inferentia2 is SDK 2.28.1",
            f"Take neuron_set {NAME}",
        ),
        (newer(sdk="2.33.0"), "neuron-part-too-new", "has sdk 2.33.0", f"Take neuron_set {NAME}"),
        (
            newer(driver="2.29.0.0", packages__driver={"aws-neuronx-dkms": "2.29.0.0"}),
            "neuron-part-too-new",
            "for Trainium2 and Trainium3 alone",
            f"Take neuron_set {NAME}",
        ),
        (
            {"neuron_instance_types": ["trn1.2xlarge"]},
            "unsupported-accelerator",
            "trn1.2xlarge: Trainium",
            "Choose another instance type",
        ),
        (
            {"neuron_instance_types": ["trn2.48xlarge"]},
            "unsupported-accelerator",
            "Neuron SDK 2.31 and later",
            "Choose another instance type",
        ),
        (
            {"neuron_instance_types": ["inf1.xlarge"]},
            "unsupported-accelerator",
            "2.21 or older",
            "Choose another instance type",
        ),
        (
            {"neuron_instance_types": ["inf2.xlrge"]},
            "unknown-instance-type",
            "inf2.xlarge",
            "Correct neuron_inst",
        ),
        (
            {"neuron_instance_types": ["m7i.xlarge"]},
            "no-accelerator",
            "neuron_instance_types names m7i.xlarge, which has no Neuron chip",
            "name one of inf2.xlarge, inf2.8xlarge",
        ),
        (
            {"neuron_kernel": "6.19.0-1001-aws"},
            "neuron-kernel-unknown",
            "neuron_kernel is 6.19.0-1001-aws, and driver 2.26.10.0 (set sdk-2.28.1) builds on 5.10 to 6.18",
            "remove the other",
        ),
        (
            {"neuron_repository": {"uri": "http://mirror.example", "suite": "noble"}},
            "bad-neuron-repository",
            "packages without a known key are refused",
            "leave neuron_repository empty",
        ),
        (
            {"neuron_repository": {"url": "http://mirror.example"}},
            "bad-neuron-repository",
            "neuron_repository: uri: Field required; suite: Field required; url: unknown field",
            "Give uri, suite",
        ),
        ({"neuron_sets": {"a": {}}}, "bad-neuron-set-table", "sets.a.driver: Field required", "Mend it"),
    ],
)
def test_a_bad_choice_is_refused_before_there_is_a_machine(
    change: dict[str, Any], name: str, said: str, do: str
) -> None:
    (refusal,) = neuron.refusals(GOOD | change)
    assert refusal.name == name
    assert said in refusal.why
    assert do in refusal.do


def test_the_type_that_is_baked_on_counts_as_well() -> None:
    assert names(neuron.refusals(GOOD, "trn1.2xlarge")) == ["unsupported-accelerator"]


@pytest.mark.parametrize(
    ("system", "kernels", "packages", "name", "said"),
    [
        (
            {"name": "Debian", "version": "13"},
            [KERNEL],
            [],
            "neuron-set-other-system",
            "neuron set sdk-2.28.1 is for Ubuntu 24, and node is Debian 13",
        ),
        (UBUNTU, [], [], "no-kernel", "node has no kernel in /boot"),
        (UBUNTU, [KERNEL, "7.0.0-1003-aws"], [], "neuron-kernel-unknown", "node has kernel 7.0.0-1003-aws"),
        (
            UBUNTU,
            [KERNEL],
            ["dkms", "aws-neuron-dkms"],
            "retired-neuron-package",
            "node has the package aws-neuron-dkms, which is called aws-neuronx-dkms now",
        ),
    ],
)
def test_a_machine_that_the_set_is_not_for_is_refused(
    system: dict[str, str], kernels: list[str], packages: list[str], name: str, said: str
) -> None:
    (refusal,) = neuron.machine_refusals(GOOD, "node", system, kernels, packages, "3.12")
    assert refusal.name == name
    assert said in refusal.why


def lock(place: Path, **changes: str) -> str:
    """A lock of all that the set has, changed where a test says so; an empty text leaves it out."""
    chosen = neuron_sets.load().sets[NAME]
    lines = {name: f"{name}=={version}" for name, version in neuron_lock.wanted(chosen).items()}
    lines = {name: f"{line} \\\n    --hash=sha256:{'0' * 64}" for name, line in lines.items()}
    lines |= {"vllm-neuron": f"{neuron_lock.source(chosen)} \\\n    --hash=sha256:{'0' * 64}"}
    lines |= {name.replace("_", "-"): text for name, text in changes.items()}
    path = place / "neuron.txt"
    path.write_text("# made by hand\n" + "".join(f"{text}\n" for text in lines.values() if text))
    return str(path)


def environment(path: str, python: str = "3.12") -> list[Refusal]:
    variables = GOOD | {"neuron_lock": path, "neuron_python": "/usr/bin/python3"}
    return neuron.machine_refusals(variables, "node", UBUNTU, [KERNEL], [], python)


def test_an_environment_with_all_of_the_set_is_let_through(tmp_path: Path) -> None:
    assert environment(lock(tmp_path)) == []
    assert environment(lock(tmp_path, vllm_neuron=f"vllm-neuron==0.4.1 --hash=sha256:{'0' * 64}")) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"neuronx_cc": ""}, "it has no neuronx-cc"),
        (
            {"vllm": "vllm==0.16.0 --hash=sha256:00"},
            "it has vllm==0.16.0 --hash=sha256:00 and not vllm 0.13.0",
        ),
        ({"nki": "nki==0.2.0+g82fdb402"}, "it has no hash for nki"),
        (
            {"vllm_neuron": "vllm-neuron==0.1.0 --hash=sha256:00"},
            "it has vllm-neuron==0.1.0 --hash=sha256:00 and not vllm-neuron 0.4.1",
        ),
    ],
    ids=["a package missing", "another vLLM", "no hash", "PyPI's own vllm-neuron"],
)
def test_a_lock_that_is_not_the_sets_is_refused(tmp_path: Path, changes: dict[str, str], said: str) -> None:
    (refusal,) = environment(lock(tmp_path, **changes))
    assert refusal.name == "neuron-lock-incomplete"
    assert said in refusal.why
    assert "Run `make locks` on a machine that reaches https://pip.repos.neuron.amazonaws.com" in refusal.do


def test_the_repositorys_own_lock_is_incomplete_and_says_so() -> None:
    """The vendor's index cannot be reached from where it was made. What it has is right."""
    (refusal,) = environment(str(ROOT / "files/locks/neuron.txt"))
    lacking = set(re.findall(r"it has no ([a-z0-9-]+)", refusal.why))
    assert lacking == {*SETS[NAME]["python"]["packages"], "vllm-neuron"}


@pytest.mark.parametrize(("python", "there"), [("3.13", "Python 3.13"), ("", "not there")])
def test_another_python_is_refused(tmp_path: Path, python: str, there: str) -> None:
    (refusal,) = environment(lock(tmp_path), python)
    assert refusal.name == "neuron-python"
    assert (
        f"/usr/bin/python3 of node is {there}, and the engine of set sdk-2.28.1 is for 3.10 or" in refusal.why
    )


def test_what_is_known_without_a_machine_is_refused_on_one_as_well() -> None:
    wrong = GOOD | {"neuron_set": "sdk"}
    assert names(neuron.machine_refusals(wrong, "node", UBUNTU, [KERNEL], [], "3.12")) == [
        "unknown-neuron-set"
    ]


def test_an_image_with_the_role_is_refused_before_its_bake(tmp_path: Path) -> None:
    """Through playbooks/image.yml's own question; an image without the role is not asked about Neuron."""
    table = yaml.safe_load((ROOT / "packer/images.yml").read_text())
    inf2 = copy.deepcopy(table["images"]["x86"])
    inf2 |= {"accelerator": "neuron"}
    inf2["roles"].insert(-1, "neuron")
    (tmp_path / "packer").mkdir()
    (tmp_path / "packer/images.yml").write_text(
        yaml.safe_dump(table | {"images": table["images"] | {"inf2": inf2}})
    )
    for name in ("roles", "inventories"):
        (tmp_path / name).symlink_to(ROOT / name)
    wrong = GOOD | newer(plugin__tag="0.24.0")
    assert names(images.refusals("inf2", wrong, tmp_path)) == ["neuron-part-too-new"]
    assert names(images.refusals("x86", wrong, tmp_path)) == []
    assert names(images.refusals("inf2", GOOD, tmp_path)) == []


def test_every_refusal_is_in_the_table_of_the_documentation() -> None:
    text = (ROOT / "docs/troubleshoot.md").read_text()
    source = "".join((ROOT / f"src/ingot/preflight/{name}.py").read_text() for name in ("neuron", "sets"))
    for name in (
        "bad-neuron-set-table",
        "bad-neuron-repository",
        "unknown-neuron-set",
        "neuron-part-too-new",
        "neuron-set-lacks-chip",
        "neuron-set-other-system",
        "neuron-kernel-unknown",
        "retired-neuron-package",
        "no-accelerator",
        "no-kernel",
        "unsupported-accelerator",
    ):
        assert f'"{name}"' in source
        assert f"`{name}`" in text, name
