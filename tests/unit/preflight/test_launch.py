"""What speaks against a launch, each defect planted in one that is let through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from refusals import CATALOG, IMAGE, MODEL, entry, names

from ingot import images, models, sizing
from ingot.preflight import fit
from ingot.preflight import launch as launch_checks
from ingot.preflight.variables import playbook_options

SUBNET = {"subnet_id": "subnet-1", "vpc_id": "vpc-1", "availability_zone": "us-east-1a"}


REQUEST: dict[str, Any] = {
    **dict.fromkeys(playbook_options(), ""),
    "cluster_name": "ingot",
    "serving_mode": "ray_serve",
    "serving_model_id": MODEL,
    "model_store_catalog": CATALOG,
    "launch_image": "x86",
    "launch_instance_type": "m7i.large",
    "launch_volume_gib": 24,
    "launch_workers": 2,
    "launch_workers_most": 4,
    "launch_idle_minutes": 10,
    "launch_tags": {},
    "gateway_port": 8080,
    "ingot_connect": "private",
    "launch_ssh_cidr": "203.0.113.7/32",
    "launch_client_cidr": "10.0.0.0/8",
}


def launch(image: dict[str, Any] | None = None, /, **variables: Any) -> list[str]:
    images = [IMAGE | (image or {})] if image != {"none": True} else []
    return names(launch_checks.refusals(REQUEST | variables, images, [SUBNET]))


def test_a_good_launch_is_let_through() -> None:
    assert launch() == []


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({"launch_instance_type": "m7i.larg"}, "unknown-instance-type"),
        ({"launch_instance_type": "trn1.32xlarge"}, "unsupported-accelerator"),
        ({"launch_instance_type": "trn2.48xlarge"}, "unsupported-accelerator"),
        ({"launch_instance_type": "g7e.2xlarge"}, "unsupported-accelerator"),
        ({"serving_engine_flags": {"quantization": "gguf"}}, "format-unsupported"),
        ({"serving_engine": "tensorrt_llm"}, "engine-needs-gpu"),
        ({"serving_engine": "tensorrt"}, "unknown-serving-engine"),
        ({"launch_instance_type": "m7g.large"}, "architecture-differs"),
        ({"launch_instance_type": "g5.xlarge"}, "accelerator-unused"),
        ({"launch_instance_type": "inf2.xlarge"}, "accelerator-unused"),
        ({"launch_instance_type": "c7i.large"}, "model-does-not-fit"),
        ({"serving_model_id": "big/model", "launch_volume_gib": 300}, "model-does-not-fit"),
        ({"launch_volume_gib": 20}, "disk-too-small"),
        ({"serving_model_id": "../x"}, "model-id-escapes"),
        ({"launch_ssh_cidr": ""}, "no-cidr"),
        ({"launch_client_cidr": "0.0.0.0/0"}, "open-to-the-world"),
        ({"launch_instance_typ": "m7i.large"}, "unknown-variable"),
    ],
)
def test_a_bad_launch_is_refused(variables: dict[str, Any], name: str) -> None:
    assert launch(**variables) == [name]


def test_a_launch_without_an_image_or_with_a_foreign_one_is_refused() -> None:
    assert launch({"none": True}) == ["no-image"]
    assert launch({"tags": {}}) == ["not-an-ingot-image"]


def test_a_table_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are a person's to edit."""
    broken = tmp_path / "broken.yml"
    broken.write_text("images: [\n")
    assert launch(model_store_catalog={"a/b": {}}) == ["bad-model-catalogue"]
    monkeypatch.setattr(fit, "CATALOG", broken)
    assert launch(model_store_catalog=None) == ["bad-model-catalogue"]
    monkeypatch.setattr(images, "TABLE", broken)
    assert launch() == ["bad-image-table"]


@pytest.mark.parametrize(("image", "said"), [("graviton3", "packer/graviton3.pkr.hcl"), ("x", "<image>")])
def test_an_image_that_is_not_there_is_named_with_how_to_bake_it(image: str, said: str) -> None:
    (refusal,) = launch_checks.refusals(REQUEST | {"launch_image": image}, [], [SUBNET])
    assert refusal.name == "no-image"
    assert f"ingot:image={image}" in refusal.why and said in refusal.do


GRAVITON4 = {"architecture": "arm64", "tags": {"ingot:image": "graviton4", "ingot:core": "neoverse-v2"}}


