"""The table of images: every wrong entry is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ingot_vllm import cores
from typer.testing import CliRunner

from ingot import images, instance_types
from ingot.cli import app
from ingot.filters import FILTERS
from ingot.preflight.fit import GIB
from ingot.table import TableError

ROOT = Path(__file__).resolve().parents[2]
COMPILED = {
    "x86": {"vllm_method": "wheel"},
    "graviton3": {"vllm_method": "source", "vllm_mcpu": "neoverse-v1"},
    "graviton4": {"vllm_method": "source", "vllm_mcpu": "neoverse-v2"},
}
TABLE: dict[str, Any] = yaml.safe_load((ROOT / "packer/images.yml").read_text())


def _table(path: Path, **change: Any) -> Path:
    image = TABLE["images"]["x86"] | change
    images_of_it = {"x86": {k: v for k, v in image.items() if v is not None}}
    path.write_text(yaml.safe_dump({"bases": TABLE["bases"], "images": images_of_it}))
    return path


def test_the_table_is_right() -> None:
    for name, image in images.load(ROOT / "packer/images.yml").images.items():
        assert images.refusals(name, COMPILED[name]) == []
        assert image.roles[-1] == "image_hygiene"
        assert instance_types.get(image.instance_type).arch == image.architecture


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"arch": "x86_64"}, "images.x86.arch: unknown field"),
        ({"architecture": "amd64"}, "images.x86.architecture"),
        ({"instance_type": "xlarge"}, "images.x86.instance_type"),
        ({"roles": ["base"]}, "the last role must be image_hygiene, not base"),
        ({"roles": ["base", "base", "image_hygiene"]}, "roles listed twice: base"),
        ({"groups": []}, "images.x86.groups"),
        ({"accelerator": "tpu"}, "images.x86.accelerator: Input should be"),
        (
            {"accelerator": "nvidia"},
            "accelerator is nvidia, and of the roles that bring a driver there is none",
        ),
        (
            {"roles": ["nvidia", "image_hygiene"]},
            "accelerator is not set, and of the roles that bring a driver",
        ),
        (
            {"accelerator": "neuron", "roles": ["nvidia", "neuron", "image_hygiene"]},
            "there is nvidia and neuron: name in accelerator the one that there is",
        ),
        ({"description": None}, "images.x86.description"),
        ({"bases": ["debian12"]}, "image x86 starts from debian12, which bases has not for x86_64"),
        ({"bases": []}, "images.x86.bases"),
        (
            {"volume": {"size": 8, "minimum": 9, "throughput": 125, "iops": 3000}},
            "size 8 is less than minimum 9",
        ),
        ({"volume": {"size": 8, "minimum": 8, "throughput": 1000, "iops": 3000}}, "iops of at least 4000"),
    ],
)
def test_a_wrong_entry_is_refused_by_name(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(TableError) as refused:
        images.load(_table(tmp_path / "images.yml", **change))
    assert said in str(refused.value)


def test_a_table_that_is_no_yaml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "images.yml"
    path.write_text("images: [")
    assert [refusal.name for refusal in images.check_catalog(path)] == ["bad-image-table"]
    assert [refusal.name for refusal in images.check_catalog(tmp_path / "none")] == ["bad-image-table"]


def test_an_unknown_image_names_those_there_are() -> None:
    (refusal,) = images.refusals("x68", {})
    assert refusal.name == "unknown-image"
    assert "'x68'" in refusal.why and "x86" in refusal.do


def test_an_unknown_role_names_the_one_that_is_meant(tmp_path: Path) -> None:
    catalog = images.load(_table(tmp_path / "images.yml", roles=["bases", "image_hygiene"]))
    (refusal,) = images.check_image("x86", catalog, ROOT / "roles")
    assert refusal.name == "unknown-role"
    assert "'bases'" in refusal.why and "'base'" in refusal.do


def test_a_builder_that_lacks_the_core_is_refused(tmp_path: Path) -> None:
    table = _table(
        tmp_path / "images.yml", architecture="arm64", core="neoverse-v2", instance_type="c7g.xlarge"
    )
    (refusal,) = images.check_image("x86", images.load(table), ROOT / "roles")
    assert refusal.name == "wrong-core"
    assert "its builder c7g.xlarge has neoverse-v1 cores" in refusal.why


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        (
            "graviton4",
            COMPILED["graviton3"],
            "neoverse-v2 for the image graviton4, and vLLM would be compiled for",
        ),
        ("graviton4", {}, "vLLM would be its own wheel"),
        ("x86", {"vllm_method": "source", "vllm_mcpu": "x86-64-v4"}, "no core for the image x86"),
    ],
)
def test_a_bake_for_another_core_than_the_tables_is_refused(
    name: str, given: dict[str, str], said: str
) -> None:
    """Its tag would be wrong, and a launch goes by that."""
    (refusal,) = images.refusals(name, given)
    assert refusal.name == "image-core-differs"
    assert said in refusal.why


def test_the_cores_of_the_table_are_those_that_the_role_compiles_for() -> None:
    schema = images.Image.model_json_schema()["properties"]["core"]["enum"]
    assert sorted(schema) == sorted(["", *cores.CORES])
    for name, core in cores.CORES.items():
        arm = core.machine == "aarch64"
        assert any(family.endswith("g") == arm for family in instance_types.families_for(name)), name


def test_an_unknown_variable_names_the_one_that_is_meant() -> None:
    names = ["image_hygiene_imge", "image_hygiene_free_mib", "image_build", "ansible_user", "my_own"]
    (refusal,) = images.refusals("x86", dict.fromkeys(names))
    assert refusal.name == "unknown-variable"
    assert "'image_hygiene_imge'" in refusal.why and "'image_hygiene_image'" in refusal.do


def test_a_volume_that_cannot_hold_the_weights_is_refused() -> None:
    assert images.check_volume("builder", 24 * GIB, GIB) == []
    (refusal,) = images.check_volume("builder", 16 * GIB, 40 * GIB)
    assert refusal.name == "volume-too-small"
    assert "40.0 GiB of weights" in refusal.why
    assert "volume_size=56" in refusal.do


# --- the AMI that a bake starts from ------------------------------------------------------------------------

AMI = {
    "ImageId": "ami-1",
    "Name": "debian-13-amd64-20261101-2300",
    "Architecture": "x86_64",
    "State": "available",
    "OwnerId": "136693071363",
    "CreationDate": "2026-11-01T00:00:00.000Z",
    "DeprecationTime": "2028-11-01T00:00:00.000Z",
    "RootDeviceName": "/dev/xvda",
    "RootDeviceType": "ebs",
    "VirtualizationType": "hvm",
    "BootMode": "uefi-preferred",
    "EnaSupport": True,
    "BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 8}}],
}


def base(*found: dict[str, Any], image_id: str = "", base: str = "") -> tuple[str, list[str]]:
    """The AMI that is taken from what EC2 has, and the names of the refusals."""
    fields = {
        "architecture": "Architecture",
        "root-device-name": "RootDeviceName",
        "root-device-type": "RootDeviceType",
        "virtualization-type": "VirtualizationType",
    }

    def ask(**query: Any) -> dict[str, Any]:
        kept = list(found)
        for one in query["Filters"]:
            if one["Name"] in fields:
                kept = [ami for ami in kept if ami[fields[one["Name"]]] in one["Values"]]
        return {"Images": kept}

    chosen, refusals = images.base_refusals("x86", images.load(), ask, image_id, base)
    return (chosen or {}).get("image_id", ""), [refusal.name for refusal in refusals]


def test_the_newest_base_is_taken() -> None:
    newer = AMI | {"ImageId": "ami-2", "CreationDate": "2026-11-20T00:00:00.000Z"}
    assert base(newer, AMI) == ("ami-2", [])


def test_one_that_packer_would_not_see_is_passed_over() -> None:
    newer = AMI | {"ImageId": "ami-2", "CreationDate": "2026-11-20T00:00:00.000Z", "Architecture": "arm64"}
    assert base(newer, AMI) == ("ami-1", [])


@pytest.mark.parametrize(
    ("planted", "name"),
    [
        ({"Architecture": "arm64"}, "ami-architecture"),
        ({"OwnerId": "999999999999"}, "ami-foreign-owner"),
        ({"DeprecationTime": "2020-01-01T00:00:00.000Z"}, "ami-deprecated"),
        ({"EnaSupport": False}, "ami-no-ena"),
        ({"RootDeviceName": "/dev/sda1"}, "ami-root-device"),
        ({"RootDeviceType": "instance-store"}, "ami-kind"),
        (
            {"BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 500}}]},
            "ami-root-too-large",
        ),
    ],
)
def test_a_base_with_a_defect_is_refused_by_name(planted: dict[str, Any], name: str) -> None:
    """Where Packer would only say that it found none, this says what is wrong with the one there is."""
    chosen, names = base(AMI | planted)
    assert (chosen, name in names) == ("ami-1", True)


def test_no_base_at_all_is_refused() -> None:
    assert base() == ("", ["no-base-image"])


def test_a_base_that_is_not_the_images_is_refused() -> None:
    assert base(AMI, base="debian13") == ("ami-1", [])
    assert base(AMI, base="debian12") == ("", ["unknown-base"])


def test_ones_last_image_may_be_the_base() -> None:
    assert base(AMI | {"OwnerId": "123456789012"}, image_id="ami-1") == ("ami-1", [])


def test_aws_that_cannot_be_asked_is_said_in_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    result = CliRunner().invoke(app, ["images", "base", "x86"])
    assert result.exit_code == 1
    assert "You must specify a region" in result.output
    assert isinstance(result.exception, SystemExit)


@pytest.mark.parametrize(
    ("found", "refused"),
    [
        ("Packer v1.15.0", False),
        ("Packer v1.11.0", False),
        ("Packer v1.6.6", True),
        ("Packer v1.10.9", True),
        ("command not found", True),
    ],
)
def test_packer(found: str, refused: bool) -> None:
    assert [refusal.name for refusal in images.check_packer(found, "1.11.0")] == (
        ["packer-too-old"] if refused else []
    )


def test_a_node_is_known_by_what_its_image_computes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator = FILTERS["ingot_accelerator"]
    assert accelerator(["x86", "ray_head"]) == accelerator(["ray_head"]) == ""
    catalog = images.load()
    gpu = catalog.images["x86"].model_copy(update={"groups": ["gpu"], "accelerator": "nvidia"})
    made = catalog.model_copy(update={"images": {**catalog.images, "gpu": gpu}})
    monkeypatch.setattr(images, "load", lambda: made)
    assert accelerator(["gpu", "ray_head"]) == "nvidia"
