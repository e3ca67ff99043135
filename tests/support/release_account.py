"""Images of a local region, what verify.yml finds out about them, and the channels that they go through."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from local_region import LocalRegion, eventually


class Account:
    """Images in a region, what is found out about them, and channels in a directory."""

    def __init__(self, region: LocalRegion, channels: Path) -> None:
        self.region, self.channels = region, channels

    def newest(self) -> dict[str, Any]:
        """The image that was baked last."""
        tagged = [{"Name": "tag:ingot:image", "Values": ["x86"]}, {"Name": "state", "Values": ["available"]}]
        images = self.region.ec2.describe_images(Owners=["self"], Filters=tagged)["Images"]
        assert images, "no image in the region: run `ingot rehearse` there first"
        newest: dict[str, Any] = max(images, key=lambda image: image["CreationDate"])
        return newest

    def verify(self, image_id: str, **variables: str) -> tuple[str, dict[str, Any]]:
        """What verify.yml says of an image at its end, and the verdict that it has written."""
        given = json.dumps({"verify_image_id": image_id, **variables})
        playbook = ("ansible-playbook", "-i", "inventories/rehearsal", "playbooks/verify.yml", "-e", given)
        done = self.region.program(*playbook)
        verdict: dict[str, Any] = json.loads(self.verdict(image_id).read_text())
        failed = [row["name"] for row in verdict["rows"] if row["verdict"] == "failed"]
        assert (done.returncode == 0) == (failed == []), "its status is its verdict"
        return done.stdout, verdict

    def verdict(self, image_id: str) -> Path:
        return Path.home() / ".config/ingot/rehearsal/verify" / image_id / "verdict.json"

    def channel(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`ingot channel`, in the region."""
        return self.region.program("ingot", "channel", *arguments, "--store", str(self.channels))

    @contextmanager
    def changed(self, image: dict[str, Any], command: str, name: str) -> Iterator[str]:
        """Another image, of a machine of this one on which root ran a command; removed at the end."""
        ec2 = self.region.ec2
        (machine,) = self.region.launch(image=image["ImageId"], kind="m7i.large")
        self.region.answer(machine, f"sudo sh -c '{command}'")
        ec2.stop_instances(InstanceIds=[machine["InstanceId"]])
        self.region.wait_state(machine, "stopped")
        tags = [{"ResourceType": "image", "Tags": image["Tags"]}]
        made = ec2.create_image(InstanceId=machine["InstanceId"], Name=name, TagSpecifications=tags)[
            "ImageId"
        ]
        ec2.modify_image_attribute(ImageId=made, ImdsSupport={"Value": "v2.0"})
        ec2.terminate_instances(InstanceIds=[machine["InstanceId"]])

        def available() -> bool:
            return bool(ec2.describe_images(ImageIds=[made])["Images"][0]["State"] == "available")

        try:
            eventually(f"image {made}", available)
            yield str(made)
        finally:
            ec2.deregister_image(ImageId=made, DeleteAssociatedSnapshots=True)
