"""`ingot channel share`: what is copied, shared and refused, against moto's EC2, KMS and SSM."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.client import BaseClient
from channels import REGION, Region, account

from ingot.channels.sharing import NEEDED, SOURCE_TAG, allows
from ingot.channels.stores import Ssm

FRIEND, OTHER_REGION = "210987654321", "eu-central-1"
OWN = "arn:aws:iam::123456789012:root"


class Aws:
    """What moto lacks of EC2 and KMS: encryption by default, keys of AWS, tags of copies."""

    def __init__(self) -> None:
        self.encrypted: dict[str, str] = {}  # by snapshot
        self.default_key = ""
        self.managed: set[str] = set()
        self.calls: list[str] = []
        self.dies_at = 1000

    def answer(self, send: Callable[..., Any], client: Any, operation: str, arguments: dict[str, Any]) -> Any:
        self.calls.append(operation)
        if len(self.calls) > self.dies_at:
            raise KeyboardInterrupt
        if operation == "GetEbsDefaultKmsKeyId":
            return {"KmsKeyId": self.default_key}
        if operation == "GetEbsEncryptionByDefault":
            return {"EbsEncryptionByDefault": bool(self.default_key)}
        answer = send(client, operation, arguments)
        if operation == "DescribeSnapshots":
            for each in answer["Snapshots"]:
                if key := self.encrypted.get(each["SnapshotId"]):
                    each |= {"Encrypted": True, "KmsKeyId": key}
        if operation == "DescribeKey" and answer["KeyMetadata"]["Arn"] in self.managed:
            answer["KeyMetadata"]["KeyManager"] = "AWS"
        if operation == "CopyImage":  # moto does not tag copies
            tags = arguments["TagSpecifications"][0]["Tags"]
            send(client, "CreateTags", {"Resources": [answer["ImageId"]], "Tags": tags})
        return answer


@pytest.fixture
def region(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Region]:
    yield from account(tmp_path, monkeypatch)


@pytest.fixture
def aws(region: Region, monkeypatch: pytest.MonkeyPatch) -> Aws:
    found = Aws()
    send = BaseClient._make_api_call  # type: ignore[attr-defined]
    monkeypatch.setattr(
        BaseClient, "_make_api_call", lambda client, name, given: found.answer(send, client, name, given)
    )
    return found


def a_key(where: str, *principals: str) -> str:
    """A key that accounts may use."""
    kms: Any = boto3.client("kms", region_name=where)
    statement = {
        "Effect": "Allow",
        "Principal": {"AWS": [OWN, *principals]},
        "Action": "kms:*",
        "Resource": "*",
    }
    return str(kms.create_key(Policy=json.dumps({"Statement": [statement]}))["KeyMetadata"]["Arn"])


def of_aws(aws: Aws, where: str) -> str:
    """The key that AWS makes for EBS: no policy of it lets anybody else in."""
    key = a_key(where)
    aws.managed.add(key)
    return key


def copies(where: str) -> list[dict[str, Any]]:
    ec2: Any = boto3.client("ec2", region_name=where)
    tagged = [{"Name": "tag-key", "Values": [SOURCE_TAG]}]
    found: list[dict[str, Any]] = ec2.describe_images(Owners=["self"], Filters=tagged)["Images"]
    return found


def allowed(where: str, image_id: str) -> set[str]:
    ec2: Any = boto3.client("ec2", region_name=where)
    there = ec2.describe_image_attribute(ImageId=image_id, Attribute="launchPermission")
    return {each["UserId"] for each in there["LaunchPermissions"]}


def test_a_set_is_shared_where_it_is_and_a_second_run_changes_nothing(region: Region, aws: Aws) -> None:
    image_id = region.released()
    said = region.ok("share", "stable", "--account", FRIEND)
    assert f"{image_id} in {REGION} can be launched by {FRIEND}" in said
    assert allowed(REGION, image_id) == {FRIEND}
    before = region.state()
    assert "shared like that already" in region.ok("share", "stable", "--account", FRIEND)
    assert region.state() == before
    assert f"x86 {image_id} for {FRIEND}" in region.ok("list", "--log")
    assert copies(REGION) == []


def test_a_set_is_copied_to_a_region_which_then_has_the_channel(region: Region, aws: Aws) -> None:
    image_id = region.released()
    key = a_key(OTHER_REGION, f"arn:aws:iam::{FRIEND}:root")
    where = ("--region", OTHER_REGION, "--key", key, "--account", FRIEND)
    region.ok("share", "stable", *where)
    (copy,) = copies(OTHER_REGION)
    told = {tag["Key"]: tag["Value"] for tag in copy["Tags"]}
    assert (told[SOURCE_TAG], told["ingot:image"]) == (image_id, "x86")
    assert allowed(OTHER_REGION, copy["ImageId"]) == {FRIEND}
    assert allowed(REGION, image_id) == set(), "what was not asked for is not shared"
    there = Ssm(boto3.client("ssm", region_name=OTHER_REGION))
    assert there.pointers("stable") == {"x86": copy["ImageId"]}
    region.ok("share", "stable", *where)
    assert len(copies(OTHER_REGION)) == 1


def _encrypt(aws: Aws, region: Region, key: str) -> None:
    for image_id in region.holds("stable").values():
        aws.encrypted |= dict.fromkeys(region.snapshots(image_id), key)


def _by_default(aws: Aws, key: str) -> None:
    aws.default_key = key


REFUSED: dict[str, tuple[str, Callable[[Region, Aws], Any], list[str]]] = {
    "neither account nor region": ("nothing-to-share", lambda r, a: None, []),
    "an account that is none": ("bad-account", lambda r, a: None, ["--account", "me"]),
    "a region that is not there": ("no-such-region", lambda r, a: None, ["--region", "eu-middle-7"]),
    "a key that is not there": (
        "no-such-key",
        lambda r, a: None,
        ["--region", OTHER_REGION, "--key", "alias/none"],
    ),
    "images encrypted with a key of AWS": (
        f"image-not-shareable: in {REGION}",
        lambda r, a: _encrypt(a, r, of_aws(a, REGION)),
        ["--account", FRIEND],
    ),
    "copies that would get the default key of AWS": (
        f"image-not-shareable: in {OTHER_REGION}",
        lambda r, a: _by_default(a, of_aws(a, OTHER_REGION)),
        ["--account", FRIEND, "--region", OTHER_REGION],
    ),
    "a key whose policy names another account": (
        f"key-not-shared: the policy of .* does not let {FRIEND} use it",
        lambda r, a: _encrypt(a, r, a_key(REGION, "arn:aws:iam::999999999999:root")),
        ["--account", FRIEND],
    ),
    "a key that is to be deleted": (
        "key-not-usable: .* is PendingDeletion",
        lambda r, a: _encrypt(a, r, _deleted()),
        ["--account", FRIEND],
    ),
}


def _deleted() -> str:
    key = a_key(REGION, f"arn:aws:iam::{FRIEND}:root")
    boto3.client("kms", region_name=REGION).schedule_key_deletion(KeyId=key.rpartition("/")[2])
    return key


@pytest.mark.planted("sharing", check=lambda name: REFUSED[name][0].partition(":")[0])
@pytest.mark.parametrize("name", REFUSED)
def test_what_could_be_launched_by_nobody_is_refused_before_anything_is_copied(
    region: Region,
    aws: Aws,
    name: str,
) -> None:
    region.released()
    refusal, plant, arguments = REFUSED[name]
    plant(region, aws)
    said = " ".join(region.refused("share", "stable", *arguments).split())
    assert re.search(refusal, said), said
    assert not {"CopyImage", "ModifyImageAttribute"} & set(aws.calls)


def test_an_empty_channel_is_not_shared(region: Region, aws: Aws) -> None:
    assert "channel-empty: beta is empty" in region.refused("share", "beta", "--account", FRIEND)


@pytest.mark.parametrize("dies_at", range(4, 24, 3))
def test_killed_at_any_call_it_completes_when_it_is_run_again(region: Region, aws: Aws, dies_at: int) -> None:
    region.released("candidate")
    where = ("--region", OTHER_REGION, "--account", FRIEND)
    aws.calls.clear()
    aws.dies_at = dies_at
    region.run("share", "candidate", *where)
    aws.dies_at = 1000
    region.ok("share", "candidate", *where)
    (copy,) = copies(OTHER_REGION)
    assert allowed(OTHER_REGION, copy["ImageId"]) == {FRIEND}
    records = Ssm(region.ssm).log("candidate")
    assert [json.loads(record)["action"] for record in records] == ["promote", "share"]


@pytest.mark.parametrize(
    ("statement", "good"),
    [
        ({"Principal": {"AWS": f"arn:aws:iam::{FRIEND}:root"}, "Action": "kms:*"}, True),
        ({"Principal": {"AWS": [FRIEND]}, "Action": [*NEEDED[:3], "kms:ReEncrypt*", "kms:Gen*"]}, True),
        ({"Principal": "*", "Action": "kms:*"}, True),
        ({"Principal": {"AWS": f"arn:aws:iam::{FRIEND}:root"}, "Action": "kms:Decrypt"}, False),
        ({"Principal": {"AWS": OWN}, "Action": "kms:*"}, False),
        ({"Principal": {"AWS": FRIEND}, "Action": "kms:*", "Effect": "Deny"}, False),
        ({"Principal": {"Service": "ec2.amazonaws.com"}, "Action": "kms:*"}, False),
    ],
)  # fmt: skip
def test_what_a_policy_allows(statement: dict[str, Any], good: bool) -> None:
    assert allows({"Statement": [{"Effect": "Allow", **statement}]}, FRIEND) is good
