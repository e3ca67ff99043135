"""verify.yml refuses by name what it cannot verify, and removes its clones also when a step fails."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

from .conftest import Commands, LocalEc2
from .test_playbooks import changes, image

CORE = "Zq7Xw9Lm2Kp4Rt6Yb8Nc"
VERIFY = "playbooks/verify.yml"


def test_what_is_no_candidate_is_refused_before_anything_is_launched(ec2: LocalEc2, play: Commands) -> None:
    foreign = ec2.launch()
    ec2.stop(foreign)
    untagged = ec2.client().create_image(InstanceId=foreign, Name="somebodys")["ImageId"]
    ec2.wait_for_image(untagged)
    ours = image(ec2)
    refused = {
        "no-image-named": {"verify_image_id": "x86"},
        "no-earlier-report": {"verify_image_id": ours, "verify_against": "ami-0a1b2c3d4e5f67890"},
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
    assert set(verdict) == {"image_id", "tags", "finished", "sbom", "rows"}
    assert datetime.fromisoformat(verdict["finished"]).tzinfo and len(verdict["sbom"]) == 64
    assert (verdict["rows"][0]["name"], verdict["rows"][0]["verdict"]) == ("steps", "failed")
    assert f"{candidate}: must not be published" in (folder / "report.html").read_text()
    report = json.loads((folder / "report.json").read_text())
    assert (report["rows"], report["contents"]) == (verdict["rows"], None)
    assert (folder / "launch.log").stat().st_mode & 0o077 == 0
    assert not list((play.home / ".config/ingot/rehearsal").glob("verify-*"))
    client = ec2.client()
    assert client.describe_key_pairs()["KeyPairs"] == []
    assert client.describe_launch_templates()["LaunchTemplates"] == []
    groups = client.describe_security_groups()["SecurityGroups"]
    assert [group["GroupName"] for group in groups if group["GroupName"].startswith("verify-")] == []


def test_the_tree_that_nobody_has_booted_is_held_against_the_rules(play: Commands, tmp_path: Path) -> None:
    """The programs, called as the playbook calls them; a copy is what is mounted here."""
    tree, folder = tmp_path / "snap-1", tmp_path / "verdict"
    for name, text in {
        "etc/passwd": "root:x:0:0:root:/root:/bin/bash\n",
        "etc/group": "root:x:0:\n",
        "etc/machine-id": "",
        "root/.bash_history": "export HF_TOKEN=...\n",
        "opt/tool": f"token {CORE}\n",
    }.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    (tree / "opt/tool").chmod(0o4755)
    folder.mkdir()
    image = {
        "root_device_name": "/dev/xvda",
        "block_device_mappings": [{"device_name": "/dev/xvda", "ebs": {"snapshot_id": "snap-1"}}],
    }
    variables = {
        "verify_mount_command": ["sh", "-c", f'cp -a "{tmp_path}/$0/." "$1"'],
        "__image": image,
        "__directory": str(folder),
        "__moment": "unbooted",
        "__canary": {"core": CORE, "secrets": {"environment": f"env-{CORE}"}},
    }
    status, said = play("rehearsal", "playbooks/verify_unbooted.yml", "-e", json.dumps(variables))
    assert status == 0, said
    assert CORE not in said
    found = json.loads((folder / "unbooted.found.json").read_text())
    assert [one["rule"] for one in found["hygiene"]["findings"]] == ["shell-history"]
    assert [one["rule"] for one in found["surface"]["findings"]] == ["privileged"]
    assert [hit["path"] for hit in found["canary"]["hits"]] == ["/opt/tool"]
    assert found["evidence"]["inside"]["manifest"] == {}
