"""Measures the local EC2 against its goals: launch to SSH, ten launches at once, CreateImage of 1 GiB.

Runs in a region of its own, which it purges at the end. Goals are for an idle machine of two cores; one
that is missed is said, and fails nothing.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from steps import ROOT, ToolError, fail

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

INGOT = ROOT / ".venv/bin/ingot"
REGION = "bench"
SSH_TIMEOUT = 180.0


class Bench:
    """One EC2 client, one key, and what is measured with them."""

    def __init__(self, ec2: EC2Client, key: Path) -> None:
        self.ec2 = ec2
        self.key = key
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        ec2.import_key_pair(KeyName="bench", PublicKeyMaterial=key.with_suffix(".pub").read_bytes())
        images = ec2.describe_images(Filters=[{"Name": "name", "Values": ["debian-13-amd64-*"]}])["Images"]
        self.image = max(images, key=lambda image: image["CreationDate"])["ImageId"]

    def launch(self, count: int) -> list[tuple[str, str]]:
        """Ids and private addresses of new instances."""
        answer = self.ec2.run_instances(
            ImageId=self.image, InstanceType="t3.small", MinCount=count, MaxCount=count, KeyName="bench"
        )
        return [(item["InstanceId"], item["PrivateIpAddress"]) for item in answer["Instances"]]

    def ssh(self, address: str, command: str) -> bool:
        """Whether a command succeeded on a machine."""
        options = [
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "ConnectTimeout=2",
            "BatchMode=yes",
        ]
        flags = [part for option in options for part in ("-o", option)]
        argv = ["ssh", "-q", "-i", str(self.key), *flags, f"admin@{address}", command]
        return (
            subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0
        )

    def wait_for_ssh(self, address: str) -> None:
        """Until a login works, as a user's would."""
        deadline = time.monotonic() + SSH_TIMEOUT
        while not self.ssh(address, "true"):
            if time.monotonic() > deadline:
                raise ToolError(f"no login at {address} after {SSH_TIMEOUT:.0f} s; see `ingot local logs`")
            time.sleep(0.1)

    def terminate(self, instances: list[tuple[str, str]]) -> None:
        ids = [instance for instance, _ in instances]
        self.ec2.terminate_instances(InstanceIds=ids)
        self.ec2.get_waiter("instance_terminated").wait(InstanceIds=ids, WaiterConfig={"Delay": 1})

    def launch_to_ssh(self, count: int) -> float:
        """Seconds from the call until every machine lets the key in."""
        started = time.monotonic()
        instances = self.launch(count)
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(self.wait_for_ssh, [address for _, address in instances]))
        duration = time.monotonic() - started
        self.terminate(instances)
        return duration

    def create_image(self) -> float:
        """Seconds from the call until an image of a machine with 1 GiB of new files is available."""
        instances = self.launch(1)
        instance, address = instances[0]
        self.wait_for_ssh(address)
        if not self.ssh(address, "sudo dd if=/dev/urandom of=/opt/blob bs=1M count=1024 && sync"):
            raise ToolError(f"could not write 1 GiB on {instance}")
        self.ec2.stop_instances(InstanceIds=[instance])  # as Packer does before it asks for an image
        self.ec2.get_waiter("instance_stopped").wait(InstanceIds=[instance], WaiterConfig={"Delay": 1})
        started = time.monotonic()
        image = self.ec2.create_image(InstanceId=instance, Name=f"bench-{time.time():.0f}")["ImageId"]
        while self.ec2.describe_images(ImageIds=[image])["Images"][0]["State"] != "available":
            time.sleep(0.1)
        duration = time.monotonic() - started
        self.terminate(instances)
        return duration


def report(name: str, goal: float, runs: list[float]) -> None:
    """One line: median and spread against the goal."""
    middle = statistics.median(runs)
    verdict = "reached" if middle <= goal else "MISSED"
    spread = f"{min(runs):.1f} to {max(runs):.1f}"
    print(f"{name:<28} {middle:6.1f} s  ({spread}, {len(runs)} runs)  goal {goal:g} s: {verdict}", flush=True)


def measure() -> None:
    """Inside the region: all benchmarks."""
    import boto3  # takes a third of a second; only here is it needed

    with tempfile.TemporaryDirectory(prefix="ingot-bench-") as directory:
        bench = Bench(boto3.client("ec2"), Path(directory) / "key")
        bench.launch_to_ssh(1)  # the first one warms the page cache
        benchmarks: list[tuple[str, float, int, Callable[[], float]]] = [
            ("launch to SSH", 6, 5, lambda: bench.launch_to_ssh(1)),
            ("ten launched at once", 25, 3, lambda: bench.launch_to_ssh(10)),
            ("CreateImage of 1 GiB", 5, 3, bench.create_image),
        ]
        for name, goal, times, benchmark in benchmarks:
            report(name, goal, [benchmark() for _ in range(times)])


def main() -> int:
    """Bring the region up, measure inside it, purge it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("where", nargs="?", choices=["inside"], help="what it calls itself with")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the region is purged however this ends
    if parser.parse_args().where:
        try:
            measure()
        except ToolError as problem:
            return fail(problem)
        return 0
    env = {**os.environ, "INGOT_LOCAL_NAME": REGION}
    try:
        subprocess.run([INGOT, "local", "up"], env=env, check=True)
        inside = [str(INGOT), "local", "run", "--", sys.executable, __file__, "inside"]
        return subprocess.run(inside, env=env, check=False).returncode
    except subprocess.CalledProcessError as problem:
        return problem.returncode
    finally:
        subprocess.run([INGOT, "local", "down", "--purge"], env=env, check=False)


if __name__ == "__main__":
    sys.exit(main())
