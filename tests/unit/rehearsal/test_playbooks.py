"""launch.yml, site.yml and destroy.yml refuse before they change anything: seen from the API's side."""

from __future__ import annotations

import json
import re
from pathlib import Path

from .conftest import Commands, LocalEc2

CHANGING = ("ec2:Run", "ec2:Create", "ec2:Import", "ec2:Authorize", "ec2:Delete", "ec2:Terminate")


def image(ec2: LocalEc2, core: str = "") -> str:
    """An image of ours, as a bake leaves it."""
    client = ec2.client()
    builder = ec2.launch()
    ec2.stop(builder)
    tags = {"ingot:image": "x86"} | ({"ingot:core": core} if core else {})
    specification = {
        "ResourceType": "image",
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
    }
    made = client.create_image(InstanceId=builder, Name="ingot-x86-1", TagSpecifications=[specification])
    ec2.wait_for_image(made["ImageId"])
    client.terminate_instances(InstanceIds=[builder])
    return str(made["ImageId"])


def changes(ec2: LocalEc2) -> list[str]:
    """What the playbooks asked EC2 to change."""
    calls = json.loads((ec2.state / "calls.json").read_text()) if (ec2.state / "calls.json").exists() else {}
    return [action for action in calls.get("Ansible", []) if action.startswith(CHANGING)]


def test_a_launch_is_refused_with_all_that_speaks_against_it(ec2: LocalEc2, play: Commands) -> None:
    ec2.own_image()
    status, said = play(
        "rehearsal",
        "playbooks/launch.yml",
        *("-e", "launch_instance_type=m7g.medium"),
        *("-e", "launch_volume_gib=4"),
    )
    assert status != 0
    for name in ("architecture-differs", "model-does-not-fit", "disk-too-small"):
        assert name in said
    status, said = play(
        "rehearsal",
        "playbooks/launch.yml",
        *("-e", "launch_instance_type=m7i.lrge"),
        *("-e", "launch_ssh_cidr="),
    )
    assert status != 0
    for name in ("unknown-instance-type", "no-cidr"):
        assert name in said
    assert changes(ec2) == []


def test_a_launch_on_a_core_that_lacks_what_was_compiled_in_is_refused(ec2: LocalEc2, play: Commands) -> None:
    made = image(ec2, core="x86-64-v4")
    status, said = play(
        "rehearsal",
        "playbooks/launch.yml",
        "-e",
        "launch_instance_type=m6a.large",
        "-e",
        "launch_volume_gib=30",
    )
    assert status != 0
    flat = " ".join(said.split())
    assert f"wrong-core: instance type m6a.large has x86-64-v3 cores, and image {made} (x86)" in flat
    assert "m7i" in flat
    assert changes(ec2) == []


def test_a_cluster_that_nobody_launched_and_a_mistyped_variable_are_refused(
    ec2: LocalEc2, play: Commands
) -> None:
    status, said = play("rehearsal", "site.yml")
    assert status != 0
    assert "no-nodes" in said
    status, said = play("rehearsal", "site.yml", "-e", "serving_modle_id=x")
    assert status != 0
    assert "serving_model_id" in said
    assert changes(ec2) == []


def test_a_cluster_without_workers_is_a_head_alone(ec2: LocalEc2, play: Commands) -> None:
    ec2.own_image()
    tags = [{"Key": "ingot:cluster", "Value": "ingot"}, {"Key": "ingot:role", "Value": "worker"}]
    of_before = ec2.launch(TagSpecifications=[{"ResourceType": "instance", "Tags": tags}])
    ec2.host.broken = "nothing boots here"  # so that no SSH is waited for
    ec2.host.calls.clear()
    status, said = play("rehearsal", "playbooks/launch.yml", "-e", "launch_workers=0")
    assert status != 0
    assert "TASK [Launch the instances]" in said
    assert [call[0] for call in ec2.host.calls].count("launch") == 1, (
        "something else than the head was launched"
    )
    ec2.wait_for(of_before, "terminated")


def key_tasks(play: Commands, *options: str) -> dict[str, str]:
    """What the tasks of launch.yml about the key pair say; the one after them wants what was before."""
    start = "Make the folder for the cluster's key"
    _, said = play("rehearsal", "playbooks/launch.yml", "--start-at-task", start, *options)
    found = {}
    for task in said.partition("PLAY RECAP")[0].split("TASK [")[1:]:
        state = re.search("^(ok|changed|skipping|fatal): ", task, re.MULTILINE)
        found[task.partition("]")[0]] = state[1] if state else task
    assert found.pop("Make the security group") == "fatal" and "fatal" not in found.values(), said
    return found


def test_the_key_pair_is_the_clusters_own_and_a_check_finds_it_so(ec2: LocalEc2, play: Commands) -> None:
    remove, make = "Remove it if it is of another key", "Import its public half"
    client = ec2.client()

    def imported() -> str:
        (pair,) = client.describe_key_pairs(KeyNames=["ingot"], IncludePublicKey=True)["KeyPairs"]
        return str(pair["PublicKey"])

    assert key_tasks(play)[make] == "changed"
    own = imported()
    told = key_tasks(play, "--check")
    assert (told[remove], told[make]) == ("skipping", "ok")
    client.delete_key_pair(KeyName="ingot")
    client.create_key_pair(KeyName="ingot", KeyType="ed25519")
    assert imported().split()[:2] != own.split()[:2]
    told = key_tasks(play)
    assert (told[remove], told[make]) == ("changed", "changed")
    assert imported() == own


def test_a_launch_with_a_variable_missing_asks_nobody(ec2: LocalEc2, play: Commands) -> None:
    status, said = play("example", "playbooks/launch.yml", "-e", "launch_wokers=3")
    assert status != 0
    assert "missing-variable" in said
    assert "launch_workers" in said
    assert "Find the image" not in said


def test_a_placeholder_key_is_refused_before_any_node_is_spoken_to(
    ec2: LocalEc2, play: Commands, tmp_path: Path
) -> None:
    key = tmp_path / "api-key"
    key.write_text("changeme")
    key.chmod(0o600)
    status, said = play("example", "site.yml", "-e", f"ingot_api_key_file={key}")
    assert status != 0
    assert "placeholder-api-key" in said
    assert "UNREACHABLE" not in said
    assert not (tmp_path / "home/.config").exists(), "a refused run has made secrets"


def test_destroy_asks_and_takes_what_is_the_clusters_only(ec2: LocalEc2, play: Commands) -> None:
    client = ec2.client()
    ids = {}
    for cluster in ("ingot", "other"):
        tags = [{"Key": "ingot:cluster", "Value": cluster}]
        ids[cluster] = ec2.launch(TagSpecifications=[{"ResourceType": "instance", "Tags": tags}])
        client.create_key_pair(
            KeyName=cluster, TagSpecifications=[{"ResourceType": "key-pair", "Tags": tags}]
        )
    status, said = play("rehearsal", "playbooks/destroy.yml")
    assert status != 0
    assert ids["ingot"] in said
    assert ids["other"] not in said
    assert changes(ec2) == []
    status, said = play("rehearsal", "playbooks/destroy.yml", "-e", "destroy_confirm=ingot")
    assert status == 0, said
    ec2.wait_for(ids["ingot"], "terminated")
    assert ec2.instance(ids["other"])["State"]["Name"] == "running"
    assert [pair["KeyName"] for pair in client.describe_key_pairs()["KeyPairs"]] == ["other"]
    status, said = play("rehearsal", "playbooks/destroy.yml")
    assert status == 0
    assert "Nothing is left of cluster ingot" in said
