"""The inventories: what they find, how hosts are named, and that they set only what something reads."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

from ingot.checkout import ROOT
from ingot.preflight import variables as checks
from ingot.preflight.cluster import check_topology
from ingot.rehearsal.waiting import wait_for

INVENTORIES = ROOT / "inventories"
FAKE = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def variables(inventory: str) -> dict[str, Any]:
    text = (INVENTORIES / inventory / "group_vars/all.yml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))


def group_variables(inventory: str, group: str) -> dict[str, Any]:
    text = (INVENTORIES / inventory / "group_vars" / f"{group}.yml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))


def ansible_inventory(inventory: str, environment: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-inventory"), "-i", INVENTORIES / inventory, "--list"],
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def region() -> Iterator[dict[str, str]]:
    # In a process of its own: other tests put the EC2 of the local region in the place of the one in here.
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [Path(sys.executable).with_name("moto_server"), "-H", "127.0.0.1", "-p", str(port)],
        env={name: value for name, value in os.environ.items() if not name.startswith("MOTO_")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = ("127.0.0.1", port)
    assert wait_for(lambda: socket.socket().connect_ex(address) == 0, 60), "moto_server does not listen"
    environment = {**FAKE, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
    ec2 = boto3.client(
        "ec2",
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        region_name="us-east-1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
    image = ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
    machines = [
        ("ingot", "head"),
        ("ingot", "worker"),
        ("ingot", "worker"),
        ("ingot", "worker"),
        ("other", "head"),
    ]
    ids = []
    for cluster, role in machines:
        # All of one name, with a space in it: names must not decide what a host is called.
        tags = {"ingot:cluster": cluster, "ingot:role": role, "ingot:image": "x86", "Name": "LLM node"}
        specification: Any = {
            "ResourceType": "instance",
            "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
        }
        answer = ec2.run_instances(ImageId=image, MinCount=1, MaxCount=1, TagSpecifications=[specification])
        ids.append(answer["Instances"][0]["InstanceId"])
    ec2.terminate_instances(InstanceIds=[ids[3]])
    yield environment
    server.terminate()
    server.wait()


@pytest.mark.parametrize("inventory", ["aws", "rehearsal"])
def test_the_running_nodes_of_one_cluster_are_found_in_their_groups(
    inventory: str, region: dict[str, str]
) -> None:
    found = ansible_inventory(inventory, region)
    hosts = found["_meta"]["hostvars"]
    assert sorted(name.split("-i-")[0] for name in hosts) == ["head", "worker", "worker"]
    assert len(found["ray_worker"]["hosts"]) == 2
    assert found["ray_head"]["hosts"] == found["gateway"]["hosts"]
    assert set(found["x86"]["hosts"]) == set(hosts)
    groups = {name: group.get("hosts", []) for name, group in found.items() if name != "_meta"}
    assert check_topology(groups, {"x86": ["x86"]}, "ingot") == []


@pytest.mark.parametrize("program", ["ansible-playbook", "ansible-inventory"])
@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, "no-region: AWS_REGION is not set. Set it to the cluster's region"),
        ({"AWS_REGION": "eu-west-1a"}, "no-region: AWS_REGION is 'eu-west-1a', which is no region."),
        ({"AWS_DEFAULT_REGION": "eu-west-1"}, "no-credentials: there are no credentials of AWS"),
        ({"AWS_REGION": "eu-west-1", "AWS_PROFILE": "nobody"}, "no-credentials: The config profile (nobody)"),
    ],
)
def test_an_account_that_cannot_be_asked_is_one_line_and_not_the_complaints_of_three_parsers(
    program: str, environment: dict[str, str], said: str, tmp_path: Path
) -> None:
    asked = ["--list"] if program == "ansible-inventory" else [ROOT / "site.yml"]
    outside = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    own = {
        "HOME": str(tmp_path),
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    done = subprocess.run(
        [Path(sys.executable).with_name(program), "-i", INVENTORIES / "aws", *asked],
        env=outside | own | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"Refused: {said}")
    assert done.stderr.count("\n") == 1, done.stderr


def test_another_cluster_is_found_by_name(region: dict[str, str]) -> None:
    found = ansible_inventory("aws", {**region, "INGOT_CLUSTER": "other"})
    assert len(found["_meta"]["hostvars"]) == 1


def test_what_ec2_says_keeps_to_its_own_names(region: dict[str, str]) -> None:
    hosts = ansible_inventory("aws", region)["_meta"]["hostvars"]
    ours = checks.playbook_options() | options()
    for facts in hosts.values():
        assert {name for name in facts if not name.startswith(("ec2_", "ansible_"))} <= ours


def options() -> set[str]:
    return {name for names in checks.role_options().values() for name in names}


@pytest.mark.parametrize("inventory", ["aws", "rehearsal", "example"])
def test_every_variable_is_read_by_something(inventory: str) -> None:
    names = variables(inventory)
    assert checks.check_variables(names, checks.role_options(), checks.playbook_options()) == []


def test_the_rehearsal_sets_all_that_the_playbooks_read() -> None:
    assert checks.check_missing(variables("rehearsal"), checks.playbook_options()) == []


def test_the_example_sets_all_that_a_static_cluster_needs() -> None:
    given = {**variables("example"), "ansible_host": "192.0.2.11"}
    assert checks.refusals(given, launching=False) == []


def test_nodes_on_graviton_have_the_engine_that_their_image_was_baked_with() -> None:
    """A node whose inventory says otherwise would not be taken for one of the image's."""
    images = yaml.safe_load((ROOT / "packer/images.yml").read_text())["images"]
    for name in ("graviton3", "graviton4"):
        assert images[name]["groups"] == ["graviton", name]
        assert images[name]["core"] == group_variables("image", name)["vllm_mcpu"]
        for group in images[name]["groups"]:
            baked = group_variables("image", group)
            assert baked
            for inventory in ("aws", "rehearsal", "example"):
                given = group_variables(inventory, group)
                assert {key: given.get(key) for key in baked} == baked, f"{inventory}: {group}"


def test_a_node_of_a_graviton_image_is_in_both_its_groups() -> None:
    for inventory in ("aws", "rehearsal"):
        text = (INVENTORIES / inventory / "aws_ec2.yml").read_text()
        assert "graviton: ec2_tags['ingot:image'] in ['graviton3', 'graviton4']" in text
    found = ansible_inventory("example", {})
    assert sorted(found["graviton"]["children"]) == ["graviton3", "graviton4"]


def test_the_rehearsal_finds_its_nodes_as_aws_does() -> None:
    # Two files, for an inventory folder must stand by itself; one text.
    assert (INVENTORIES / "rehearsal/aws_ec2.yml").read_text() == (
        INVENTORIES / "aws/aws_ec2.yml"
    ).read_text()


def test_the_example_is_a_cluster_that_the_preflight_lets_through() -> None:
    found = ansible_inventory("example", {})
    heads = found["ray_head"]["hosts"]
    groups = {"ray_head": heads, "ray_worker": found["ray_worker"]["hosts"], "gateway": heads}
    nodes = [*groups["ray_head"], *groups["ray_worker"]]
    assert check_topology({**groups, "x86": nodes}, {"x86": ["x86"]}, "example") == []
    assert sorted(found["x86"]["children"]) == ["ray_head", "ray_worker"]
