"""verify.yml refuses by name what it cannot verify, and removes its clones also when a step fails."""

from __future__ import annotations

import json

from .conftest import Commands, LocalEc2
from .test_playbooks import changes, image

VERIFY = "playbooks/verify.yml"


def test_what_is_no_candidate_is_refused_before_anything_is_launched(ec2: LocalEc2, play: Commands) -> None:
    foreign = ec2.launch()
    ec2.stop(foreign)
    untagged = ec2.client().create_image(InstanceId=foreign, Name="somebodys")["ImageId"]
    ec2.wait_for_image(untagged)
    ours = image(ec2)
    refused = {
        "no-image-named": {"verify_image_id": "x86"},
        "no-such-image": {"verify_image_id": "ami-0a1b2c3d4e5f67890"},
        "not-an-ingot-image": {"verify_image_id": untagged},
        "architecture-differs": {"verify_image_id": ours, "verify_instance_type": "m7g.medium"},
        "ami-imdsv1": {"verify_image_id": ours},
    }
    for name, variables in refused.items():
        status, said = play("rehearsal", VERIFY, "-e", json.dumps(variables))
        assert status != 0
        assert name in said
    assert changes(ec2) == []


def test_an_image_that_is_not_available_is_refused(ec2: LocalEc2, play: Commands) -> None:
    builder = ec2.launch()
    ec2.stop(builder)
    ec2.host.gate.clear()  # so that the snapshot takes for ever
    tags = [{"ResourceType": "image", "Tags": [{"Key": "ingot:image", "Value": "x86"}]}]
    made = ec2.client().create_image(InstanceId=builder, Name="ingot-x86-1", TagSpecifications=tags)
    try:
        status, said = play("rehearsal", VERIFY, "-e", f"verify_image_id={made['ImageId']}")
    finally:
        ec2.host.gate.set()
    assert status != 0
    assert "ami-not-available" in said


def test_a_clone_that_does_not_boot_fails_by_its_step_and_everything_is_removed(
    ec2: LocalEc2, play: Commands
) -> None:
    candidate = ec2.own_image()
    ec2.host.broken = "nothing boots here"
    status, said = play("rehearsal", VERIFY, "-e", json.dumps({"verify_image_id": candidate}))
    assert status != 0
    flat = " ".join(said.split())
    assert f"{candidate} must not be published" in flat, said
    assert "At the step launch: playbooks/launch.yml failed." in flat
    folder = play.home / ".config/ingot/rehearsal/verify" / candidate
    verdict = json.loads((folder / "verdict.json").read_text())
    assert (verdict["rows"][0]["name"], verdict["rows"][0]["verdict"]) == ("steps", "failed")
    assert (folder / "launch.log").stat().st_mode & 0o077 == 0
    client = ec2.client()
    assert client.describe_key_pairs()["KeyPairs"] == []
    assert client.describe_launch_templates()["LaunchTemplates"] == []
    groups = client.describe_security_groups()["SecurityGroups"]
    assert [group["GroupName"] for group in groups if group["GroupName"].startswith("verify-")] == []
