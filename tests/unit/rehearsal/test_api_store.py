"""The books across ``down`` and ``up``, and after a kill."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ingot.rehearsal.api.service import after_resume, expect_resume
from ingot.rehearsal.api.store import StateError, Store
from ingot.rehearsal.model import MachineState

from .conftest import FakeHost, LocalEc2, until

MakeRegion = Callable[..., LocalEc2]


def test_everything_is_there_after_the_next_up(ec2: LocalEc2, make_region: MakeRegion) -> None:
    client = ec2.client()
    client.create_key_pair(KeyName="operator")
    group = client.create_security_group(GroupName="nodes", Description="nodes")["GroupId"]
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "Name", "Value": "head"}]}]
    encrypted = [{"DeviceName": "/dev/xvda", "Ebs": {"Encrypted": True}}]  # needs KMS's own key
    instance_id = ec2.launch(
        KeyName="operator",
        SecurityGroupIds=[group],
        TagSpecifications=tags,
        BlockDeviceMappings=encrypted,
        UserData="#cloud-config\n",
    )
    image_id = client.create_image(InstanceId=instance_id, Name="kept", NoReboot=True)["ImageId"]
    ec2.wait_for_image(image_id)
    template = {"ImageId": image_id, "InstanceType": "m7i.large"}
    client.create_launch_template(LaunchTemplateName="node", LaunchTemplateData=template)
    scaling = {"AutoScalingGroupName": "nodes", "MinSize": 0, "MaxSize": 1, "DesiredCapacity": 0}
    ec2.client("autoscaling").create_auto_scaling_group(
        LaunchTemplate={"LaunchTemplateName": "node"}, AvailabilityZones=["us-east-1a"], **scaling
    )
    ec2.client("ssm").put_parameter(Name="/ingot/channel", Value=image_id, Type="String", Tags=[])
    iam = ec2.client("iam")
    iam.create_role(RoleName="node", AssumeRolePolicyDocument="{}")
    exercise_the_rest(ec2, group)
    ec2.client("cloudwatch").put_metric_data(Namespace="n", MetricData=[{"MetricName": "m", "Value": 1.0}])
    before = ec2.instance(instance_id)
    ec2.service.close()

    again = make_region(ec2.host)
    after = again.instance(instance_id)
    for value in (before, after):
        value.pop("State")
    assert after == before
    image = again.client().describe_images(ImageIds=[image_id])["Images"][0]
    assert (image["Name"], image["State"]) == ("kept", "available")
    assert again.client("ssm").get_parameter(Name="/ingot/channel")["Parameter"]["Value"] == image_id
    assert again.client("iam").get_role(RoleName="node")["Role"]["RoleName"] == "node"
    launched = again.client().run_instances(
        LaunchTemplate={"LaunchTemplateName": "node"}, MinCount=1, MaxCount=1
    )["Instances"][0]
    assert launched["PrivateIpAddress"] not in (before["PrivateIpAddress"], "172.31.0.1")
    again.client("autoscaling").set_desired_capacity(AutoScalingGroupName="nodes", DesiredCapacity=1)
    assert len(list(again.service.region.instances())) == 3  # the group still launches into the same EC2


def exercise_the_rest(ec2: LocalEc2, group: str) -> None:
    """Resources of each kind that Ingot's tools make, so that what cannot be stored shows here."""
    client, iam, watch = ec2.client(), ec2.client("iam"), ec2.client("cloudwatch")
    rule = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "10.0.0.0/8"}]}
    client.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])
    client.allocate_address(Domain="vpc")
    vpc = client.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = client.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/24")["Subnet"]["SubnetId"]
    client.create_network_interface(SubnetId=subnet)
    volume = client.create_volume(Size=1, AvailabilityZone="us-east-1a")["VolumeId"]
    client.create_snapshot(VolumeId=volume)
    document = json.dumps(
        {"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}}
    )
    policy = iam.create_policy(PolicyName="p", PolicyDocument=document)["Policy"]["Arn"]
    iam.attach_role_policy(RoleName="node", PolicyArn=policy)
    iam.put_role_policy(RoleName="node", PolicyName="inline", PolicyDocument=document)
    iam.create_instance_profile(InstanceProfileName="node")
    iam.add_role_to_instance_profile(InstanceProfileName="node", RoleName="node")
    scaling = ec2.client("autoscaling")
    scaling.put_scaling_policy(
        AutoScalingGroupName="nodes", PolicyName="out", AdjustmentType="ChangeInCapacity", ScalingAdjustment=1
    )
    watch.put_metric_alarm(
        AlarmName="queue", ComparisonOperator="GreaterThanThreshold", EvaluationPeriods=1, MetricName="m",
        Namespace="n", Period=60, Statistic="Sum", Threshold=1.0,
    )  # fmt: skip
    ec2.client("sts").assume_role(RoleArn="arn:aws:iam::123456789012:role/node", RoleSessionName="session")
    ec2.client("kms").create_key()


def test_the_router_keeps_its_address(make_region: MakeRegion) -> None:
    """A restored subnet of moto hands out its first address, which is the router's."""
    make_region().service.close()
    ec2 = make_region()
    assert ec2.instance(ec2.launch())["PrivateIpAddress"] == "172.31.0.4"


def test_what_was_answered_outlives_a_kill(ec2: LocalEc2, make_region: MakeRegion) -> None:
    instance_id = ec2.launch(wait=False)
    again = make_region(ec2.host)  # the first was never closed
    assert again.instance(instance_id)["InstanceId"] == instance_id


def test_objects_are_kept_beside_the_books(ec2: LocalEc2, make_region: MakeRegion) -> None:
    s3 = ec2.client("s3")
    s3.create_bucket(Bucket="models")
    s3.put_object(Bucket="models", Key="a/weights", Body=b"w" * 100_000)
    s3.put_object(Bucket="models", Key="b/weights", Body=b"w" * 100_000)
    s3.put_object(Bucket="models", Key="old", Body=b"old")
    ec2.service.close()
    assert (ec2.state / "s3.pickle").stat().st_size < 50_000
    assert len(list((ec2.state / "objects").iterdir())) == 2  # the same content once

    again = make_region()
    s3 = again.client("s3")
    assert s3.get_object(Bucket="models", Key="a/weights")["Body"].read() == b"w" * 100_000
    s3.delete_object(Bucket="models", Key="old")
    until(lambda: len(list((ec2.state / "objects").iterdir())) == 1, "the old content is removed")


@pytest.mark.parametrize("content", [b"", b"not a pickle", b"\x80\x04}\x94."])
def test_books_that_cannot_be_read_are_refused(
    ec2: LocalEc2, make_region: MakeRegion, content: bytes
) -> None:
    ec2.service.close()
    (ec2.state / "api.pickle").write_bytes(content)
    with pytest.raises(StateError) as error:
        make_region()
    assert str(ec2.state / "api.pickle") in str(error.value)
    assert "ingot local down --purge" in str(error.value)
    assert (ec2.state / "api.pickle").read_bytes() == content


def test_a_write_that_fails_leaves_the_last_books(
    ec2: LocalEc2, make_region: MakeRegion, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance_id = ec2.launch()
    ec2.service.close()
    store = Store(ec2.state, threading.RLock())

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fdopen", full)
    with pytest.raises(OSError, match="No space left"):
        store.save()
    monkeypatch.undo()
    assert make_region(ec2.host).instance(instance_id)


def test_after_a_restart_the_books_say_what_is_there(ec2: LocalEc2, make_region: MakeRegion) -> None:
    running, stopped, lost, ending = (ec2.launch() for _ in range(4))
    ec2.service.region.lock.acquire()  # from here on nothing ends
    ec2.service.region.lock.release()
    ec2.host.gate.clear()
    ec2.client().terminate_instances(InstanceIds=[ending])
    image_id = ec2.client().create_image(InstanceId=running, Name="half", NoReboot=True)["ImageId"]

    host = FakeHost(ec2.host.root)
    host.machines = {name: ec2.host.machines[name] for name in (running, stopped, ending)}
    host.machines["i-0orphan"] = ec2.host.machines[running]
    host.states = {running: MachineState.RUNNING, stopped: MachineState.STOPPED}
    again = make_region(host)
    expect_resume(again.service.region)
    assert again.instance(running)["State"]["Name"] == "pending"
    after_resume(again.service.region, [running], list(host.machines))
    assert again.instance(running)["State"]["Name"] == "running"
    assert again.instance(stopped)["State"]["Name"] == "stopped"
    assert "ended while" in again.wait_for(lost, "terminated")["StateReason"]["Message"]
    again.wait_for(ending, "terminated")
    assert again.client().describe_images(ImageIds=[image_id])["Images"][0]["State"] == "failed"
    assert "i-0orphan" not in host.machines
    assert running in host.machines
    ec2.host.gate.set()


def test_saving_while_machines_change_does_not_lock_up(ec2: LocalEc2) -> None:
    """An answer that is saved and a machine's change that is saved once waited for each other."""
    instance_id = ec2.launch()
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            ec2.service.store.save()

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for number in range(10):
            ec2.client().create_tags(Resources=[instance_id], Tags=[{"Key": "n", "Value": str(number)}])
    finally:
        stop.set()
        thread.join(10)
    assert not thread.is_alive()
