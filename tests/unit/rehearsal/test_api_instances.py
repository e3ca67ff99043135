"""Instances of the local EC2: their states are their machines', and wrong calls get EC2's own answers."""

from __future__ import annotations

import base64
import time
from typing import Any

import pytest
from botocore.exceptions import ClientError
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ingot.rehearsal.cli import kept_key
from ingot.rehearsal.control import ControlError
from ingot.rehearsal.model import MachineState

from .conftest import LocalEc2, until


def refused(code: str, call: Any, **options: Any) -> str:
    """Make a call that must be refused with a code; returns the message."""
    with pytest.raises(ClientError) as error:
        call(**options)
    assert error.value.response["Error"]["Code"] == code, error.value
    assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400  # SDKs retry a 500
    return str(error.value.response["Error"]["Message"])


def test_states_follow_the_machine(ec2: LocalEc2) -> None:
    ec2.host.gate.clear()
    instance_id = ec2.launch(wait=False)
    assert ec2.instance(instance_id)["State"] == {"Name": "pending", "Code": 0}
    ec2.host.gate.set()
    ec2.wait_for(instance_id, "running")

    ec2.host.gate.clear()
    changes = ec2.client().stop_instances(InstanceIds=[instance_id])["StoppingInstances"]
    assert changes[0]["PreviousState"]["Name"] == "running"
    assert changes[0]["CurrentState"]["Name"] == "stopping"
    assert ec2.instance(instance_id)["State"]["Name"] == "stopping"
    ec2.host.gate.set()
    ec2.wait_for(instance_id, "stopped")

    ec2.host.gate.clear()
    ec2.client().start_instances(InstanceIds=[instance_id])
    assert ec2.instance(instance_id)["State"]["Name"] == "pending"
    ec2.host.gate.set()
    ec2.wait_for(instance_id, "running")

    ec2.host.gate.clear()
    ec2.client().terminate_instances(InstanceIds=[instance_id])
    ending = ec2.instance(instance_id)
    assert ending["State"]["Name"] == "shutting-down"
    assert ending["PrivateIpAddress"]  # its address is not free before its machine is gone
    ec2.host.gate.set()
    ec2.wait_for(instance_id, "terminated")
    assert ec2.host.machines == {}


def test_the_machine_is_what_the_api_says(ec2: LocalEc2) -> None:
    instance_id = ec2.launch(InstanceType="m7i.xlarge")
    shown = ec2.instance(instance_id)
    machine = ec2.host.machines[instance_id]
    assert machine.private_ip == shown["PrivateIpAddress"]
    assert machine.mac == shown["NetworkInterfaces"][0]["MacAddress"]
    assert (machine.vcpus, machine.memory_bytes) == (4, 16 * 2**30 * 0.5)
    assert machine.layers == (ec2.base.tree,)
    assert machine.prefix_length == 16
    assert shown["PrivateDnsName"].split(".")[0] == machine.hostname
    assert "PublicIpAddress" not in shown  # nothing would answer there
    assert shown["RootDeviceName"] == "/dev/xvda"
    assert shown["EnaSupport"] is True
    assert shown["MetadataOptions"]["HttpTokens"] == "required"


