"""What moto alone gets wrong. When one of these fails, moto has learnt it and the mend can go."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import boto3
import moto
import pytest
from moto.ec2 import urls
from moto.ec2.models import EC2Backend, ec2_backends
from moto.ec2.responses import EC2Response

from .conftest import forget_moto


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(ec2_backends, "backend", EC2Backend)
    monkeypatch.setitem(urls.url_paths, "{0}/", EC2Response.dispatch)
    monkeypatch.setitem(os.environ, "MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
    forget_moto()
    with moto.mock_aws():
        yield boto3.client("ec2", region_name="us-east-1")


def launch(client: Any, **options: Any) -> str:
    options = {"ImageId": "ami-0123456789abcdef0", "MinCount": 1, "MaxCount": 1} | options
    return str(client.run_instances(**options)["Instances"][0]["InstanceId"])


def test_it_launches_what_does_not_exist(client: Any) -> None:
    launch(client, InstanceType="m7i.tiny", KeyName="nobody")


def test_it_launches_the_least_number(client: Any) -> None:
    assert len(client.run_instances(ImageId="ami-1", MinCount=1, MaxCount=3)["Instances"]) == 1


def test_transitions_are_immediate(client: Any) -> None:
    instance_id = launch(client)
    client.stop_instances(InstanceIds=[instance_id])
    states = client.describe_instance_status(InstanceIds=[instance_id], IncludeAllInstances=True)
    assert states["InstanceStatuses"][0]["InstanceState"]["Name"] == "stopped"


def test_snapshot_tags_break_create_image(client: Any) -> None:
    tags = [{"ResourceType": "snapshot", "Tags": [{"Key": "a", "Value": "b"}]}]
    with pytest.raises(NotImplementedError):
        client.create_image(InstanceId=launch(client), Name="image", TagSpecifications=tags)


def test_an_image_has_nothing_of_its_instance(client: Any) -> None:
    root = [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 20, "VolumeType": "gp3"}}]
    instance_id = launch(client, BlockDeviceMappings=root)
    image_id = client.create_image(InstanceId=instance_id, Name="image")["ImageId"]
    client.create_image(InstanceId=instance_id, Name="image")  # the same name again
    client.modify_image_attribute(ImageId=image_id, ImdsSupport={"Value": "v2.0"})
    image = client.describe_images(ImageIds=[image_id])["Images"][0]
    assert image["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] == 15
    assert image["BlockDeviceMappings"][0]["Ebs"]["VolumeType"] == "standard"
    assert image["RootDeviceType"] == "standard"
    assert "ImdsSupport" not in image
    assert "EnaSupport" not in image


def test_throughput_of_a_volume_is_lost(client: Any) -> None:
    launch(
        client,
        BlockDeviceMappings=[
            {"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 20, "VolumeType": "gp3", "Throughput": 500}}
        ],
    )
    assert "Throughput" not in client.describe_volumes()["Volumes"][0]


def test_a_templates_metadata_options_are_lost(client: Any) -> None:
    client.create_launch_template(
        LaunchTemplateName="node",
        LaunchTemplateData={"ImageId": "ami-1", "MetadataOptions": {"InstanceMetadataTags": "enabled"}},
    )
    launched = client.run_instances(LaunchTemplate={"LaunchTemplateName": "node"}, MinCount=1, MaxCount=1)
    assert launched["Instances"][0]["MetadataOptions"]["InstanceMetadataTags"] == "disabled"


def test_changing_one_metadata_option_sets_the_others_back(client: Any) -> None:
    instance_id = launch(client, MetadataOptions={"HttpPutResponseHopLimit": 3})
    changed = client.modify_instance_metadata_options(InstanceId=instance_id, HttpEndpoint="enabled")
    assert changed["InstanceMetadataOptions"]["HttpPutResponseHopLimit"] == 1


def test_termination_protection_at_launch_is_lost(client: Any) -> None:
    instance_id = launch(client, DisableApiTermination=True)
    client.terminate_instances(InstanceIds=[instance_id])


def test_the_console_is_invented(client: Any) -> None:
    assert "Linux version 2.6.16" in client.get_console_output(InstanceId=launch(client))["Output"]


def test_a_key_pair_is_not_deleted_by_its_id(client: Any) -> None:
    pair_id = client.create_key_pair(KeyName="operator")["KeyPairId"]
    client.delete_key_pair(KeyPairId=pair_id)
    assert client.describe_key_pairs()["KeyPairs"]


def test_snapshots_of_all_owners_are_shown(client: Any) -> None:
    volume = client.create_volume(Size=1, AvailabilityZone="us-east-1a")["VolumeId"]
    client.create_snapshot(VolumeId=volume)
    assert client.describe_snapshots(OwnerIds=["111111111111"])["Snapshots"]


def test_interfaces_of_terminated_instances_stay(client: Any) -> None:
    client.terminate_instances(InstanceIds=[launch(client)])
    assert client.describe_network_interfaces()["NetworkInterfaces"]
