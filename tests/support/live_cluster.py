"""The cluster that `ingot rehearse` left in a local region, seen by tests that break and mend it."""

from __future__ import annotations

import json
import shlex
import time
import urllib.request
from dataclasses import dataclass
from typing import Any

from local_region import LocalRegion

from ingot.rehearse import Cluster
from ingot.report import question


@dataclass(frozen=True)
class Run:
    """What a playbook printed, and how it ended."""

    status: int
    output: str
    seconds: float


class LiveCluster:
    """The machines of the rehearsal's cluster, by their Name tags, and the playbook that configures them."""

    def __init__(self, region: LocalRegion, known: Cluster) -> None:
        self.region = region
        self.known = known
        filters = [
            {"Name": "tag:ingot:cluster", "Values": [known.name]},
            {"Name": "instance-state-name", "Values": ["running"]},
        ]
        answer = region.ec2.describe_instances(Filters=filters)
        nodes = [node for group in answer["Reservations"] for node in group["Instances"]]
        roles = [(_tag(node, "ingot:role"), node) for node in nodes]
        self.heads = [node for role, node in roles if role == "head"]
        self.workers = [node for role, node in roles if role == "worker"]

    @property
    def nodes(self) -> list[Any]:
        return [*self.heads, *self.workers]

    def root(self, node: Any, command: str, *, may_fail: bool = False) -> str:
        """What ``command`` prints on a node, run as root."""
        done = self.region.ssh(node, f"sudo sh -c {shlex.quote(command)}")
        assert may_fail or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def stop(self) -> None:
        """End all that serves, as on nodes that were just booted, and forget that it ever failed."""
        units = "ingot-serve ray-head ray-worker vllm"
        for node in self.nodes:
            self.root(node, f"systemctl stop {units}; systemctl reset-failed {units}", may_fail=True)

    def ask(self) -> str:
        """What the gateway's client reads, or the error that it gets instead."""
        return self._post("chat/completions", question(self.known.model))

    def complete(self, prompt: str, tokens: int, **more: Any) -> str:
        """The same for the most likely continuation of a text."""
        body = {"model": self.known.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, **more}
        return self._post("completions", body, timeout=600)

    def _post(self, path: str, body: dict[str, Any], timeout: float = 120) -> str:
        url = f"http://{self.heads[0]['PrivateIpAddress']}:{self.known.gateway_port}/v1/{path}"
        request = urllib.request.Request(
            url,
            data=json.dumps(body).encode(),
            headers={
                "Content-Type": "application/json",
                "Authorization": f"Bearer {self.known.key_file.read_text().strip()}",
            },
        )

        def call() -> str:
            try:
                with urllib.request.urlopen(request, timeout=timeout) as answer:
                    return str(answer.read().decode())
            except OSError as error:
                return str(error)

        return str(self.region.control.network.call(call))

    def findings(self) -> str:
        """All that the doctor finds on any node."""
        said = [self.root(node, "ingot doctor --json", may_fail=True) for node in self.nodes]
        return "".join(text for text in said if json.loads(text))

    def site(self, *options: str) -> Run:
        """``ansible-playbook site.yml`` as the README says it."""
        started = time.monotonic()
        done = self.region.program("ansible-playbook", "-i", "inventories/rehearsal", "site.yml", *options)
        return Run(done.returncode, done.stdout, time.monotonic() - started)


def _tag(node: Any, key: str) -> str:
    return next((str(tag["Value"]) for tag in node["Tags"] if tag["Key"] == key), "")