@pytest.mark.parametrize(
    "tags",
    [GRAVITON4["tags"], {"ingot:image": "graviton4"}],
    ids=["tagged", "baked before there was the tag"],
)
def test_an_image_for_another_core_is_refused_before_anything_is_launched(tags: dict[str, str]) -> None:
    image = GRAVITON4 | {"tags": tags}
    assert launch(image, launch_instance_type="m7g.large") == ["wrong-core"]
    assert launch(image, launch_instance_type="m8g.large") == []
    assert launch(image, launch_instance_type="m7i.large") == ["architecture-differs"]
    assert launch(image, launch_instance_type="g5.xlarge") == ["architecture-differs", "accelerator-unused"]


def test_the_tag_counts_and_not_what_the_table_says_now() -> None:
    tags = {"ingot:image": "graviton4", "ingot:core": "neoverse-v1"}
    assert launch(GRAVITON4 | {"tags": tags}, launch_instance_type="m7g.large") == []


def test_of_an_image_that_the_table_has_no_more_its_accelerator_is_not_judged() -> None:
    assert launch({"tags": {"ingot:image": "older"}}, launch_instance_type="g5.xlarge") == []


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """An image for GPUs, and the table that has it."""
    table = yaml.safe_load(images.TABLE.read_text(encoding="utf-8"))
    table["images"]["gpu"] = {
        **table["images"]["x86"],
        "groups": ["gpu"],
        "accelerator": "nvidia",
        "roles": ["base", "nvidia", "image_hygiene"],
    }
    path = tmp_path / "images.yml"
    path.write_text(yaml.safe_dump(table))
    monkeypatch.setattr(images, "TABLE", path)
    return {"tags": {"ingot:image": "gpu"}}


@pytest.mark.parametrize(
    ("variables", "refused"),
    [
        ({"launch_instance_type": "g5.xlarge"}, []),
        ({"launch_instance_type": "m7i.large"}, ["no-accelerator"]),
        ({"launch_instance_type": "inf2.xlarge"}, ["no-accelerator"]),
        ({"launch_instance_type": "g4dn.xlarge"}, ["format-unsupported"]),
        ({"launch_instance_type": "g4dn.xlarge", "serving_engine_flags": {"dtype": "half"}}, []),
        (
            {
                "launch_instance_type": "g5.xlarge",
                "serving_model_id": "big/model",
                "launch_volume_gib": 300,
            },
            ["model-does-not-fit"],
        ),
        (
            {
                "launch_instance_type": "p6-b200.48xlarge",
                "model_store_catalog": {MODEL: entry(quantization=["int8-w8a8"])},
            },
            ["format-unsupported"],
        ),
    ],
)
def test_an_image_for_gpus_is_held_against_the_gpus(
    gpu: dict[str, Any], variables: dict[str, Any], refused: list[str]
) -> None:
    assert launch(gpu, **variables) == refused


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ({"imds_support": None}, "ami-imdsv1"),
        ({"ena_support": False}, "ami-no-ena"),
        ({"state": "pending"}, "ami-not-available"),
        ({"deprecation_time": "2026-01-01T00:00:00.000Z"}, "ami-deprecated"),
    ],
)
def test_a_launch_of_an_image_with_a_defect_is_refused(image: dict[str, Any], name: str) -> None:
    assert launch(image) == [name]


def test_the_volume_must_hold_the_model_too() -> None:
    # On a machine with enough memory for 140 GiB of weights the volume is the next thing to be short.
    variables = {"serving_model_id": "big/model", "launch_instance_type": "r7i.8xlarge"}
    assert launch(**variables, launch_volume_gib=100) == ["disk-too-small"]
    assert launch(**variables, launch_volume_gib=200) == []


def test_a_launch_needs_the_disk_that_a_bake_needs(catalog: models.Catalog) -> None:
    weights = catalog.models["big/model"].size
    least = -(-fit.disk_needed(weights) // sizing.GIB)
    variables = {"serving_model_id": "big/model", "launch_instance_type": "r7i.8xlarge"}
    for volume, refusals in ((least, []), (least - 1, ["disk-too-small"])):
        assert launch(**variables, launch_volume_gib=volume) == refusals
        assert bool(images.check_volume("builder", volume * sizing.GIB, weights)) == bool(refusals)


def test_an_unknown_instance_type_is_refused_with_the_nearest() -> None:
    assert launch_checks.check_instance_type("c7i.2xlarge") == []
    refusals = launch_checks.check_instance_type("c7i.2xlrge")
    assert names(refusals) == ["unknown-instance-type"]
    assert "c7i.2xlarge" in refusals[0].why


@pytest.mark.parametrize(
    ("cidr", "name"), [("", "no-cidr"), ("0.0.0.0/0", "open-to-the-world"), ("::/0", "open-to-the-world")]
)
def test_networks(cidr: str, name: str) -> None:
    assert names(launch_checks.check_cidr("launch_ssh_cidr", cidr)) == [name]
    assert launch_checks.check_cidr("launch_ssh_cidr", "203.0.113.7/32") == []
