"""An account with images in moto, and `ingot channel` in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws
from moto.ec2 import urls
from moto.ec2.models import EC2Backend, ec2_backends
from moto.ec2.responses import EC2Response
from typer.testing import CliRunner

from ingot.channels import CHANNELS, stores
from ingot.channels.records import Channel
from ingot.cli import app

COMMIT = "a" * 40
REGION = "eu-west-1"


class Region:
    """An account with images, and the command in it."""

    def __init__(self, tmp_path: Path, where: str) -> None:
        self.ec2: Any = boto3.client("ec2", region_name=REGION)
        self.ssm: Any = boto3.client("ssm", region_name=REGION)
        self.tmp_path, self.where = tmp_path, where
        self.made = 0

    def image(self, name: str = "x86", commit: str = COMMIT) -> str:
        """An AMI as Packer leaves it: with a snapshot, both tagged."""
        self.made += 1
        run = self.ec2.run_instances(ImageId="ami-00000000000000001", MinCount=1, MaxCount=1)
        builder = run["Instances"][0]["InstanceId"]
        image_id = str(self.ec2.create_image(InstanceId=builder, Name=f"{name}-{self.made}")["ImageId"])
        self.ec2.terminate_instances(InstanceIds=[builder])
        tags = [{"Key": "ingot:image", "Value": name}, {"Key": "ingot:commit", "Value": commit}]
        self.ec2.create_tags(Resources=[image_id, *self.snapshots(image_id)], Tags=tags)
        return image_id

    def snapshots(self, image_id: str) -> list[str]:
        (image,) = self.ec2.describe_images(ImageIds=[image_id])["Images"]
        return [disk["Ebs"]["SnapshotId"] for disk in image["BlockDeviceMappings"] if "Ebs" in disk]

    def verdict(
        self, image_id: str, name: str = "x86", commit: str = COMMIT, days: float = 0, **change: Any
    ) -> str:
        """A file as playbooks/verify.yml writes it."""
        row = {"name": "first-boot-answer", "verdict": "passed", "evidence": "Paris", "limit": "Paris"}
        data = {
            "image_id": image_id,
            "tags": {"ingot:image": name, "ingot:commit": commit},
            "finished": (datetime.now(UTC) - timedelta(days=days)).isoformat(),
            "sbom": "0" * 40,
            "rows": [row],
        }
        path = self.tmp_path / f"{image_id}-{len(list(self.tmp_path.iterdir()))}.json"
        path.write_text(json.dumps(data | change))
        return str(path)

    def run(self, *arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["channel", *arguments, "--store", self.where])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, done.output

    def ok(self, *arguments: str) -> str:
        status, said = self.run(*arguments)
        assert status == 0, said
        return said

    def refused(self, *arguments: str) -> str:
        before = self.state()
        status, said = self.run(*arguments)
        assert status == 1, said
        assert self.state() == before, "nothing was changed"
        return said

    def state(self) -> Any:
        store = stores.Ssm(self.ssm) if self.where == "ssm" else stores.Directory(Path(self.where))
        return [(name, store.log(name), store.pointers(name)) for name in ("candidate", "beta", "stable")]

    def holds(self, name: str) -> dict[str, str]:
        store = stores.Ssm(self.ssm) if self.where == "ssm" else stores.Directory(Path(self.where))
        images = Channel.read(name, store.log(name)).images
        return {image: member.image_id for image, member in images.members.items()} if images else {}

    def released(self, name: str = "stable", commit: str = COMMIT) -> str:
        """An image that went all the way to a channel."""
        image_id = self.image(commit=commit)
        self.ok("promote", "candidate", self.verdict(image_id, commit=commit))
        for channel in CHANNELS[1 : CHANNELS.index(name) + 1]:
            self.ok("promote", channel)
        return image_id


def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str = "ssm") -> Iterator[Region]:
    """One that is empty, for a fixture; ``store``: ssm or directory."""
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")  # thousands, of which none is asked for
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # one of another test has its keys and its endpoint
    for name in ("PROFILE", "ENDPOINT_URL", "SESSION_TOKEN"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    for name, value in (("REGION", REGION), ("ACCESS_KEY_ID", "a"), ("SECRET_ACCESS_KEY", "b")):
        monkeypatch.setenv(f"AWS_{name}", value)
    (tmp_path / "verdicts").mkdir()
    # Tests of the local EC2 leave its own classes in moto.
    monkeypatch.setattr(ec2_backends, "backend", EC2Backend)
    monkeypatch.setitem(urls.url_paths, "{0}/", EC2Response.dispatch)
    ec2_backends.clear()
    with mock_aws():
        where = "ssm" if store == "ssm" else str(tmp_path / "channels")
        yield Region(tmp_path / "verdicts", where)