def test_a_machine_that_ends_by_itself_is_noticed(ec2: LocalEc2) -> None:
    stopper, ender, killed = (
        ec2.launch(),
        ec2.launch(InstanceInitiatedShutdownBehavior="terminate"),
        ec2.launch(),
    )
    ec2.host.states[stopper] = ec2.host.states[ender] = MachineState.STOPPED
    del ec2.host.states[killed]
    assert ec2.wait_for(stopper, "stopped")["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"
    ec2.wait_for(ender, "terminated")
    assert ec2.wait_for(killed, "terminated")["StateReason"]["Code"] == "Server.InternalError"


def test_no_capacity_leaves_nothing_booked(ec2: LocalEc2) -> None:
    ec2.host.capacity = 1
    first = ec2.launch()
    message = refused("InsufficientInstanceCapacity", ec2.launch)
    assert "MiB" in message
    reservations = ec2.client().describe_instances()["Reservations"]
    assert [i["InstanceId"] for r in reservations for i in r["Instances"]] == [first]
    assert len(ec2.client().describe_network_interfaces()["NetworkInterfaces"]) == 1
    assert len(ec2.client().describe_volumes()["Volumes"]) == 1


def test_as_many_as_there_is_room_for(ec2: LocalEc2) -> None:
    ec2.host.capacity = 2
    launched = ec2.client().run_instances(
        ImageId=ec2.image_id, InstanceType="m7i.large", MinCount=1, MaxCount=3
    )
    assert len(launched["Instances"]) == 2
    assert len(ec2.host.machines) == 2


def test_too_few_are_taken_back(ec2: LocalEc2) -> None:
    ec2.host.capacity = 2
    refused("InsufficientInstanceCapacity", ec2.launch, MinCount=3, MaxCount=3)
    until(lambda: not ec2.host.machines, "machines are gone")


def test_a_launch_that_fails_says_why(ec2: LocalEc2) -> None:
    ec2.host.broken = "init exited with 1; see the console log"
    instance_id = ec2.launch(wait=False)
    ended = ec2.wait_for(instance_id, "terminated")
    assert "init exited with 1" in ended["StateReason"]["Message"]


def test_wrong_launches_are_refused_as_by_ec2(ec2: LocalEc2) -> None:
    refused("InvalidAMIID.NotFound", ec2.launch, ImageId="ami-0123456789abcdef0")
    refused("InvalidAMIID.Malformed", ec2.launch, ImageId="debian")
    message = refused("InvalidParameterValue", ec2.launch, InstanceType="c7g.large")
    assert "The architecture 'arm64' of the specified instance type does not match" in message
    message = refused("InvalidParameterValue", ec2.launch, InstanceType="m7i.tiny")
    assert message == "Invalid value 'm7i.tiny' for InstanceType."
    refused("InvalidKeyPair.NotFound", ec2.launch, KeyName="nobody")
    refused("InvalidGroup.NotFound", ec2.launch, SecurityGroupIds=["sg-0123456789abcdef0"])
    small = [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 4}}]
    message = refused("InvalidBlockDeviceMapping", ec2.launch, BlockDeviceMappings=small)
    assert message.endswith("expect size >= 8GB")
    refused("InvalidParameterValue", ec2.launch, UserData="x" * 16385)
    refused("InvalidParameterValue", ec2.launch, MinCount=2, MaxCount=1)
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "a/b", "Value": "c"}]}]
    options = {"InstanceMetadataTags": "enabled"}
    refused("InvalidParameterValue", ec2.launch, TagSpecifications=tags, MetadataOptions=options)
    assert ec2.host.machines == {}
    assert ec2.client().describe_instances()["Reservations"] == []


def test_a_launch_outside_the_default_vpc_is_refused(ec2: LocalEc2) -> None:
    vpc = ec2.client().create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.client().create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/24")["Subnet"]["SubnetId"]
    assert "default VPC" in refused("UnsupportedOperation", ec2.launch, SubnetId=subnet)


def test_wrong_states_are_refused_as_by_ec2(ec2: LocalEc2) -> None:
    client = ec2.client()
    refused("InvalidInstanceID.NotFound", client.stop_instances, InstanceIds=["i-0123456789abcdef0"])
    ec2.host.gate.clear()
    instance_id = ec2.launch(wait=False)
    refused("IncorrectInstanceState", client.stop_instances, InstanceIds=[instance_id])
    refused("IncorrectInstanceState", client.reboot_instances, InstanceIds=[instance_id])
    ec2.host.gate.set()
    ec2.wait_for(instance_id, "running")
    client.terminate_instances(InstanceIds=[instance_id])
    ec2.wait_for(instance_id, "terminated")
    refused("IncorrectInstanceState", client.start_instances, InstanceIds=[instance_id])
    again = client.terminate_instances(InstanceIds=[instance_id])["TerminatingInstances"][0]
    assert again["PreviousState"]["Name"] == again["CurrentState"]["Name"] == "terminated"


