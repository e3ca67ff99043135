"""ray_config.yml and Ray's own launcher on the API of the local EC2: what is refused, and what is launched.

Ray's programs are the real ones; machines exist in memory only, and ssh, rsync and sudo are stubs that act on
a folder for each address.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from ingot import iam

from .conftest import Commands, LocalEc2

PLAYBOOK = "playbooks/ray_config.yml"

STUBS = {
    "ssh": """\
while [ "${1#*@}" = "$1" ] || [ "${1#*=}" != "$1" ]; do shift; done
export HOME="$STUBS/${1#*@}"
mkdir -p "$HOME"
echo "export PATH=$STUBS/bin:\\$PATH" > "$HOME/.bashrc"
shift
exec sh -c "$*"
""",
    "rsync": """\
for target; do from=$to; to=$target; done
there=${to#*@}
there=$STUBS/${there%%:*}/${there#*:~/}
if [ -d "$from" ]; then cp -r "$from". "$there"; else cp "$from" "$there"; fi
""",
    "sudo": """\
printf '%s\\n' "$*" >> "$HOME/started"
""",
    "ray": """\
echo "ray $*" >> "$HOME/stopped"
""",
}

# What the head's autoscaler does for a worker, by its own classes.
LAUNCH_WORKER = """
import sys
from ray.autoscaler._private.providers import _get_node_provider
from ray.autoscaler.v2.instance_manager.config import FileConfigReader
from ray.autoscaler.v2.instance_manager.node_provider import NodeProviderAdapter
from ray.autoscaler.v2.instance_manager.ray_installer import RayInstaller
from ray.core.generated.instance_manager_pb2 import Instance
reader = FileConfigReader(sys.argv[1])
config = reader.get_cached_autoscaling_config()
provider = _get_node_provider(config.get_provider_config(), config.get_config("cluster_name"))
cloud = NodeProviderAdapter(provider, reader)
cloud._launch_nodes_by_type("worker", 1, "a request")
(worker,) = provider.non_terminated_nodes({"ray-node-type": "worker"})
instance = Instance(instance_type="worker", cloud_instance_id=worker)
RayInstaller(provider, config).install_ray(instance, sys.argv[2])
"""
END_WORKERS = """
import sys
from ray.autoscaler._private.providers import _get_node_provider
from ray.autoscaler.v2.instance_manager.config import FileConfigReader
config = FileConfigReader(sys.argv[1]).get_cached_autoscaling_config()
provider = _get_node_provider(config.get_provider_config(), config.get_config("cluster_name"))
provider.terminate_nodes(provider.non_terminated_nodes({"ray-node-type": "worker"}))
"""


@pytest.fixture
def commands(play: Commands, tmp_path: Path) -> Commands:
    """The same commands, with the stubs before all other programs."""
    folder = tmp_path / "stubs" / "bin"
    folder.mkdir(parents=True)
    for name, text in STUBS.items():
        (folder / name).write_text("#!/bin/sh\n" + text)
        (folder / name).chmod(0o755)
    more = {
        "STUBS": str(folder.parent),
        "PATH": f"{folder}:{play.environment['PATH']}",
        "TMPDIR": str(tmp_path),  # where Ray keeps what it looked up, by the file's contents
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    return Commands(play.home, play.environment | more)


def add_profile(ec2: LocalEc2, name: str = "ingot-ray-head") -> None:
    client = ec2.client("iam")
    client.create_instance_profile(InstanceProfileName=name)
    client.create_role(RoleName=name, AssumeRolePolicyDocument="{}")
    client.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)


def nodes(ec2: LocalEc2) -> dict[str, dict[str, Any]]:
    """Running instances by the role in their tags."""
    answer = ec2.client().describe_instances(
        Filters=[
            {"Name": "tag:ingot:cluster", "Values": ["ingot"]},
            {"Name": "instance-state-name", "Values": ["pending", "running"]},
        ]
    )
    found = [node for group in answer["Reservations"] for node in group["Instances"]]
    return {next(tag["Value"] for tag in node["Tags"] if tag["Key"] == "ingot:role"): node for node in found}


def test_all_that_speaks_against_it_is_refused_by_name(ec2: LocalEc2, commands: Commands) -> None:
    status, said = commands("rehearsal", PLAYBOOK)
    assert status != 0
    assert "no-image: this account has no image tagged ingot:image=x86" in said
    ec2.own_image()
    tags = [{"Key": "ingot:cluster", "Value": "ingot"}]
    other = ec2.launch(TagSpecifications=[{"ResourceType": "instance", "Tags": tags}])
    planted = {
        "launch_instance_type": "m7g.large",
        "launch_head_profile": "",
        "launch_workers": 3,
        "serving_mode": "vllm",
        "ingot_connect": "public",
    }
    status, said = commands("rehearsal", PLAYBOOK, "-e", json.dumps(planted))
    assert status != 0
    assert "architecture-differs: instance type m7g.large is arm64" in said
    assert "no-head-profile: launch_head_profile is empty" in said
    assert "workers-exceed-limit: launch_workers is 3, more than launch_workers_most, 2" in said
    assert "no-ray: serving_mode is 'vllm'" in said
    assert f"launched-otherwise: cluster ingot has instances that launch.yml launched ({other})" in said
    assert not (commands.home / ".config").exists()


def test_a_key_that_a_head_could_not_use_is_refused(ec2: LocalEc2, commands: Commands) -> None:
    """A head logs in to its workers by itself: there is nobody to type a passphrase."""
    ec2.own_image()
    key = commands.home / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", key], check=True)
    status, said = commands("rehearsal", PLAYBOOK, "-e", f"ingot_ssh_key={key}")
    assert status != 0
    assert "passphrase" in said
    assert not list(commands.home.rglob("ray-cluster.yaml"))


def test_rays_launcher_takes_the_file_and_starts_head_and_worker(ec2: LocalEc2, commands: Commands) -> None:
    image = ec2.own_image()
    add_profile(ec2)
    status, said = commands("rehearsal", PLAYBOOK, "-e", "launch_workers=1")
    assert status == 0, said
    folder = commands.home / ".config/ingot/rehearsal/ingot"
    file = folder / "ray-cluster.yaml"
    assert file.stat().st_mode & 0o777 == 0o600
    config = prepare_config(yaml.safe_load(file.read_text()))
    validate_config(config)  # Ray's own schema
    assert config["max_workers"] == 2
    assert config["available_node_types"]["worker"]["min_workers"] == 1
    assert not any(config[name] for name in config if name.endswith("setup_commands"))
    assert folder.joinpath("ray-token").read_text() not in file.read_text()

    status, said = commands.run("ray", "up", "--yes", str(file))
    assert status == 0, said
    assert "will not" not in said, "Ray warns of a start command that is not its own"
    head = nodes(ec2)["head"]
    assert head["ImageId"] == image
    assert head["KeyName"] == "ingot"
    assert head["MetadataOptions"]["HttpTokens"] == "required"
    assert head["MetadataOptions"]["InstanceMetadataTags"] == "enabled"
    assert head["IamInstanceProfile"]["Arn"].endswith("/ingot-ray-head")
    assert [group["GroupName"] for group in head["SecurityGroups"]] == ["ingot"]
    address = head["PrivateIpAddress"]
    there = Path(commands.environment["STUBS"], address)
    assert started(there) == (
        f"/usr/lib/ingot/ingot-ray start --head --autoscaling-config {there}/ray_bootstrap_config.yaml"
        f" --files {there}/ingot-ray --instance {head['InstanceId']} --type head"
    )
    assert (there / "ingot-ray/token").read_text() == (folder / "ray-token").read_text()
    assert (there / "ingot-ray/user.env").is_file()
    settings = (there / "ingot-ray/head.env").read_text()
    assert "RAY_NUM_CPUS=3\n" in settings
    assert config["available_node_types"]["head"]["resources"] == {"CPU": 3, "ingot_replica": 1}

    on_head = Commands(
        there, commands.environment | {"HOME": str(there), "AWS_SDK_UA_APP_ID": "ingot-ray-head"}
    )
    written = str(there / "ray_bootstrap_config.yaml")
    status, said = on_head.run("python", "-c", LAUNCH_WORKER, written, address)
    assert status == 0, said
    worker = nodes(ec2)["worker"]
    assert "IamInstanceProfile" not in worker, "only a head may launch"
    assert worker["MetadataOptions"]["HttpTokens"] == "required"
    there = Path(commands.environment["STUBS"], worker["PrivateIpAddress"])
    assert started(there) == (
        f"/usr/lib/ingot/ingot-ray start --address {address} --files {there}/ingot-ray"
        f" --instance {worker['InstanceId']} --type worker"
    )
    assert not (there / "ray_bootstrap_key.pem").exists()

    status, said = commands("rehearsal", "playbooks/launch.yml")
    assert status != 0
    assert "launched-otherwise: cluster ingot has instances that ray up launched" in said

    status, said = on_head.run("python", "-c", END_WORKERS, written)
    assert status == 0, said
    status, said = commands.run("ray", "down", "--yes", str(file))
    assert status == 0, said
    assert nodes(ec2) == {}
    assert iam.complaints(calls(ec2)) == []
    status, said = commands("rehearsal", "playbooks/destroy.yml", "-e", "destroy_confirm=ingot")
    assert status == 0, said
    assert ec2.client().describe_launch_templates()["LaunchTemplates"] == []


def started(home: Path) -> str:
    """The command that the launcher ran as root."""
    (line,) = (home / "started").read_text().splitlines()
    return shlex.join(shlex.split(line))


def calls(ec2: LocalEc2) -> dict[str, list[str]]:
    """What Ray asked for, without what this test did to make an image and a profile."""
    found: dict[str, list[str]] = json.loads((ec2.state / "calls.json").read_text())
    assert "ec2:RunInstances" in found["ingot-ray-head"]
    own = {"ec2:CreateImage", "ec2:ModifyImageAttribute", "ec2:StopInstances"}
    return {
        agent: [name for name in names if name not in own and not name.startswith(("iam:Add", "iam:Create"))]
        for agent, names in found.items()
    }
