"""Images of the local EC2: what is in them, what they are called, and when their trees may go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from .conftest import LocalEc2, until
from .test_api_instances import refused

TAG_SPECIFICATIONS: list[Any] = [
    {"ResourceType": "image", "Tags": [{"Key": "Name", "Value": "image"}]},
    {"ResourceType": "snapshot", "Tags": [{"Key": "Name", "Value": "snapshot"}]},
]


def test_debians_image_is_found_as_on_ec2(ec2: LocalEc2) -> None:
    filters = [
        {"Name": "name", "Values": ["debian-13-amd64-*"]},
        {"Name": "architecture", "Values": ["x86_64"]},
        {"Name": "root-device-type", "Values": ["ebs"]},
        {"Name": "virtualization-type", "Values": ["hvm"]},
    ]
    images = ec2.client().describe_images(Owners=["136693071363"], Filters=filters)["Images"]
    assert [image["Name"] for image in images] == ["debian-13-amd64-20261101-2290"]
    image = images[0]
    assert (image["RootDeviceName"], image["BootMode"]) == ("/dev/xvda", "uefi-preferred")
    assert (image["Public"], image["EnaSupport"], image["State"]) == (True, True, "available")
    ebs = image["BlockDeviceMappings"][0]["Ebs"]
    assert (ebs["VolumeSize"], ebs["VolumeType"]) == (8, "gp3")
    assert image["CreationDate"].startswith("2026-11-01T")


def test_only_images_that_can_be_launched_exist(ec2: LocalEc2) -> None:
    """moto alone: hundreds of Amazon's, of which nothing can be launched."""
    images = ec2.client().describe_images()["Images"]
    assert [image["OwnerId"] for image in images] == ["136693071363"]


def test_an_image_is_made_of_its_instance(ec2: LocalEc2) -> None:
    root = {"VolumeSize": 20, "VolumeType": "gp3", "Throughput": 250}
    instance_id = ec2.launch(BlockDeviceMappings=[{"DeviceName": "/dev/xvda", "Ebs": root}])
    client = ec2.client()
    ec2.stop(instance_id)
    ec2.host.gate.clear()
    image_id = client.create_image(
        InstanceId=instance_id, Name="mine", Description="d", TagSpecifications=TAG_SPECIFICATIONS
    )["ImageId"]
    pending = client.describe_images(ImageIds=[image_id])["Images"][0]
    assert pending["State"] == "pending"
    refused("InvalidAMIID.Unavailable", ec2.launch, ImageId=image_id)
    ec2.host.gate.set()

    image = ec2.wait_for_image(image_id)
    assert image["Tags"] == [{"Key": "Name", "Value": "image"}]
    assert (image["SourceInstanceId"], image["SourceImageId"]) == (instance_id, ec2.image_id)
    assert (image["RootDeviceType"], image["RootDeviceName"]) == ("ebs", "/dev/xvda")
    assert (image["BootMode"], image["EnaSupport"]) == ("uefi-preferred", True)
    assert "ImdsSupport" not in image
    ebs = image["BlockDeviceMappings"][0]["Ebs"]
    assert (ebs["VolumeSize"], ebs["VolumeType"], ebs["Throughput"]) == (20, "gp3", 250)
    snapshots = client.describe_snapshots(OwnerIds=["self"])["Snapshots"]
    assert [snapshot["SnapshotId"] for snapshot in snapshots] == [ebs["SnapshotId"]]
    assert (snapshots[0]["VolumeSize"], snapshots[0]["State"]) == (20, "completed")
    assert snapshots[0]["Tags"] == [{"Key": "Name", "Value": "snapshot"}]

    clone = ec2.launch(ImageId=image_id)
    assert ec2.host.machines[clone].layers == (ec2.host.root / ebs["SnapshotId"], ec2.base.tree)
    assert (
        client.describe_volumes(Filters=[{"Name": "attachment.instance-id", "Values": [clone]}])["Volumes"][
            0
        ]["Size"]
        == 20
    )


def test_a_running_instance_is_stopped_for_it_and_started_again(ec2: LocalEc2) -> None:
    instance_id = ec2.launch()
    image_id = ec2.client().create_image(InstanceId=instance_id, Name="cold")["ImageId"]
    ec2.wait_for_image(image_id)
    until(lambda: ec2.host.calls[-1][0] == "start", "started again")
    assert [call[0] for call in ec2.host.calls] == ["launch", "stop", "freeze", "start"]
    ec2.wait_for(instance_id, "running")
    image_id = ec2.client().create_image(InstanceId=instance_id, Name="hot", NoReboot=True)["ImageId"]
    ec2.wait_for_image(image_id)
    assert ec2.host.calls[4:] == [("freeze", instance_id, "running")]