def test_terminating_while_it_boots_ends_it(ec2: LocalEc2) -> None:
    ec2.host.gate.clear()
    instance_id = ec2.launch(wait=False)
    ec2.client().terminate_instances(InstanceIds=[instance_id])
    ec2.host.gate.set()
    ec2.wait_for(instance_id, "terminated")
    assert [call[0] for call in ec2.host.calls] == ["launch", "terminate"]


def test_termination_protection(ec2: LocalEc2) -> None:
    instance_id = ec2.launch(DisableApiTermination=True)
    refused("OperationNotPermitted", ec2.client().terminate_instances, InstanceIds=[instance_id])
    assert instance_id in ec2.host.machines


def test_a_retried_call_launches_once(ec2: LocalEc2) -> None:
    first, second = ec2.launch(ClientToken="once"), ec2.launch(ClientToken="once")
    assert first == second
    assert len(ec2.host.machines) == 1


def test_volumes_are_as_asked_for(ec2: LocalEc2) -> None:
    """moto alone: an 8 GiB gp2 volume on /dev/sda1 beside the root volume, without throughput."""
    root = {"VolumeSize": 40, "VolumeType": "gp3", "Throughput": 500, "Iops": 4000, "Encrypted": True}
    mappings = [{"DeviceName": "/dev/xvda", "Ebs": root}]
    instance_id = ec2.launch(BlockDeviceMappings=mappings)
    volumes = ec2.client().describe_volumes()["Volumes"]
    assert len(volumes) == 1
    assert (volumes[0]["Size"], volumes[0]["VolumeType"]) == (40, "gp3")
    assert (volumes[0]["Throughput"], volumes[0]["Iops"], volumes[0]["Encrypted"]) == (500, 4000, True)
    devices = ec2.instance(instance_id)["BlockDeviceMappings"]
    assert [device["DeviceName"] for device in devices] == ["/dev/xvda"]
    assert devices[0]["Ebs"]["DeleteOnTermination"] is True


def test_a_mapping_may_leave_the_size_to_the_image(ec2: LocalEc2) -> None:
    """moto alone: MissingParameter."""
    ec2.launch(BlockDeviceMappings=[{"DeviceName": "/dev/xvda", "Ebs": {"VolumeType": "gp3"}}])
    assert ec2.client().describe_volumes()["Volumes"][0]["Size"] == 8


def test_what_a_machine_cannot_follow_is_refused(ec2: LocalEc2) -> None:
    """moto alone: books it."""
    more = [{"DeviceName": "/dev/xvdb", "Ebs": {"VolumeSize": 10}}]
    refused("UnsupportedOperation", ec2.launch, BlockDeviceMappings=more)
    instance_id, client = ec2.launch(), ec2.client()
    volume = client.create_volume(Size=1, AvailabilityZone="us-east-1a")["VolumeId"]
    attach = {"InstanceId": instance_id, "VolumeId": volume, "Device": "/dev/xvdb"}
    refused("UnsupportedOperation", client.attach_volume, **attach)
    change = {"InstanceId": instance_id, "InstanceType": {"Value": "m7i.xlarge"}}
    refused("UnsupportedOperation", client.modify_instance_attribute, **change)
    assert ec2.instance(instance_id)["InstanceType"] == "m7i.large"


def test_status_checks_tell_the_truth(ec2: LocalEc2) -> None:
    """moto alone: always ok."""
    ec2.host.answers = False
    instance_id = ec2.launch()

    def checks() -> tuple[str, str]:
        status = ec2.client().describe_instance_status(InstanceIds=[instance_id])["InstanceStatuses"][0]
        return status["SystemStatus"]["Status"], status["InstanceStatus"]["Status"]

    assert checks() == ("ok", "initializing")
    next(ec2.service.region.instances()).running_since -= 600
    assert checks() == ("ok", "impaired")
    ec2.host.answers = True
    assert checks() == ("ok", "ok")


def test_the_console_is_the_machines(ec2: LocalEc2) -> None:
    """moto alone: the same sample for all."""
    answer = ec2.client().get_console_output(InstanceId=ec2.launch())
    assert "Debian GNU/Linux 13 login:" in answer["Output"]


