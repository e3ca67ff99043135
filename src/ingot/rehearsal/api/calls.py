"""Which API calls were made, by whom: the evidence for the least IAM policy."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from urllib.parse import parse_qs

# IAM's prefix where it is not the name that requests are signed for.
PREFIXES = {"monitoring": "cloudwatch"}
# S3 has no action in its requests, and IAM's names differ from the operations' too.
S3_OPERATIONS = {
    ("GET", "bucket"): "ListBucket",
    ("HEAD", "bucket"): "ListBucket",
    ("PUT", "bucket"): "CreateBucket",
    ("DELETE", "bucket"): "DeleteBucket",
    ("GET", "object"): "GetObject",
    ("HEAD", "object"): "GetObject",
    ("PUT", "object"): "PutObject",
    ("POST", "object"): "PutObject",
    ("DELETE", "object"): "DeleteObject",
    ("GET", "service"): "ListAllMyBuckets",
}


def signed_service(authorization: str) -> str | None:
    """The service that a request was signed for, from its SigV4 header."""
    parts = authorization.partition("Credential=")[2].split(",")[0].split("/")
    return parts[3].lower() if len(parts) >= 5 else None


def operation(service: str, method: str, path: str, body: str, target: str, query: str = "") -> str | None:
    """The operation that a request asks for; None if it cannot be told."""
    if target:  # JSON protocols: SSM
        return target.rpartition(".")[2]
    if service == "s3":
        parts = [part for part in path.split("/") if part]
        kind = "service" if not parts else "bucket" if len(parts) == 1 else "object"
        return S3_OPERATIONS.get((method, kind))
    values = parse_qs(body).get("Action") or parse_qs(query).get("Action")
    return values[0] if values else None


def iam_actions(service: str, name: str, body: str = "") -> list[str]:
    """IAM actions that a call needs: its own, and those that it implies."""
    actions = [f"{PREFIXES.get(service, service)}:{name}"]
    if service == "ec2":
        form = parse_qs(body)
        tagged = any(key.startswith("TagSpecification") for key in form)
        if tagged and name != "CreateTags":
            actions.append("ec2:CreateTags")
        if any(
            key.startswith(("IamInstanceProfile.", "LaunchTemplateData.IamInstanceProfile.")) for key in form
        ):
            actions.append("iam:PassRole")
    return actions


class Recorder:
    """``calls.json``: IAM actions seen, by user agent. Written when something new is seen, which is rare."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._seen: dict[str, set[str]] = {}
        if path.exists():
            self._seen = {agent: set(actions) for agent, actions in json.loads(path.read_text()).items()}

    def record(self, agent: str, actions: list[str]) -> None:
        """Note the actions of one call."""
        caller = short_agent(agent)
        with self._lock:
            known = self._seen.setdefault(caller, set())
            if known.issuperset(actions):
                return
            known.update(actions)
            text = json.dumps({name: sorted(seen) for name, seen in sorted(self._seen.items())}, indent=2)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            partial = self.path.with_name(self.path.name + ".partial")
            partial.write_text(text + "\n")
            partial.replace(self.path)


def short_agent(agent: str) -> str:
    """The caller without versions and platform, so that one tool is one entry. A name of its own wins."""
    if own := re.search(r"\bapp/([\w-]+)", agent):
        return own[1]
    for name in ("packer-plugin-amazon", "Packer", "Ansible", "aws-cli", "Boto3", "Botocore"):
        if name.lower() in agent.lower():
            return name
    return agent.split("/")[0].strip() or "unknown"
