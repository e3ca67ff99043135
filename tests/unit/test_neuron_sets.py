"""The table of Neuron SDK releases: every wrong entry is refused by name, and what becomes of a right one."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from ingot import accelerators, neuron_sets
from ingot.checkout import ROOT
from ingot.table import TableError

SETS: dict[str, Any] = yaml.safe_load((ROOT / "files/neuron-sets.yml").read_text())["sets"]
NAME = "sdk-2.28.1"


def planted(path: str, value: Any) -> dict[str, Any]:
    """The table with one value of the set put in its place, or taken out."""
    sets = copy.deepcopy(SETS)
    place = sets[NAME]
    *parents, last = path.split("/")
    for part in parents:
        place = place[part]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return sets


def test_inferentia2_has_one_set_whole_that_says_what_is_unproved() -> None:
    table = neuron_sets.load()
    assert list(table.sets) == [NAME]
    one = table.get(NAME)
    assert one.devices == ["Inferentia2"]
    assert not table.limits["Inferentia2"].exceeded(one.parts), "the last release is not beyond itself"
    assert (one.sdk, one.plugin.tag, one.plugin.vllm) == ("2.28.1", "0.4.1", "0.13.0")
    assert {"neuronx-cc", "torch-neuronx", "neuronx-distributed-inference"} <= set(one.python.packages)
    assert one.unproved


def test_every_chip_of_the_accelerators_has_a_last_release() -> None:
    assert {row.name for row in accelerators.load().neuron.values()} == set(neuron_sets.load().limits)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (
            "packages/driver/aws-neuronx-dkms",
            "2.29.0.0",
            "aws-neuronx-dkms is 2.29.0.0, and the driver 2.26.10.0",
        ),
        ("packages/driver/aws-neuronx-dkms", "2.26.10.0*", "packages.driver.aws-neuronx-dkms"),
        ("packages/driver", {}, "packages.driver"),
        ("packages/tools", None, "packages.tools: Field required"),
        ("packages/runtimes", {}, "packages.runtimes: unknown field"),
        (
            "packages/tools",
            {"aws-neuron-tools": "2.1"},
            "aws-neuron-tools is now called aws-neuronx-tools",
        ),
        ("python/packages/neuron-cc", "1.24.0.0", "neuron-cc is now called neuronx-cc"),
        ("devices", ["Inferentia"], "files/accelerators.yml has no Inferentia"),
        ("kernels/oldest", "6.19", "oldest 6.19 is newer than newest 6.18"),
        ("kernels/newest", "6", "kernels.newest"),
        ("repository/fingerprint", None, "packages without a known key are refused"),
        ("system/name", "Fedora", "system.name"),
        ("plugin/tag", "main", "plugin.tag"),
        ("sdk", "latest", "sdk"),
        ("unproved", None, "unproved: Field required"),
    ],
)
def test_a_wrong_entry_is_refused_by_name(path: str, value: Any, said: str) -> None:
    with pytest.raises(TableError) as refused:
        neuron_sets.given(planted(path, value))
    assert said in str(refused.value)
    assert NAME in str(refused.value)


def test_a_table_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sets.yml").write_text("sets: [")
    for path in (tmp_path / "sets.yml", tmp_path / "none.yml"):
        with pytest.raises(TableError, match="cannot be read"):
            neuron_sets.load(path)


@pytest.mark.parametrize(
    ("release", "known"),
    [
        ("5.4.0-1100-aws", False),
        ("5.10.0-30-cloud-amd64", True),
        ("6.12.118+deb13-cloud-amd64", True),
        ("6.14.0-1018-aws", True),
        ("6.18.3", True),
        ("6.19.0-1001-aws", False),
        ("7.0.1", False),
    ],
)
def test_a_kernel_is_of_a_series_that_the_vendor_names(release: str, known: bool) -> None:
    assert neuron_sets.load().get(NAME).kernels.have(release) is known


def test_a_plan_takes_the_vendors_repository_unless_told_another() -> None:
    table = neuron_sets.load()
    plan = neuron_sets.plan(table, NAME, {})
    assert plan["packages"]["aws-neuronx-runtime-lib"].startswith("2.30.51.0-")
    assert plan["repository"]["uri"] == "https://apt.repos.neuron.amazonaws.com"
    mirror = {"uri": "http://mirror.example", "suite": "noble", "keyring": "/usr/share/keyrings/own.gpg"}
    assert neuron_sets.plan(table, NAME, mirror)["repository"]["keyring"] == mirror["keyring"]
    with pytest.raises(TableError, match="packages without a known key are refused"):
        neuron_sets.plan(table, NAME, mirror | {"keyring": ""})
