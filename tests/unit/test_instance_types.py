"""The table of instance types is whole, and what it does not know is named."""

from __future__ import annotations

import pytest
from moto.ec2.models.instance_types import INSTANCE_TYPES  # what DescribeInstanceTypes answers

from ingot import instance_types, report


def test_the_table_is_sound() -> None:
    table = instance_types.load()
    assert len(table) > 300
    for name, row in table.items():
        assert row.arch in ("x86_64", "arm64"), name
        assert row.vcpu >= 1, name
        assert row.memory_mib >= 512, name
        assert row.usd_hour is None or 0 < row.usd_hour < 200, name
        assert (row.accelerator is None) == (row.accelerator_count == 0), name


@pytest.mark.parametrize(
    ("name", "arch", "vcpu", "gib", "price"),
    [
        ("c7g.16xlarge", "arm64", 64, 128, 2.32),
        ("m7i.large", "x86_64", 2, 8, 0.1008),
        ("inf2.24xlarge", "x86_64", 96, 384, 6.49063),
    ],
)
def test_a_few_rows(name: str, arch: str, vcpu: int, gib: int, price: float) -> None:
    row = instance_types.get(name)
    assert (row.arch, row.vcpu, row.memory_bytes >> 30, row.usd_hour) == (arch, vcpu, gib, price)


def test_the_interfaces_for_efa_are_those_that_ec2_has() -> None:
    for name, row in instance_types.load().items():
        told = INSTANCE_TYPES[name]["NetworkInfo"].get("EfaInfo") or {}
        assert row.efa_interfaces == told.get("MaximumEfaInterfaces", 0), name


def test_an_unknown_type_is_named_with_its_neighbours() -> None:
    with pytest.raises(instance_types.UnknownInstanceType) as caught:
        instance_types.get("c7i.2xlrge")
    assert "c7i.2xlarge" in str(caught.value)


def test_prices_say_what_they_are() -> None:
    assert report.price(["m7i.large"] * 3).startswith("price: $0.3024 an hour")
    assert "without 1 of unknown price" in report.price(["m7i.large", "p5e.48xlarge"])
    assert report.price(["nosuch.large"]) == "price: not in files/instance-types.csv"


def test_a_plan_says_what_and_how_much() -> None:
    lines = report.planned({"image_id": "ami-1", "name": "ingot-x86-1"}, "m7i.large", 2)
    assert lines[0] == "1 head and 2 workers, m7i.large, of ami-1 (ingot-x86-1)"
    assert lines[1].startswith("price: $0.3024 an hour")


def test_an_instance_of_an_older_image_is_marked() -> None:
    node = {
        "instance_id": "i-1",
        "instance_type": "m7i.large",
        "private_ip_address": "172.31.0.4",
        "image_id": "ami-0",
        "tags": {"Name": "ingot-head", "ingot:role": "head"},
    }
    lines = report.launched([node], {"image_id": "ami-1"})
    assert lines[1].split()[:4] == ["ingot-head", "i-1", "m7i.large", "172.31.0.4"]
    assert lines[1].endswith("ami-0 (not the newest)")


@pytest.mark.parametrize(
    ("types", "core"),
    [
        (["a1.large"], "cortex-a72"),
        (["m6g.large", "c6gn.large", "t4g.nano", "im4gn.large", "g5g.xlarge"], "neoverse-n1"),
        (["c7g.large", "m7gd.large", "r7g.large", "c7gn.large", "hpc7g.16xlarge"], "neoverse-v1"),
        (["c8g.large", "m8g.large", "r8gd.large", "x8g.large"], "neoverse-v2"),
        (["m9g.large"], "neoverse-v3"),
        (["c6a.large", "t3a.nano"], "x86-64-v3"),
        (["c5.large", "t3.nano", "m7i.large", "r7a.large", "c8i.large"], "x86-64-v4"),
        (["c10g.large", "g6.xlarge", "inf2.xlarge", "mystery"], ""),
    ],
)
def test_each_generation_has_its_core(types: list[str], core: str) -> None:
    assert {instance_types.core_of(name) for name in types} == {core}


def test_every_graviton_type_of_the_table_has_a_core() -> None:
    for name, kind in instance_types.load().items():
        if kind.arch == "arm64":
            assert instance_types.core_of(name).startswith("neoverse-"), name


@pytest.mark.parametrize(
    ("core", "compiled_for", "runs"),
    [
        ("neoverse-v2", "neoverse-v2", True),
        ("neoverse-v2", "neoverse-v1", True),
        ("neoverse-v1", "neoverse-v2", False),
        ("x86-64-v3", "x86-64-v4", False),
        ("x86-64-v4", "neoverse-v1", False),
        ("", "neoverse-v1", False),
        ("neoverse-v1", "", False),
    ],
)
def test_a_core_runs_what_was_compiled_for_those_before_it(core: str, compiled_for: str, runs: bool) -> None:
    assert instance_types.runs(core, compiled_for) is runs


def test_the_families_for_a_core() -> None:
    families = instance_types.families_for("neoverse-v2")
    assert {"c8g", "m8g", "r8g"} <= set(families)
    assert not {"c7g", "m7i"} & set(families)
