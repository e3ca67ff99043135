"""Every defect of an AMI by name, planted in one without."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from refusals import IMAGE

from ingot.preflight import ami

WANTED: dict[str, Any] = {
    "architecture": "x86_64",
    "owner": "123456789012",
    "root_device": "/dev/xvda",
    "volume_gib": 24,
    "imdsv2_only": True,
    "now": datetime(2026, 11, 30, tzinfo=UTC),
}


@pytest.mark.parametrize(
    ("planted", "name", "said"),
    [
        ({"architecture": "arm64"}, "ami-architecture", "is arm64, x86_64 is needed"),
        ({"owner_id": "999999999999"}, "ami-foreign-owner", "belongs to 999999999999, not to 123456789012"),
        ({"deprecation_time": "2026-11-29T00:00:00.000Z"}, "ami-deprecated", "since 2026-11-29"),
        ({"boot_mode": "legacy-bios", "architecture": "arm64"}, "ami-boot-mode", "no arm64 instance"),
        ({"ena_support": None}, "ami-no-ena", "has no ENA support"),
        ({"root_device_type": "instance-store"}, "ami-kind", "is instance-store, hvm"),
        ({"virtualization_type": "paravirtual"}, "ami-kind", "is ebs, paravirtual"),
        ({"root_device_name": "/dev/sda1"}, "ami-root-device", "has its root on /dev/sda1"),
        (
            {"block_device_mappings": [{"device_name": "/dev/xvda", "ebs": {"volume_size": 30}}]},
            "ami-root-too-large",
            "of 30 GiB, 24 GiB are asked for",
        ),
        ({"imds_support": None}, "ami-imdsv1", "version 1"),
        ({"state": "failed"}, "ami-not-available", "is failed"),
    ],
)
def test_each_defect_of_an_ami_is_refused_by_name(planted: dict[str, Any], name: str, said: str) -> None:
    assert ami.check_ami(IMAGE, **WANTED) == []
    wanted = WANTED | ({"architecture": "arm64"} if name == "ami-boot-mode" else {})
    (refusal,) = ami.check_ami(IMAGE | planted, **wanted)
    assert refusal.name == name
    assert refusal.why.startswith("ami-1 (ingot-x86-1) ")
    assert said in refusal.why


def test_what_is_no_defect_of_an_ami() -> None:
    """Debian's x86 images boot either way, an arm64 one may say nothing, and a volume may be larger."""
    for fine in (
        {"boot_mode": "legacy-bios"},
        {"boot_mode": None},
        {"deprecation_time": "2028-01-01T00:00:00.000Z"},
        {
            "block_device_mappings": [
                {"device_name": "/dev/xvda", "ebs": {"volume_size": 8}},
                {"no_device": ""},
            ]
        },
    ):
        assert ami.check_ami(IMAGE | fine, **WANTED) == []
    amazon = IMAGE | {"owner_id": "137112412989", "image_owner_alias": "amazon"}
    assert ami.check_ami(amazon, **WANTED | {"owner": "amazon"}) == []
