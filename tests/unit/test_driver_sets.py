"""The table of driver sets: every wrong entry is refused by name, and what the role makes of a right one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml

from ingot import driver_sets
from ingot.checkout import ROOT
from ingot.table import TableError

SETS: dict[str, Any] = yaml.safe_load((ROOT / "files/driver-sets.yml").read_text())["sets"]
DEBIAN = "debian13-550"
UBUNTU = "ubuntu2404-580"
KERNEL = "6.12.118+deb13-cloud-amd64"


def planted(name: str, path: str, value: Any) -> dict[str, Any]:
    """The table with one value of one set put in its place, or taken out."""
    sets = copy.deepcopy(SETS)
    place = sets[name]
    *parents, last = path.split("/")
    for part in parents:
        place = place[int(part)] if isinstance(place, list) else place[part]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return sets


def test_the_table_is_right() -> None:
    table = driver_sets.load()
    assert set(table.sets) == {DEBIAN, UBUNTU}
    for one in table.sets.values():
        for patch in one.patches.values():
            text = (driver_sets.PATCHES / patch.file).read_text()
            assert f"Upstream: {patch.upstream}\n" in text, "the patch names the change that it follows"
            assert "--- a/" in text and "+++ b/" in text


def test_production_has_a_set_with_all_parts_that_says_what_is_unproved() -> None:
    one = driver_sets.load().get(UBUNTU)
    assert one.packages.fabric_manager and one.packages.dcgm and one.packages.container_toolkit
    assert one.unproved and not one.kernels


@pytest.mark.parametrize(
    ("name", "path", "value", "said"),
    [
        (
            UBUNTU,
            "packages/fabric_manager/nvidia-fabricmanager",
            "580.126.20-1",
            "nvidia-fabricmanager is 580.126.20-1",
        ),
        (UBUNTU, "packages/firmware/nvidia-firmware-580", "595.71.05-1ubuntu1", "they must be one version"),
        (
            DEBIAN,
            "packages/library/libcuda1",
            "550.163.02-1",
            "libcuda1 is 550.163.02-1, and the driver 550.163.01",
        ),
        (DEBIAN, "packages/library/libcuda1", "550.163.01*", "library.libcuda1"),
        (DEBIAN, "branch", 560, "driver 550.163.01 is not of branch 560"),
        (DEBIAN, "gpus", ["A10G", "L40"], "files/accelerators.yml has no L40"),
        (UBUNTU, "packages/subnet_manager", None, "B200 needs a subnet_manager"),
        (DEBIAN, "kernels", [], "give kernels that it was proved with, or say in unproved why"),
        (UBUNTU, "unproved", None, "give kernels that it was proved with, or say in unproved why"),
        (DEBIAN, "kernels/0/release", "6.12", "kernels.0.release"),
        (
            DEBIAN,
            "patches/pci-resize-resource/kernels",
            r"^6\.18\.",
            "patch pci-resize-resource is for none of its kernels",
        ),
        (DEBIAN, "patches/pci-resize-resource/kernels", "^6\\.12\\.(", "no regular expression"),
        (DEBIAN, "patches/pci-resize-resource/upstream", None, "upstream: Field required"),
        (DEBIAN, "patches/pci-resize-resource/file", "../x.patch", "pci-resize-resource.file"),
        (UBUNTU, "repository/fingerprint", None, "packages without a known key are refused"),
        (DEBIAN, "repository/keyring", None, "packages without a known key are refused"),
        (DEBIAN, "cuda", "12", f"sets.{DEBIAN}.cuda"),
        (DEBIAN, "system/name", "Fedora", f"sets.{DEBIAN}.system.name"),
        (DEBIAN, "packages/fabricmanager", {}, "packages.fabricmanager: unknown field"),
    ],
)
def test_a_wrong_entry_is_refused_by_name(name: str, path: str, value: Any, said: str) -> None:
    with pytest.raises(TableError) as refused:
        driver_sets.given(planted(name, path, value))
    assert said in str(refused.value)
    assert name in str(refused.value)


@pytest.mark.parametrize(
    ("release", "needed"),
    [
        ("6.12.96+deb13-cloud-amd64", False),
        ("6.12.97+deb13-cloud-amd64", True),
        ("6.12.118+deb13-cloud-amd64", True),
        ("6.12.118-1-custom", True),
        ("6.12.9+deb13-cloud-amd64", False),
        ("6.18.97+deb14-cloud-amd64", False),
    ],
)
def test_a_patch_is_for_the_kernels_that_need_it(release: str, needed: bool) -> None:
    """The change came with 6.12.97: before, the driver's three arguments are the right ones."""
    (patch,) = driver_sets.load().get(DEBIAN).patches.values()
    assert patch.concerns(release) is needed


def test_a_plan_has_kernel_and_headers_of_the_pair() -> None:
    plan = driver_sets.plan(driver_sets.load(), DEBIAN, [KERNEL])
    assert plan["kernels"] == {f"linux-image-{KERNEL}": "6.12.118-1", f"linux-headers-{KERNEL}": "6.12.118-1"}
    assert plan["packages"]["nvidia-open-kernel-dkms"] == plan["packages"]["libcuda1"] == "550.163.01-2"
    assert [patch["file"] for patch in plan["patches"]] == ["pci-resize-resource.patch"]
    assert not plan["fabric_manager"]


def test_what_works_instead_is_another_pair_never_the_one_that_failed() -> None:
    table = driver_sets.load()
    others = table.other_pairs(DEBIAN, KERNEL)
    assert others and not any(KERNEL in pair for pair in others)
    unpatched = driver_sets.given(SETS | {"plain": planted(DEBIAN, "patches", None)[DEBIAN]})
    assert f"{DEBIAN}: 550.163.01 with kernel {KERNEL} (patch pci-resize-resource)" in unpatched.other_pairs(
        "plain", KERNEL
    )
    assert not any(UBUNTU in pair for pair in others), "of another distribution"