def test_a_launch_template_is_merged(ec2: LocalEc2) -> None:
    """moto alone: the instance lacks the template's metadata options, profile, volumes and their tags."""
    client, iam = ec2.client(), ec2.client("iam")
    client.create_key_pair(KeyName="operator")
    iam.create_role(RoleName="node", AssumeRolePolicyDocument="{}")
    iam.create_instance_profile(InstanceProfileName="node")
    iam.add_role_to_instance_profile(InstanceProfileName="node", RoleName="node")
    group = client.create_security_group(GroupName="cluster", Description="nodes")["GroupId"]
    client.create_launch_template(
        LaunchTemplateName="node",
        LaunchTemplateData={
            "ImageId": ec2.image_id,
            "InstanceType": "m7i.large",
            "KeyName": "operator",
            "SecurityGroupIds": [group],
            "UserData": base64.b64encode(b"#cloud-config\n").decode(),
            "IamInstanceProfile": {"Name": "node"},
            "MetadataOptions": {"InstanceMetadataTags": "enabled", "HttpPutResponseHopLimit": 2},
            "BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 30}}],
            "TagSpecifications": [
                {"ResourceType": "instance", "Tags": [{"Key": "ingot:cluster", "Value": "one"}]},
                {"ResourceType": "volume", "Tags": [{"Key": "ingot:cluster", "Value": "one"}]},
            ],
        },
    )
    launched = client.run_instances(
        LaunchTemplate={"LaunchTemplateName": "node"},
        MinCount=2,
        MaxCount=2,
        TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": "ingot:role", "Value": "worker"}]}],
    )["Instances"]
    for instance_id in [instance["InstanceId"] for instance in launched]:
        shown = ec2.wait_for(instance_id, "running")
        assert shown["InstanceType"] == "m7i.large"
        assert shown["KeyName"] == "operator"
        assert [g["GroupId"] for g in shown["SecurityGroups"]] == [group]
        assert shown["IamInstanceProfile"]["Arn"].endswith("instance-profile/node")
        assert shown["MetadataOptions"]["InstanceMetadataTags"] == "enabled"
        assert shown["MetadataOptions"]["HttpPutResponseHopLimit"] == 2
        tags = {tag["Key"]: tag["Value"] for tag in shown["Tags"]}
        assert (tags["ingot:cluster"], tags["ingot:role"]) == ("one", "worker")
        volume = client.describe_volumes(
            Filters=[{"Name": "attachment.instance-id", "Values": [instance_id]}]
        )["Volumes"]
        assert [v["Size"] for v in volume] == [30]
        assert volume[0]["Tags"] == [{"Key": "ingot:cluster", "Value": "one"}]


def test_autoscaling_makes_and_ends_machines(ec2: LocalEc2) -> None:
    ec2.client().create_launch_template(
        LaunchTemplateName="node",
        LaunchTemplateData={"ImageId": ec2.image_id, "InstanceType": "m7i.large"},
    )
    scaling = ec2.client("autoscaling")
    scaling.create_auto_scaling_group(
        AutoScalingGroupName="nodes",
        LaunchTemplate={"LaunchTemplateName": "node", "Version": "$Latest"},
        MinSize=0,
        MaxSize=3,
        DesiredCapacity=2,
        AvailabilityZones=["us-east-1a"],
    )
    until(lambda: list(ec2.host.states.values()) == [MachineState.RUNNING] * 2, "two machines run")
    scaling.set_desired_capacity(AutoScalingGroupName="nodes", DesiredCapacity=1)
    until(lambda: len(ec2.host.machines) == 1, "one machine is left")


def test_metadata_options_change_one_at_a_time(ec2: LocalEc2) -> None:
    """moto alone: changing one sets the others back."""
    instance_id = ec2.launch(MetadataOptions={"HttpPutResponseHopLimit": 3})
    client = ec2.client()
    client.modify_instance_metadata_options(InstanceId=instance_id, InstanceMetadataTags="enabled")
    options = ec2.instance(instance_id)["MetadataOptions"]
    assert (options["HttpPutResponseHopLimit"], options["InstanceMetadataTags"]) == (3, "enabled")
    modify = client.modify_instance_metadata_options
    refused("UnsupportedOperation", modify, InstanceId=instance_id, HttpTokens="optional")


