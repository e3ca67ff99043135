"""The metadata service: who is answered, with what, and in which form."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from werkzeug.test import Client, TestResponse

from ingot.rehearsal.metadata import MetadataService

from .conftest import LocalEc2

TTL = "X-aws-ec2-metadata-token-ttl-seconds"
TOKEN = "X-aws-ec2-metadata-token"


class Machine:
    """A caller of the metadata service at one address."""

    def __init__(self, service: MetadataService, address: str) -> None:
        self._client = Client(service)
        self._environ = {"REMOTE_ADDR": address}
        self.token = ""

    def put(self, path: str = "/latest/api/token", **headers: str) -> TestResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()} or {TTL: "60"}
        return self._client.put(path, headers=named, environ_overrides=self._environ)

    def get(self, path: str, token: str | None = None) -> TestResponse:
        if not self.token:
            self.token = self.put().text
        headers = {TOKEN: self.token if token is None else token}
        return self._client.get(path, headers=headers, environ_overrides=self._environ)

    def text(self, path: str) -> str:
        response = self.get(f"/latest/{path}")
        assert response.status_code == 200, path
        return response.text


@pytest.fixture
def instance_id(ec2: LocalEc2) -> str:
    ec2.client().import_key_pair(KeyName="operator", PublicKeyMaterial=PUBLIC_KEY.encode())
    return ec2.launch(
        KeyName="operator",
        UserData="#cloud-config\nhostname: ü\n",
        MetadataOptions={"InstanceMetadataTags": "enabled"},
        TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": "ingot:role", "Value": "head"}]}],
    )


@pytest.fixture
def machine(ec2: LocalEc2, instance_id: str) -> Iterator[Machine]:
    yield Machine(ec2.service.metadata, ec2.instance(instance_id)["PrivateIpAddress"])


def test_without_a_token_nothing_is_said(machine: Machine) -> None:
    assert machine.get("/latest/meta-data/", token="").status_code == 401
    assert machine.get("/latest/user-data", token="invented").status_code == 401


@pytest.mark.parametrize("ttl", ["", "0", "21601", "soon"])
def test_a_token_needs_a_lifetime(machine: Machine, ttl: str) -> None:
    assert machine.put(**{TTL.replace("-", "_"): ttl}).status_code == 400


def test_a_token_is_not_given_through_a_proxy(machine: Machine) -> None:
    headers = {TTL.replace("-", "_"): "60", "X_Forwarded_For": "10.0.0.1"}
    assert machine.put(**headers).status_code == 403


def test_a_token_ends(ec2: LocalEc2, instance_id: str) -> None:
    now = [0.0]
    service = MetadataService(ec2.service.region, clock=lambda: now[0])
    machine = Machine(service, ec2.instance(instance_id)["PrivateIpAddress"])
    assert machine.get("/latest/meta-data/").status_code == 200
    now[0] = 61
    assert machine.get("/latest/meta-data/").status_code == 401


def test_a_token_is_its_instances_own(ec2: LocalEc2, machine: Machine) -> None:
    machine.get("/latest/")
    other = Machine(ec2.service.metadata, ec2.instance(ec2.launch())["PrivateIpAddress"])
    assert other.get("/latest/meta-data/", token=machine.token).status_code == 401


def test_a_stranger_is_not_answered(ec2: LocalEc2) -> None:
    assert Machine(ec2.service.metadata, "172.31.200.200").put().status_code == 404


def test_what_it_says_is_what_the_api_says(ec2: LocalEc2, instance_id: str, machine: Machine) -> None:
    shown = ec2.instance(instance_id)
    interface = shown["NetworkInterfaces"][0]
    mac = interface["MacAddress"]
    expected = {
        "ami-id": shown["ImageId"],
        "instance-id": instance_id,
        "instance-type": "m7i.large",
        "local-ipv4": shown["PrivateIpAddress"],
        "local-hostname": shown["PrivateDnsName"],
        "mac": mac,
        "placement/availability-zone": shown["Placement"]["AvailabilityZone"],
        "placement/region": "us-east-1",
        "services/domain": "amazonaws.com",
        "security-groups": "default",
        "block-device-mapping/root": "/dev/xvda",
        f"network/interfaces/macs/{mac}/interface-id": interface["NetworkInterfaceId"],
        f"network/interfaces/macs/{mac}/subnet-id": shown["SubnetId"],
        f"network/interfaces/macs/{mac}/local-ipv4s": shown["PrivateIpAddress"],
        f"network/interfaces/macs/{mac}/security-groups": "default",
        "tags/instance/ingot:role": "head",
        "events/maintenance/scheduled": "[]",
    }
    for path, value in expected.items():
        assert machine.text(f"meta-data/{path}") == value, path
    document = json.loads(machine.text("dynamic/instance-identity/document"))
    assert (document["instanceId"], document["accountId"]) == (instance_id, "123456789012")
    assert document["architecture"] == "x86_64"


def test_directories_are_listed_as_by_ec2(machine: Machine) -> None:
    assert "2021-03-23" in machine.get("/").text.split("\n")
    assert machine.text("").split("\n") == ["dynamic/", "meta-data/", "user-data"]
    names = machine.text("meta-data/").split("\n")
    assert "instance-id" in names
    assert "network/" in names
    assert machine.get("/2021-03-23/meta-data/instance-id").status_code == 200
    assert machine.get("/2001-01-01/meta-data/instance-id").status_code == 404
    assert machine.get("/latest/meta-data/spot/instance-action").status_code == 404
    assert machine.get("/latest/meta-data/instance-id/more").status_code == 404


def test_keys_have_the_form_that_cloud_init_reads(ec2: LocalEc2, machine: Machine) -> None:
    assert machine.text("meta-data/public-keys/") == "0=operator"
    assert machine.text("meta-data/public-keys/0/") == "openssh-key"
    assert machine.text("meta-data/public-keys/0/openssh-key") == PUBLIC_KEY
    ec2.client().delete_key_pair(KeyName="operator")  # the launch's key stays with the instance
    assert machine.text("meta-data/public-keys/0/openssh-key") == PUBLIC_KEY


def test_user_data_is_bytes(ec2: LocalEc2, machine: Machine) -> None:
    assert machine.get("/latest/user-data").data == "#cloud-config\nhostname: ü\n".encode()
    raw = bytes(range(256))
    instance_id = ec2.client().run_instances(
        ImageId=ec2.image_id, InstanceType="m7i.large", MinCount=1, MaxCount=1, UserData=raw
    )["Instances"][0]["InstanceId"]
    other = Machine(ec2.service.metadata, ec2.instance(instance_id)["PrivateIpAddress"])
    assert other.get("/latest/user-data").data == raw
    without = Machine(ec2.service.metadata, ec2.instance(ec2.launch())["PrivateIpAddress"])
    assert without.get("/latest/user-data").status_code == 404


def test_a_new_tag_is_seen_at_once(ec2: LocalEc2, instance_id: str, machine: Machine) -> None:
    ec2.client().create_tags(Resources=[instance_id], Tags=[{"Key": "state", "Value": "new"}])
    assert machine.text("meta-data/tags/instance/state") == "new"
    without = Machine(ec2.service.metadata, ec2.instance(ec2.launch())["PrivateIpAddress"])
    assert without.get("/latest/meta-data/tags/").status_code == 404


def test_it_can_be_turned_off(ec2: LocalEc2, instance_id: str, machine: Machine) -> None:
    ec2.client().modify_instance_metadata_options(InstanceId=instance_id, HttpEndpoint="disabled")
    assert machine.put().status_code == 403
    ec2.client().modify_instance_metadata_options(InstanceId=instance_id, HttpEndpoint="enabled")
    assert machine.put().status_code == 200


def test_a_role_has_credentials(ec2: LocalEc2) -> None:
    iam: Any = ec2.client("iam")
    iam.create_role(RoleName="node", AssumeRolePolicyDocument="{}")
    iam.create_instance_profile(InstanceProfileName="profile")
    iam.add_role_to_instance_profile(InstanceProfileName="profile", RoleName="node")
    instance_id = ec2.launch(IamInstanceProfile={"Name": "profile"})
    machine = Machine(ec2.service.metadata, ec2.instance(instance_id)["PrivateIpAddress"])
    info = json.loads(machine.text("meta-data/iam/info"))
    assert info["InstanceProfileArn"].endswith("instance-profile/profile")
    assert machine.text("meta-data/iam/security-credentials/") == "node"
    credentials = json.loads(machine.text("meta-data/iam/security-credentials/node"))
    assert credentials["Code"] == "Success"
    assert credentials["AccessKeyId"].startswith("ASIA")


def test_a_spot_notice_is_announced(ec2: LocalEc2, instance_id: str, machine: Machine) -> None:
    client = Client(ec2.service.endpoint)
    assert client.post(f"/_ingot/spot-notice/{instance_id}").status_code == 200
    notice = json.loads(machine.text("meta-data/spot/instance-action"))
    assert notice["action"] == "terminate"
    assert machine.text("meta-data/spot/termination-time") == notice["time"]
    assert client.post("/_ingot/spot-notice/i-0").status_code == 404


def test_an_address_is_the_instances_that_has_it_now(
    ec2: LocalEc2, instance_id: str, machine: Machine
) -> None:
    address = ec2.instance(instance_id)["PrivateIpAddress"]
    ec2.client().terminate_instances(InstanceIds=[instance_id])
    ec2.wait_for(instance_id, "terminated")
    assert machine.put().status_code == 404
    successor = ec2.launch(PrivateIpAddress=address)
    assert Machine(ec2.service.metadata, address).text("meta-data/instance-id") == successor


PUBLIC_KEY = (
    "ssh-ed25519 "
    + base64.b64encode(b"\x00\x00\x00\x0bssh-ed25519\x00\x00\x00\x20" + bytes(range(32))).decode()
    + " operator"
)
