"""The table of instance types is whole, and what it does not know is named."""

from __future__ import annotations

import pytest

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
