"""Ray's own launcher (docs/ray-up.md) on machines: head and worker join, and a lost worker is replaced."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live_cluster import LiveCluster
from local_region import LocalRegion, eventually

from ingot import iam

pytestmark = pytest.mark.long

NAME = "raytest"
PROFILE = "ingot-ray-head"
MAKE_PROFILE = f"""
import boto3
iam = boto3.client("iam")
try:
    iam.create_instance_profile(InstanceProfileName="{PROFILE}")
    iam.create_role(RoleName="{PROFILE}", AssumeRolePolicyDocument="{{}}")
    iam.add_role_to_instance_profile(InstanceProfileName="{PROFILE}", RoleName="{PROFILE}")
except iam.exceptions.EntityAlreadyExistsException:
    pass
"""
# One task for each node, which says where it ran.
ASK = """
import ray
ray.init(address="{head}:6379", log_to_driver=False)
@ray.remote(num_cpus=0, resources={{"ingot_replica": 1}})
def here():
    import time
    time.sleep(3)
    return ray.util.get_node_ip_address()
print("ran on", *sorted(ray.get([here.remote() for _ in range(2)], timeout=120)))
"""
AS_RAY = (
    "cd /var/lib/ingot && timeout 180 env RAY_AUTH_MODE=token"
    " RAY_AUTH_TOKEN_PATH=/etc/ingot/credentials/ray-token"
    " /opt/ingot/venvs/vllm/bin/python -I"
)


class RayCluster:
    """The cluster that `ray up` makes, and its commands, as a user types them."""

    def __init__(self, region: LocalRegion) -> None:
        self.region = region
        self.folder = Path.home() / ".config/ingot/rehearsal" / NAME
        self.key = self.folder / "ssh-key"
        self.file = str(self.folder / "ray-cluster.yaml")

    def run(self, *command: str) -> str:
        """What a program of the venv says, inside the region; it must succeed."""
        done = self.region.program(*command, INGOT_CLUSTER=NAME)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def playbook(self, name: str, *options: str) -> str:
        return self.run("ansible-playbook", "-i", "inventories/rehearsal", f"playbooks/{name}.yml", *options)

    def nodes(self, role: str) -> list[Any]:
        filters = [
            {"Name": "tag:ingot:cluster", "Values": [NAME]},
            {"Name": "tag:ingot:role", "Values": [role]},
            {"Name": "instance-state-name", "Values": ["pending", "running"]},
        ]
        answer = self.region.ec2.describe_instances(Filters=filters)
        return [node for group in answer["Reservations"] for node in group["Instances"]]

    def root(self, node: Any, command: str) -> subprocess.CompletedProcess[str]:
        words = ["ssh", "-i", str(self.key), "-o", "StrictHostKeyChecking=no", "-o", "LogLevel=ERROR"]
        words += ["-o", "UserKnownHostsFile=/dev/null", f"admin@{node['PrivateIpAddress']}"]
        return subprocess.run(
            self.region.control.command([*words, "sudo sh -s"]),
            input=command,
            capture_output=True,
            text=True,
            check=False,
        )

    def ask(self, head: Any) -> str:
        """Where one task for each node ran, or why it did not."""
        script = ASK.format(head=head["PrivateIpAddress"])
        done = self.root(head, f"{AS_RAY} - <<'EOF'\n{script}\nEOF\n")
        return done.stdout if done.returncode == 0 else done.stderr

    def joined_workers(self, head: Any) -> list[Any]:
        """Those workers that Ray counts as alive."""
        target = f"--head {head['PrivateIpAddress']}:6379"
        program = f"{AS_RAY} /usr/lib/ingot/ray_node.py joined {target}"
        return [
            node
            for node in self.nodes("worker")
            if self.root(head, f"{program} --address {node['PrivateIpAddress']}").returncode == 0
        ]


@pytest.fixture
def ray_cluster(cluster: LiveCluster) -> Iterator[RayCluster]:
    """Room for two more machines, and nothing left of them afterwards."""
    ids = [node["InstanceId"] for node in cluster.nodes]
    cluster.region.ec2.stop_instances(InstanceIds=ids)
    for node in cluster.nodes:
        cluster.region.wait_state(node, "stopped")
    made = RayCluster(cluster.region)
    made.run("python", "-c", MAKE_PROFILE)
    try:
        yield made
    finally:
        made.playbook("destroy", "-e", f"destroy_confirm={NAME}")
        shutil.rmtree(made.folder, ignore_errors=True)
        cluster.region.ec2.start_instances(InstanceIds=ids)
        for node in cluster.nodes:
            cluster.region.wait_state(node, "running")
        eventually("an answer", lambda: "Paris" in cluster.ask(), timeout=900)


def test_head_and_worker_join_and_a_lost_worker_is_replaced(ray_cluster: RayCluster) -> None:
    limits = ("-e", "launch_workers=1", "-e", "launch_workers_most=1")
    ray_cluster.playbook("ray_config", *limits)
    ray_cluster.run("ray", "up", "--yes", ray_cluster.file)
    (head,) = ray_cluster.nodes("head")
    (worker,) = eventually("a worker", lambda: ray_cluster.joined_workers(head), timeout=300)
    addresses = sorted(node["PrivateIpAddress"] for node in (head, worker))
    assert ray_cluster.ask(head).strip() == f"ran on {' '.join(addresses)}"

    for node, unit in ((head, "ray-head"), (worker, "ray-worker")):
        assert ray_cluster.root(node, f"systemctl is-active {unit}").stdout == "active\n"
        token = "/etc/ingot/credentials/ray-token"
        found = ray_cluster.root(node, f"grep -lFf {token} /proc/[0-9]*/cmdline /proc/[0-9]*/environ")
        assert found.stdout == "", "the token is in an argument or an environment"
    assert ray_cluster.root(worker, "ls /home/admin/ray_bootstrap_key.pem").returncode != 0

    # The head's autoscaler, with the credentials of its instance profile, keeps launch_workers of them.
    ray_cluster.region.ec2.terminate_instances(InstanceIds=[worker["InstanceId"]])
    ray_cluster.region.wait_state(worker, "terminated")

    def another() -> list[Any]:
        return [n for n in ray_cluster.joined_workers(head) if n["InstanceId"] != worker["InstanceId"]]

    assert len(eventually("another worker", another, timeout=600)) == 1

    # A second `ray up` of the same file restarts Ray, and launches nothing.
    ray_cluster.playbook("ray_config", *limits)
    ray_cluster.run("ray", "up", "--yes", ray_cluster.file)
    assert [node["InstanceId"] for node in ray_cluster.nodes("head")] == [head["InstanceId"]]
    eventually("the worker in the new session", lambda: ray_cluster.joined_workers(head), timeout=300)

    ray_cluster.run("ray", "down", "--yes", ray_cluster.file)
    eventually("no node", lambda: not ray_cluster.nodes("head") + ray_cluster.nodes("worker"))
    calls = json.loads((ray_cluster.region.settings.state / "calls.json").read_text())
    assert "ec2:RunInstances" in calls["ingot-ray-head"]
    assert iam.complaints({name: calls[name] for name in ("Ansible", "ingot-ray-head")}) == []
