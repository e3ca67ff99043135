"""Every refusal by name, each with the defect it is for planted."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ingot import images, models, preflight, sizing

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
NODES = {"ray_head": ["a"], "ray_worker": ["b", "c"], "gateway": ["a"], "x86": ["a", "b", "c"]}


def names(refusals: list[preflight.Refusal]) -> list[str]:
    return [refusal.name for refusal in refusals]


def entry(weight_bytes: int = 269_000_000) -> dict[str, Any]:
    sha = "0" * 64
    return {
        "revision": "r1",
        "licence": "apache-2.0",
        "dtype": "bfloat16",
        "shape": {
            "layers": 30,
            "attention_heads": 9,
            "kv_heads": 3,
            "head_dim": 64,
            "max_model_len": 8192,
            "weight_bytes": weight_bytes,
        },
        "files": [
            {"path": "config.json", "size": 800, "sha256": sha},
            {"path": "tokenizer_config.json", "size": 800, "sha256": sha},
            {"path": "model.safetensors", "size": weight_bytes, "sha256": sha},
        ],
    }


CATALOG = {MODEL: entry(), "big/model": entry(140 * sizing.GIB)}


@pytest.fixture
def catalog() -> models.Catalog:
    return models.parse_catalog(CATALOG)


# --- the inventory ------------------------------------------------------------------------------------------


def test_a_cluster_of_three_is_let_through() -> None:
    assert preflight.check_topology(NODES, {"x86": ["x86"]}, "ingot") == []


def test_a_head_alone_is_let_through() -> None:
    assert (
        preflight.check_topology(
            {"ray_head": ["a"], "gateway": ["a"], "x86": ["a"]}, {"x86": ["x86"]}, "ingot"
        )
        == []
    )


def test_a_node_is_of_one_image_and_in_all_its_groups() -> None:
    images = {"x86": ["x86"], "graviton3": ["graviton", "graviton3"], "graviton4": ["graviton", "graviton4"]}
    node = {"ray_head": ["a"], "gateway": ["a"]}

    def refused(**groups: list[str]) -> list[str]:
        return names(preflight.check_topology({**node, **groups}, images, "ingot"))

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
    refusals = preflight.check_topology({**NODES, **change}, {"x86": ["x86"]}, "ingot")
    assert names(refusals) == [name]
    assert said in str(refusals[0])


# --- variables ----------------------------------------------------------------------------------------------

ROLES = {
    "serving": frozenset({"serving_mode", "serving_model_id", "serving_port"}),
    "ray": frozenset({"ray_num_cpus", "ray_token"}),
}
PLAYBOOKS = frozenset({"cluster_name", "launch_workers", "launch_instance_type"})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("serving_modle_id", "serving_model_id"),  # a role's prefix
        ("ray_numcpus", "ray_num_cpus"),
        ("launch_worker", "launch_workers"),  # a playbook's prefix
        ("clustername", "cluster_name"),  # none of our prefixes, but all but one of our names
        ("servingport", "serving_port"),
    ],
)
def test_a_mistyped_variable_is_refused_with_the_one_that_is_meant(name: str, meant: str) -> None:
    refusals = preflight.check_variables([name, "serving_port"], ROLES, PLAYBOOKS)
    assert names(refusals) == ["unknown-variable"]
    assert name in refusals[0].why
    assert meant in refusals[0].do


def test_a_variable_of_a_role_that_is_near_to_none_is_refused_too() -> None:
    assert names(preflight.check_variables(["ray_zzzzzzzzzzzzzzzzz"], ROLES, PLAYBOOKS)) == [
        "unknown-variable"
    ]


def test_a_persons_own_variables_and_ansibles_are_let_through() -> None:
    theirs = ["ansible_host", "ec2_tags", "team", "colour_of_the_shed", "inventory_hostname", "__private"]
    assert preflight.check_variables([*theirs, "serving_mode", "cluster_name"], ROLES, PLAYBOOKS) == []


def test_the_repositorys_own_roles_have_specifications() -> None:
    options = preflight.role_options()
    assert "base" in options
    assert all(options.values())


def test_a_variable_that_nobody_set_is_named() -> None:
    refusals = preflight.check_missing(["cluster_name"], ["cluster_name", "gateway_port"])
    assert names(refusals) == ["missing-variable"]
    assert "'gateway_port'" in refusals[0].why


def test_serving_modes() -> None:
    assert preflight.check_serving_mode("vllm") == []
    assert names(preflight.check_serving_mode("ray")) == ["unknown-serving-mode"]


# --- the API key --------------------------------------------------------------------------------------------


def key_file(directory: Path, text: str, mode: int = 0o600) -> Path:
    path = directory / "api-key"
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("key", ["9f86d081884c7d659a2feaa0c55ad015", "Zx81-Qm7v_Kp2.Lr9~Tt4/Bb+w="])
def test_a_good_key_is_let_through(tmp_path: Path, key: str) -> None:
    assert preflight.check_api_key(key_file(tmp_path, key + "\n")) == []


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
    refusals = preflight.check_api_key(key_file(tmp_path, key))
    assert names(refusals) == [name]
    assert len(key.strip()) < 5 or key not in preflight.report(refusals)


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = key_file(tmp_path, "9f86d081884c7d659a2feaa0c55ad015", 0o644)
    assert names(preflight.check_api_key(path)) == ["readable-api-key"]


def test_no_key_file_is_refused_with_the_command_that_makes_it(tmp_path: Path) -> None:
    refusals = preflight.check_api_key(tmp_path / "none")
    assert names(refusals) == ["no-api-key"]
    assert "openssl rand" in refusals[0].do


# --- the model ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model", ["../../etc/shadow", "/etc", "a/../../b", "a/b/c", "", "..", "a/ b", "a\nb"]
)
def test_a_model_id_that_escapes_the_store_is_refused(model: str, catalog: models.Catalog) -> None:
    assert names(preflight.check_model_id(model, catalog)) == ["model-id-escapes"]


def test_a_model_that_the_catalogue_lacks_is_refused_with_the_nearest(catalog: models.Catalog) -> None:
    refusals = preflight.check_model_id("HuggingFaceTB/SmolLM-135M-Instruct", catalog)
    assert names(refusals) == ["unknown-model"]
    assert MODEL in refusals[0].do


def test_a_model_that_fits_and_one_that_does_not(catalog: models.Catalog) -> None:
    host = sizing.Host(cores=4, memory_bytes=16 * sizing.GIB)
    serving = {"serving_mode": "ray_serve"}
    assert preflight.check_memory("m", host, MODEL, catalog.models[MODEL], serving) == []
    refusals = preflight.check_memory("m7i.xlarge", host, "big/model", catalog.models["big/model"], serving)
    assert names(refusals) == ["model-does-not-fit"]
    assert "140.00 GiB weights" in refusals[0].why
    assert "nstance type with at least" in refusals[0].do


def test_figures_that_contradict_the_model_are_refused(catalog: models.Catalog) -> None:
    host = sizing.Host(cores=4, memory_bytes=16 * sizing.GIB)
    serving = {"serving_mode": "vllm", "serving_max_model_len": 10**6}
    refusals = preflight.check_memory("m", host, MODEL, catalog.models[MODEL], serving)
    assert names(refusals) == ["sizing-contradicts"]


# --- types, nodes, tools ------------------------------------------------------------------------------------


def test_an_unknown_instance_type_is_refused_with_the_nearest() -> None:
    assert preflight.check_instance_type("c7i.2xlarge") == []
    refusals = preflight.check_instance_type("c7i.2xlrge")
    assert names(refusals) == ["unknown-instance-type"]
    assert "c7i.2xlarge" in refusals[0].why


def test_architectures() -> None:
    assert preflight.check_architecture("a", "aarch64", "graviton3", "arm64") == []
    assert names(preflight.check_architecture("c7g.large", "arm64", "x86", "x86_64")) == [
        "architecture-differs"
    ]


@pytest.mark.parametrize(
    ("found", "name"), [("", "no-python"), ("3.6.8", "python-too-old"), ("2.7.18", "python-too-old")]
)
def test_a_python_that_ansible_cannot_use_is_refused(found: str, name: str) -> None:
    assert names(preflight.check_python("a", found, (3, 8), "2.19.14")) == [name]


def test_a_newer_python_is_let_through() -> None:
    assert preflight.check_python("a", "3.13.5", (3, 8), "2.19.14") == []


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
    assert names(preflight.check_packer(found, "1.11.0")) == (["packer-too-old"] if refused else [])


@pytest.mark.parametrize(
    ("cidr", "name"), [("", "no-cidr"), ("0.0.0.0/0", "open-to-the-world"), ("::/0", "open-to-the-world")]
)
def test_networks(cidr: str, name: str) -> None:
    assert names(preflight.check_cidr("launch_ssh_cidr", cidr)) == [name]
    assert preflight.check_cidr("launch_ssh_cidr", "203.0.113.7/32") == []


# --- a node's own answer ------------------------------------------------------------------------------------

PROBE = f"""machine x86_64
cores 4
python 3.13.5
memory {8 * sizing.GIB}
disk {20 * sizing.GIB}
path /opt/ingot/models/{MODEL}
path /opt/ingot/venvs/vllm
port 8000 python3 vllm.service
port 6379 gcs_server ray-head.service
"""
PORTS = {"8000": "serving", "8080": "gateway", "6379": "ray"}
VARIABLES = {
    "serving_mode": "ray_serve",
    "serving_model_id": MODEL,
    "group_names": ["ray_head", "x86"],
    "model_store_catalog": CATALOG,
}


def node(probe: str, **variables: str) -> list[str]:
    return names(preflight.node_refusals(probe, "a", {**VARIABLES, **variables}, PORTS, (3, 8), "2.19.14"))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("cluster_name", "bad name!", "match pattern"),
        ("gateway_port", "abc", "valid integer"),
        ("gateway_port", 99999, "less than or equal to 65535"),
        ("gateway_port", 22, "greater than or equal to 1024"),
        ("ingot_connect", "pubic", "'private' or 'public'"),
        ("launch_workers", -1, "greater than or equal to 0"),
        ("launch_volume_gib", "abc", "valid integer"),
        ("launch_ssh_cidr", "garbage/x", "appear to be an IPv4 or IPv6 network"),
        ("launch_client_cidr", "1.2.3.4", "1.2.3.4/32"),
        ("launch_client_cidr", "0.0.0.0/1", "most of the world"),
    ],
)
def test_a_value_of_another_kind_is_refused_by_its_name(name: str, value: object, said: str) -> None:
    (refusal,) = preflight.check_values({name: value})
    assert refusal.name == "bad-value"
    assert f"{name} is {value!r}" in str(refusal)
    assert said in str(refusal)


def test_values_are_taken_as_the_command_line_gives_them() -> None:
    assert (
        preflight.check_values({"gateway_port": "8080", "launch_workers": "2", "launch_ssh_cidr": ""}) == []
    )


def test_a_good_node_is_let_through_also_when_its_own_units_hold_the_ports() -> None:
    assert node(PROBE) == []


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda text: text.replace("machine x86_64", "machine aarch64"), "architecture-differs"),
        (lambda text: text.replace("python 3.13.5", "python "), "no-python"),
        (lambda text: text.replace("python 3.13.5", "python 3.7.3"), "python-too-old"),
        (
            lambda text: text.replace(f"memory {8 * sizing.GIB}", f"memory {2 * sizing.GIB}"),
            "model-does-not-fit",
        ),
        (lambda text: text.replace(f"disk {20 * sizing.GIB}", f"disk {sizing.GIB // 2}"), "disk-too-small"),
        (lambda text: text + "port 8080 nginx nginx.service\n", "port-taken"),
        (lambda text: text + "port 8080 python3 session-1.scope\nport 22 sshd ssh.service\n", "port-taken"),
    ],
)
def test_a_bad_node_is_refused(change: Callable[[str], str], name: str) -> None:
    assert node(change(PROBE)) == [name]


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        ("0::/system.slice/haproxy.service\n", "haproxy.service"),
        (
            "9:name=systemd:/\n4:memory:/\n0::/system.slice/system-x.slice/haproxy.service\n",
            "haproxy.service",
        ),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", "session-3.scope"),
        ("0::/\n", ""),
    ],
)
def test_the_probe_names_who_listens(tmp_path: Path, cgroup: str, unit: str) -> None:
    stub = tmp_path / "bin/ss"
    stub.parent.mkdir()
    listener = 'LISTEN 0 128 0.0.0.0:8080 0.0.0.0:* users:(("haproxy",pid=812,fd=7),("haproxy",pid=812,fd=8))'
    stub.write_text(
        f"#!/bin/sh\n[ \"$3\" = 'sport = :8080' ] || [ \"$2\" = 'sport = :8080' ] && echo '{listener}'\n"
    )
    stub.chmod(0o755)
    (tmp_path / "proc/812").mkdir(parents=True)
    (tmp_path / "proc/812/cgroup").write_text(cgroup)
    script = (preflight.REPOSITORY / "playbooks/files/probe.sh").read_text()
    said = subprocess.run(
        ["sh", "-c", f"PORTS='8000 8080'\nPATHS='/etc /none'\n{script}"],
        env={**os.environ, "PATH": f"{stub.parent}:{os.environ['PATH']}", "PROC": str(tmp_path / "proc")},
        capture_output=True,
        text=True,
        check=True,
    )
    answer = preflight.parse_probe(said.stdout)
    assert answer["ports"] == [{"port": "8080", "process": "haproxy", "unit": unit}]
    assert answer["paths"] == ["/etc"]
    assert answer["machine"] in ("x86_64", "aarch64")
    assert int(answer["memory"]) > 1 << 20
    assert int(answer["disk"]) > 1 << 20
    assert answer["python"]


def test_weights_and_venv_that_are_not_there_yet_need_room() -> None:
    bare = PROBE.replace(f"path /opt/ingot/models/{MODEL}\n", "").replace("path /opt/ingot/venvs/vllm\n", "")
    assert node(bare) == []
    assert node(bare.replace(f"disk {20 * sizing.GIB}", f"disk {4 * sizing.GIB}")) == ["disk-too-small"]


# --- a launch -----------------------------------------------------------------------------------------------

IMAGE = {
    "image_id": "ami-1",
    "name": "ingot-x86-1",
    "architecture": "x86_64",
    "state": "available",
    "owner_id": "123456789012",
    "creation_date": "2026-11-30T14:00:00.000Z",
    "root_device_name": "/dev/xvda",
    "root_device_type": "ebs",
    "virtualization_type": "hvm",
    "boot_mode": "uefi-preferred",
    "ena_support": True,
    "imds_support": "v2.0",
    "block_device_mappings": [{"device_name": "/dev/xvda", "ebs": {"volume_size": 24}}],
    "tags": {"ingot:image": "x86"},
}
SUBNET = {"subnet_id": "subnet-1", "vpc_id": "vpc-1", "availability_zone": "us-east-1a"}


def launch(image: dict[str, Any] | None = None, /, **variables: Any) -> list[str]:
    request = {
        **dict.fromkeys(preflight.playbook_options(), ""),
        "cluster_name": "ingot",
        "serving_mode": "ray_serve",
        "serving_model_id": MODEL,
        "model_store_catalog": CATALOG,
        "launch_image": "x86",
        "launch_instance_type": "m7i.large",
        "launch_volume_gib": 24,
        "launch_workers": 2,
        "gateway_port": 8080,
        "ingot_connect": "private",
        "launch_ssh_cidr": "203.0.113.7/32",
        "launch_client_cidr": "10.0.0.0/8",
        **variables,
    }
    images = [IMAGE | (image or {})] if image != {"none": True} else []
    return names(preflight.launch_refusals(request, images, [SUBNET]))


def test_a_good_launch_is_let_through() -> None:
    assert launch() == []


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({"launch_instance_type": "m7i.larg"}, "unknown-instance-type"),
        ({"launch_instance_type": "m7g.large"}, "architecture-differs"),
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


# --- an AMI, as DescribeImages describes it -----------------------------------------------------------------

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
    assert preflight.check_ami(IMAGE, **WANTED) == []
    wanted = WANTED | ({"architecture": "arm64"} if name == "ami-boot-mode" else {})
    (refusal,) = preflight.check_ami(IMAGE | planted, **wanted)
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
        assert preflight.check_ami(IMAGE | fine, **WANTED) == []
    amazon = IMAGE | {"owner_id": "137112412989", "image_owner_alias": "amazon"}
    assert preflight.check_ami(amazon, **WANTED | {"owner": "amazon"}) == []


def test_the_volume_must_hold_the_model_too() -> None:
    # On a machine with enough memory for 140 GiB of weights the volume is the next thing to be short.
    variables = {"serving_model_id": "big/model", "launch_instance_type": "r7i.8xlarge"}
    assert launch(**variables, launch_volume_gib=100) == ["disk-too-small"]
    assert launch(**variables, launch_volume_gib=200) == []


def test_a_launch_needs_the_disk_that_a_bake_needs(catalog: models.Catalog) -> None:
    weights = catalog.models["big/model"].size
    least = -(-preflight.disk_needed(weights) // sizing.GIB)
    variables = {"serving_model_id": "big/model", "launch_instance_type": "r7i.8xlarge"}
    for volume, refusals in ((least, []), (least - 1, ["disk-too-small"])):
        assert launch(**variables, launch_volume_gib=volume) == refusals
        assert bool(images.check_volume("builder", volume * sizing.GIB, weights)) == bool(refusals)


def test_the_report_counts_and_says_what_to_do() -> None:
    refusals = [preflight.Refusal("no-head", "there is none", "Tag one"), preflight.Refusal("x", "y", "Z")]
    text = preflight.report(refusals)
    assert "2 things stand in the way. Nothing was changed." in text
    assert "no-head: there is none." in text
    assert "Tag one." in text