def test_a_freeze_that_fails_is_told(ec2: LocalEc2) -> None:
    instance_id = ec2.launch()
    ec2.host.broken = "no space left"
    image_id = ec2.client().create_image(InstanceId=instance_id, Name="broken")["ImageId"]
    image = ec2.wait_for_image(image_id, "failed")
    assert "no space left" in image["StateReason"]["Message"]
    assert ec2.wait_for(instance_id, "running")  # and the instance goes on


def test_imds_support_is_kept_and_shown(ec2: LocalEc2) -> None:
    """moto alone: answers true and forgets it."""
    image_id = make_image(ec2, "imds")
    client = ec2.client()
    client.modify_image_attribute(ImageId=image_id, ImdsSupport={"Value": "v2.0"})
    assert client.describe_images(ImageIds=[image_id])["Images"][0]["ImdsSupport"] == "v2.0"
    assert client.describe_images(Filters=[{"Name": "imds-support", "Values": ["v2.0"]}])["Images"]


def test_names_are_checked(ec2: LocalEc2) -> None:
    instance_id = ec2.launch()
    make_image(ec2, "taken", instance_id)
    client = ec2.client()
    refused("InvalidAMIName.Duplicate", client.create_image, InstanceId=instance_id, Name="taken")
    refused("InvalidAMIName.Malformed", client.create_image, InstanceId=instance_id, Name="a:b:c")
    refused("InvalidInstanceID.NotFound", client.create_image, InstanceId="i-0123456789abcdef0", Name="new")
    copy = {"SourceImageId": ec2.image_id, "SourceRegion": "us-east-1"}
    refused("InvalidAMIName.Duplicate", client.copy_image, Name="taken", **copy)


def test_a_snapshot_in_use_stays(ec2: LocalEc2) -> None:
    client = ec2.client()
    image_id = make_image(ec2, "used")
    snapshot_id = client.describe_images(ImageIds=[image_id])["Images"][0]["BlockDeviceMappings"][0]["Ebs"][
        "SnapshotId"
    ]
    refused("InvalidSnapshot.InUse", client.delete_snapshot, SnapshotId=snapshot_id)
    client.deregister_image(ImageId=image_id)
    client.delete_snapshot(SnapshotId=snapshot_id)
    assert client.describe_snapshots(OwnerIds=["self"])["Snapshots"] == []


def test_trees_go_when_nothing_stands_on_them(ec2: LocalEc2) -> None:
    """Image and snapshot go first, the instance launched from it keeps the tree until it ends."""
    client = ec2.client()
    builder = ec2.launch()
    ec2.stop(builder)
    image_id = make_image(ec2, "base", builder)
    mapping = client.describe_images(ImageIds=[image_id])["Images"][0]["BlockDeviceMappings"][0]
    layer = ec2.host.root / mapping["Ebs"]["SnapshotId"]
    clone = ec2.launch(ImageId=image_id)
    client.deregister_image(ImageId=image_id)
    client.delete_snapshot(SnapshotId=mapping["Ebs"]["SnapshotId"])
    client.terminate_instances(InstanceIds=[builder])
    ec2.wait_for(builder, "terminated")
    assert ec2.host.discarded == []
    client.terminate_instances(InstanceIds=[clone])
    ec2.wait_for(clone, "terminated")
    assert ec2.host.discarded == [layer]  # and never the base tree


def test_a_copy_is_launched_from_the_same_trees(ec2: LocalEc2) -> None:
    client = ec2.client()
    copy = client.copy_image(
        SourceImageId=ec2.image_id,
        SourceRegion="us-east-1",
        Name="copy",
        TagSpecifications=TAG_SPECIFICATIONS[:1],
    )["ImageId"]
    image = client.describe_images(ImageIds=[copy])["Images"][0]
    assert image["Tags"] == [{"Key": "Name", "Value": "image"}]
    assert (image["OwnerId"], image["Architecture"], image["SourceImageId"]) == (
        "123456789012", "x86_64", ec2.image_id,
    )  # fmt: skip
    clone = ec2.launch(ImageId=copy)
    assert ec2.host.machines[clone].layers == (ec2.base.tree,)
    client.deregister_image(ImageId=copy, DeleteAssociatedSnapshots=True)
    assert client.describe_snapshots(OwnerIds=["self"])["Snapshots"] == []


def test_a_base_tree_that_is_gone_is_not_offered(ec2: LocalEc2, make_region: Any, tmp_path: Path) -> None:
    old = ec2.image_id
    ec2.service.close()
    ec2.base.tree.rename(tmp_path / "elsewhere")
    ec2.base.tree.mkdir()
    with pytest.raises(ClientError):  # the wrong id first, so that this test can fail
        ec2.client().describe_images(ImageIds=["ami-0123456789abcdef0"])
    assert make_region().image_id == old  # the same tree has the same id at each start


def make_image(ec2: LocalEc2, name: str, instance_id: str | None = None) -> str:
    instance_id = instance_id or ec2.launch()
    image_id = str(ec2.client().create_image(InstanceId=instance_id, Name=name)["ImageId"])
    ec2.wait_for_image(image_id)
    return image_id
