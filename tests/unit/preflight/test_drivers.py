"""What speaks against a set of drivers, each defect planted in a choice that is let through."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from refusals import names

from ingot import driver_sets, images
from ingot.checkout import ROOT
from ingot.preflight import drivers

SETS: dict[str, Any] = yaml.safe_load((ROOT / "files/driver-sets.yml").read_text())["sets"]
DEBIAN = {"name": "Debian", "version": "13"}
UBUNTU = {"name": "Ubuntu", "version": "24"}
KERNEL = "6.12.118+deb13-cloud-amd64"

PRODUCTION: dict[str, Any] = {
    "nvidia_driver_set": "ubuntu2404-580",
    "nvidia_sets": SETS,
    "nvidia_kernel": "",
    "nvidia_instance_types": [
        "g5.xlarge",
        "g6.xlarge",
        "g6e.xlarge",
        "p4d.24xlarge",
        "p5.48xlarge",
        "p5en.48xlarge",
    ],
    "nvidia_cuda_needed": "13.0",
}
REHEARSAL = PRODUCTION | {
    "nvidia_driver_set": "debian13-550",
    "nvidia_kernel": KERNEL,
    "nvidia_instance_types": ["g5.xlarge", "p5.4xlarge"],
    "nvidia_cuda_needed": "",
}


def test_good_choices_are_let_through() -> None:
    assert drivers.refusals(PRODUCTION, "p6-b200.48xlarge") == []
    assert drivers.refusals(REHEARSAL, "m7i.xlarge") == []
    assert drivers.refusals({}) == [], "the role's own defaults are judged when it comes to it"
    assert drivers.machine_refusals(PRODUCTION, "node", UBUNTU, ["6.14.0-1018-aws"]) == []
    assert drivers.machine_refusals(REHEARSAL, "node", DEBIAN, []) == []
    assert drivers.machine_refusals(REHEARSAL, "node", DEBIAN, [KERNEL]) == []


@pytest.mark.parametrize(
    ("change", "name", "said", "do"),
    [
        (
            {"nvidia_driver_set": "debian13-560"},
            "unknown-driver-set",
            "no set 'debian13-560'",
            "Write 'debian13-550'",
        ),
        (
            {"nvidia_driver_set": "x"},
            "unknown-driver-set",
            "no set 'x'",
            "Name one of debian13-550, ubuntu2404-580",
        ),
        (
            {"nvidia_instance_types": ["p6-b200.48xlarge"]},
            "driver-set-lacks-gpu",
            "p6-b200.48xlarge has B200, and driver set debian13-550 (550.163.01) is for A10G",
            "Set nvidia_driver_set to ubuntu2404-580",
        ),
        (
            {"nvidia_instance_types": ["g4dn.xlarge"]},
            "driver-set-lacks-gpu",
            "g4dn.xlarge has T4",
            "No set of files/driver-sets.yml is for T4",
        ),
        (
            {"nvidia_instance_types": ["p5.48xlarge"]},
            "driver-set-lacks-fabric-manager",
            "the 8 GPUs of p5.48xlarge are joined by NVSwitch",
            "Set nvidia_driver_set to ubuntu2404-580",
        ),
        (
            {"nvidia_instance_types": ["g7e.2xlarge"]},
            "unsupported-accelerator",
            "newer driver branch",
            "Choose another",
        ),
        (
            {"nvidia_instance_types": ["g5.xlrge"]},
            "unknown-instance-type",
            "g5.xlarge",
            "Correct nvidia_instance_types",
        ),
        (
            {"nvidia_cuda_needed": "13.0"},
            "driver-set-cuda-too-old",
            "built with CUDA 13.0, and the driver of set debian13-550 (550.163.01) goes up to 12.4",
            "Set nvidia_driver_set to ubuntu2404-580",
        ),
        (
            {"nvidia_cuda_needed": "13.10"},
            "driver-set-cuda-too-old",
            "CUDA 13.10",
            "Add a set with a newer driver",
        ),
        (
            {"nvidia_kernel": "6.12.119+deb13-cloud-amd64"},
            "kernel-not-proved",
            "nvidia_kernel is 6.12.119+deb13-cloud-amd64, and driver 550.163.01 (set",
            f"550.163.01 with kernel {KERNEL} (patch pci-resize-resource)",
        ),
        ({"nvidia_sets": {"a": {}}}, "bad-driver-set-table", "sets.a.driver: Field required", "Mend it"),
    ],
)
def test_a_bad_choice_is_refused_before_there_is_a_machine(
    change: dict[str, Any], name: str, said: str, do: str
) -> None:
    (refusal,) = drivers.refusals(REHEARSAL | change)
    assert refusal.name == name
    assert said in refusal.why
    assert do in refusal.do


def test_the_type_that_is_baked_on_counts_as_well() -> None:
    assert names(drivers.refusals(REHEARSAL, "p4d.24xlarge")) == ["driver-set-lacks-fabric-manager"]


@pytest.mark.parametrize(
    ("system", "kernels", "change", "name", "said"),
    [
        (UBUNTU, [KERNEL], {}, "driver-set-other-system", "is for Debian 13, and node is Ubuntu 24"),
        (
            DEBIAN,
            [KERNEL, "6.12.119+deb13-cloud-amd64"],
            {},
            "kernel-not-proved",
            "node has 6.12.119+deb13-cloud-amd64",
        ),
        (DEBIAN, [], {"nvidia_kernel": ""}, "no-kernel", "node has no kernel in /boot"),
        (DEBIAN, [], {"nvidia_driver_set": "debian"}, "unknown-driver-set", "no set 'debian'"),
    ],
)
def test_a_machine_that_the_set_is_not_for_is_refused(
    system: dict[str, str], kernels: list[str], change: dict[str, Any], name: str, said: str
) -> None:
    (refusal,) = drivers.machine_refusals(REHEARSAL | change, "node", system, kernels)
    assert refusal.name == name
    assert said in refusal.why


def test_a_patch_that_is_not_there_is_refused(tmp_path: Path) -> None:
    chosen = driver_sets.load().get("debian13-550")
    (refusal,) = drivers.check_patches("debian13-550", chosen, tmp_path)
    assert refusal.name == "no-driver-patch"
    assert "pci-resize-resource.patch" in refusal.why


def test_an_image_with_the_role_is_refused_before_its_bake(tmp_path: Path) -> None:
    """Through playbooks/image.yml's own question; an image without the role is not asked about drivers."""
    table = yaml.safe_load((ROOT / "packer/images.yml").read_text())
    gpu = copy.deepcopy(table["images"]["x86"])
    gpu["roles"].insert(-1, "nvidia")
    gpu["accelerator"] = "nvidia"
    (tmp_path / "packer").mkdir()
    (tmp_path / "packer/images.yml").write_text(
        yaml.safe_dump(table | {"images": table["images"] | {"gpu": gpu}})
    )
    for name in ("roles", "inventories"):
        (tmp_path / name).symlink_to(ROOT / name)
    wrong = REHEARSAL | {"nvidia_cuda_needed": "13.0"}
    assert names(images.refusals("gpu", wrong, tmp_path)) == ["driver-set-cuda-too-old"]
    assert names(images.refusals("x86", wrong, tmp_path)) == []
    assert names(images.refusals("gpu", REHEARSAL, tmp_path)) == []


def test_every_refusal_is_in_the_table_of_the_documentation() -> None:
    text = (ROOT / "docs/troubleshoot.md").read_text()
    source = "".join((ROOT / f"src/ingot/preflight/{name}.py").read_text() for name in ("drivers", "sets"))
    for name in (
        "bad-driver-set-table",
        "unknown-driver-set",
        "no-driver-patch",
        "driver-set-lacks-gpu",
        "driver-set-lacks-fabric-manager",
        "driver-set-cuda-too-old",
        "driver-set-other-system",
        "kernel-not-proved",
        "no-kernel",
        "unsupported-accelerator",
    ):
        assert f'"{name}"' in source
        assert f"`{name}`" in text, name