def test_user_data_can_be_read_back(ec2: LocalEc2) -> None:
    instance_id = ec2.launch(UserData="#cloud-config\n")
    answer = ec2.client().describe_instance_attribute(InstanceId=instance_id, Attribute="userData")
    assert base64.b64decode(answer["UserData"]["Value"]) == b"#cloud-config\n"


def test_instance_types_have_their_real_sizes(ec2: LocalEc2) -> None:
    wanted = {
        "c7i.large": (2, 4096),
        "m7i.2xlarge": (8, 32768),
        "t3.medium": (2, 4096),
        "c7g.4xlarge": (16, 32768),
        "r8g.xlarge": (4, 32768),
        "inf2.xlarge": (4, 16384),
    }
    types = ec2.client().describe_instance_types(InstanceTypes=list(wanted))["InstanceTypes"]
    sizes = {t["InstanceType"]: (t["VCpuInfo"]["DefaultVCpus"], t["MemoryInfo"]["SizeInMiB"]) for t in types}
    assert sizes == wanted


def test_a_terminated_instance_is_forgotten_after_a_while(ec2: LocalEc2) -> None:
    instance_id = ec2.launch()
    ec2.client().terminate_instances(InstanceIds=[instance_id])
    ec2.wait_for(instance_id, "terminated")
    next(ec2.service.region.instances()).terminated_at = time.time() - 1000
    assert ec2.client().describe_instances()["Reservations"] == []


def test_private_keys_are_kept_for_ssh(ec2: LocalEc2) -> None:
    material = ec2.client().create_key_pair(KeyName="a/b", KeyType="ed25519")["KeyMaterial"]
    instance_id = ec2.launch(wait=False, KeyName="a/b")
    path = kept_key(ec2.state, ec2.instance(instance_id))
    assert path and path.read_text() == material
    assert path.parent == ec2.state / "keys"
    assert [p.stat().st_mode & 0o777 for p in (path, path.parent)] == [0o600, 0o700]
    assert kept_key(ec2.state, ec2.instance(ec2.launch(wait=False))) is None


@pytest.mark.parametrize("by", ["KeyName", "KeyPairId"])
def test_a_deleted_key_pairs_private_key_goes_with_it(ec2: LocalEc2, by: str) -> None:
    pair = ec2.client().create_key_pair(KeyName="operator")
    instance_id = ec2.launch(wait=False, KeyName="operator")
    ec2.client().delete_key_pair(**{by: pair[by]})
    assert ec2.client().describe_key_pairs()["KeyPairs"] == []
    assert list((ec2.state / "keys").iterdir()) == []
    with pytest.raises(ControlError, match="deleted since"):
        kept_key(ec2.state, ec2.instance(instance_id))


def test_an_unknown_key_pair_is_deleted_by_name_and_refused_by_id(ec2: LocalEc2) -> None:
    ec2.client().delete_key_pair(KeyName="nobody")
    refused("InvalidKeyPair.NotFound", ec2.client().delete_key_pair, KeyPairId="key-0123456789abcdef0")


def test_an_imported_key_pair_needs_its_file_named(ec2: LocalEc2) -> None:
    public_key = Ed25519PrivateKey.generate().public_key()
    material = public_key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    ec2.client().import_key_pair(KeyName="mine", PublicKeyMaterial=material)
    instance_id = ec2.launch(wait=False, KeyName="mine")
    with pytest.raises(ControlError, match=rf"{instance_id} .* 'mine', .* it was imported, .* --key FILE"):
        kept_key(ec2.state, ec2.instance(instance_id))


def test_calls_that_moto_lacks_are_refused_in_xml(ec2: LocalEc2) -> None:
    refused("UnsupportedOperation", ec2.client().describe_capacity_reservations)
