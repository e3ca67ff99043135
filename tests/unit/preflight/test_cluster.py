"""What speaks against a cluster: its inventory, its mode, its API key; each defect planted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from refusals import CATALOG, MODEL, entry, names

from ingot import images
from ingot.preflight import cluster
from ingot.preflight.refusal import report
from ingot.preflight.variables import playbook_options

NODES = {"ray_head": ["a"], "ray_worker": ["b", "c"], "gateway": ["a"], "x86": ["a", "b", "c"]}


def test_a_cluster_of_three_is_let_through() -> None:
    assert cluster.check_topology(NODES, {"x86": ["x86"]}, "ingot") == []


def test_a_head_alone_is_let_through() -> None:
    assert (
        cluster.check_topology({"ray_head": ["a"], "gateway": ["a"], "x86": ["a"]}, {"x86": ["x86"]}, "ingot")
        == []
    )


def test_a_node_is_of_one_image_and_in_all_its_groups() -> None:
    images = {"x86": ["x86"], "graviton3": ["graviton", "graviton3"], "graviton4": ["graviton", "graviton4"]}
    node = {"ray_head": ["a"], "gateway": ["a"]}

    def refused(**groups: list[str]) -> list[str]:
        return names(cluster.check_topology({**node, **groups}, images, "ingot"))

    assert refused(graviton=["a"], graviton3=["a"]) == []
    assert refused(graviton=["a"]) == ["no-image-group"]
    assert refused(x86=["a"], graviton=["a"], graviton3=["a"]) == ["two-images"]


@pytest.mark.parametrize(
    ("change", "name", "said"),
    [
        ({"ray_head": [], "ray_worker": [], "gateway": []}, "no-nodes", "launch.yml"),
        ({"ray_head": [], "gateway": []}, "no-head", "ingot:role=head"),
        ({"ray_head": ["a", "b"], "ray_worker": ["c"], "gateway": ["a", "b"]}, "two-heads", "a, b"),
        ({"ray_worker": ["a", "b", "c"]}, "head-is-worker", "a is in ray_head and in ray_worker"),
        ({"gateway": ["b"]}, "gateway-not-head", "ray_head"),
        ({"x86": ["a", "b"]}, "no-image-group", "c is not in all groups of any image"),
    ],
)
def test_wrong_inventories_are_refused(change: dict[str, list[str]], name: str, said: str) -> None:
    refusals = cluster.check_topology({**NODES, **change}, {"x86": ["x86"]}, "ingot")
    assert names(refusals) == [name]
    assert said in str(refusals[0])


@pytest.mark.parametrize(
    ("method", "mode", "refused"),
    [
        ("container", "ray_serve", ["container-in-ray"]),
        ("container", "vllm", []),
        ("wheel", "ray_serve", []),
        ("", "ray_serve", []),
    ],
)
def test_a_container_is_no_replica_of_ray(method: str, mode: str, refused: list[str]) -> None:
    assert names(cluster.check_engine(method, mode)) == refused


@pytest.fixture
def three(tmp_path: Path) -> dict[str, dict[str, Any]]:
    """The variables of each node of a cluster that nothing speaks against."""
    shared = {
        **dict.fromkeys(playbook_options(), ""),
        "cluster_name": "ingot",
        "gateway_port": 8080,
        "ingot_connect": "private",
        "launch_workers": 2,
        "launch_workers_most": 4,
        "launch_idle_minutes": 10,
        "launch_tags": {},
        "launch_volume_gib": 32,
        "ingot_api_key_file": str(key_file(tmp_path, "9f86d081884c7d659a2feaa0c55ad015")),
        "serving_mode": "vllm",
        "serving_model_id": MODEL,
        "model_store_catalog": CATALOG,
    }
    return {node: dict(shared) for node in ("a", "b", "c")}


def test_a_cluster_is_let_through_or_refused_as_a_whole(
    three: dict[str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cluster.refusals(three, NODES) == []
    for node in three.values():
        node["model_store_catalog"] = {"a/b": {}}
    assert names(cluster.refusals(three, NODES)) == ["bad-model-catalogue"]
    monkeypatch.setattr(images, "TABLE", tmp_path / "none.yml")
    assert names(cluster.refusals(three, NODES)) == ["bad-image-table", "bad-model-catalogue"]
    del three["b"]["gateway_port"]
    assert names(cluster.refusals(three, NODES)) == ["missing-variable"]


def test_two_models_are_two_pools_if_one_of_them_is_served_by_plain_units(
    three: dict[str, dict[str, Any]],
) -> None:
    for node in three.values():
        node["model_store_catalog"] = CATALOG
    three["c"]["serving_model_id"] = "big/model"
    assert cluster.refusals(three, NODES) == []
    for host in ("a", "b"):
        three[host]["serving_mode"] = "ray_serve"
    assert cluster.refusals(three, NODES) == []
    three["c"]["serving_mode"] = "ray_serve"
    (refusal,) = cluster.refusals(three, NODES)
    assert refusal.name == "pool-in-ray"
    assert f"c serves big/model by Ray Serve, and the head a {MODEL}" in refusal.why
    three["c"] |= {"serving_model_id": MODEL, "serving_mode": "vllm"}
    (refusal,) = cluster.refusals(three, NODES)
    assert refusal.name == "model-in-two-modes"
    assert "is served with serving_mode ray_serve and vllm" in refusal.why
    three["c"] |= {"serving_model_id": "no/such", "serving_mode": "vllm"}
    assert names(cluster.refusals(three, NODES)) == ["unknown-model"]


def test_a_format_that_one_of_the_nodes_lacks_is_refused_with_the_node(
    three: dict[str, dict[str, Any]],
) -> None:
    for node in three.values():
        node["model_store_catalog"] = {MODEL: entry(quantization=["int4-awq"])}
        node["ec2_instance_type"] = "c7i.2xlarge"
    assert cluster.refusals(three, NODES) == []
    three["c"]["ec2_instance_type"] = "c6a.2xlarge"
    (refusal,) = cluster.refusals(three, NODES)
    assert refusal.name == "format-unsupported"
    assert "c6a.2xlarge (c)" in refusal.why


def test_an_engine_that_no_image_of_the_nodes_has_is_refused_once_and_alone(
    three: dict[str, dict[str, Any]],
) -> None:
    for node in three.values():
        node |= {"serving_engine": "tensorrt_llm", "group_names": ["x86"], "ec2_instance_type": "m7i.large"}
    assert names(cluster.refusals(three, NODES)) == ["engine-needs-gpu"]


def test_a_variable_that_would_cut_the_gpus_apart_is_refused(three: dict[str, dict[str, Any]]) -> None:
    for node in three.values():
        node["serving_environment"] = {"NCCL_P2P_DISABLE": "1"}
        node["ec2_instance_type"] = "p5.48xlarge"
    assert names(cluster.refusals(three, NODES)) == ["nccl-variable-harms"]


def test_serving_modes() -> None:
    assert cluster.check_serving_mode("vllm") == []
    assert names(cluster.check_serving_mode("ray")) == ["unknown-serving-mode"]


def key_file(directory: Path, text: str, mode: int = 0o600) -> Path:
    path = directory / "api-key"
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("key", ["9f86d081884c7d659a2feaa0c55ad015", "Zx81-Qm7v_Kp2.Lr9~Tt4/Bb+w="])
def test_a_good_key_is_let_through(tmp_path: Path, key: str) -> None:
    assert cluster.check_api_key(key_file(tmp_path, key + "\n")) == []


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("", "empty-api-key"),
        (" \n", "empty-api-key"),
        ("changeme", "placeholder-api-key"),
        ("CHANGE-ME-please-1234567", "placeholder-api-key"),
        ("sk-xxxxxxxxxxxxxxxxxxxxxxxx", "placeholder-api-key"),
        ("sk-xxx", "placeholder-api-key"),
        ("your-api-key-goes-here-1", "placeholder-api-key"),
        ("<paste the key here: 32 chars>", "placeholder-api-key"),
        ("0000000000000000000000000", "placeholder-api-key"),
        ("sk-test-0123456789abcdef", "placeholder-api-key"),
        ("q7Zr", "short-api-key"),
        ("q7Zr81Lm 90QpTtVvWw12", "unusable-api-key"),
        ("q7Zr81Lm90QpTtVvWw12\nq7Zr81Lm90QpTtVvWw13", "unusable-api-key"),
    ],
)
def test_a_bad_key_is_refused_and_not_shown(tmp_path: Path, key: str, name: str) -> None:
    refusals = cluster.check_api_key(key_file(tmp_path, key))
    assert names(refusals) == [name]
    assert len(key.strip()) < 5 or key not in report(refusals)


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = key_file(tmp_path, "9f86d081884c7d659a2feaa0c55ad015", 0o644)
    assert names(cluster.check_api_key(path)) == ["readable-api-key"]


def test_no_key_file_is_refused_with_the_command_that_makes_it(tmp_path: Path) -> None:
    refusals = cluster.check_api_key(tmp_path / "none")
    assert names(refusals) == ["no-api-key"]
    assert "openssl rand" in refusals[0].do
