"""Copies of a set in other regions, and who may launch them.

What AWS refuses or, worse, lets happen and fails at the other end is asked first: an image that is encrypted
with a key of AWS can be launched by nobody else, and a copy without a key gets the region's default one
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/sharingamis-explicit.html).
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ingot.channels.moves import tags
from ingot.channels.pruning import snapshots_of
from ingot.channels.records import ImageSet
from ingot.preflight.refusal import Refusal

SOURCE_TAG = "ingot:copied-from"
KEY_TAG = "ingot:copied-with"
#: What another account does with the key of an image that it launches.
NEEDED = ("kms:DescribeKey", "kms:CreateGrant", "kms:Decrypt", "kms:ReEncryptFrom", "kms:GenerateDataKey")
ACCOUNT = re.compile(r"\d{12}")


@dataclass(frozen=True)
class Wanted:
    """With which accounts a set is shared, from which region; ``key`` encrypts copies that are made there."""

    accounts: tuple[str, ...]
    region: str
    home: str
    key: str = ""

    @property
    def copied(self) -> bool:
        """Whether the images themselves are not enough."""
        return self.region != self.home or bool(self.key)


class Region:
    """The account in one region: what images there are encrypted with, and the copies that are there."""

    def __init__(self, ec2: Any, kms: Any) -> None:
        self.ec2, self.kms = ec2, kms

    def snapshot_keys(self, image: Mapping[str, Any]) -> list[str]:
        """The keys of an image's snapshots; empty where none is encrypted."""
        found = self.ec2.describe_snapshots(SnapshotIds=list(snapshots_of(image)))["Snapshots"]
        return sorted({str(each.get("KmsKeyId", "")) for each in found if each.get("Encrypted")})

    def default_key(self) -> str:
        """The key of a copy that names none; empty where such a copy is not encrypted."""
        if not self.ec2.get_ebs_encryption_by_default()["EbsEncryptionByDefault"]:
            return ""
        return str(self.ec2.get_ebs_default_kms_key_id()["KmsKeyId"])

    def key(self, key: str) -> dict[str, Any] | None:
        """What KMS says of a key by id, ARN or alias; None if there is no such one."""
        try:
            found: dict[str, Any] = self.kms.describe_key(KeyId=key)["KeyMetadata"]
        except self.kms.exceptions.NotFoundException:
            return None
        return found

    def policy(self, key: str) -> dict[str, Any]:
        """The policy of a key."""
        found: dict[str, Any] = json.loads(self.kms.get_key_policy(KeyId=key, PolicyName="default")["Policy"])
        return found

    def copies(self, wanted: Wanted, images: ImageSet) -> dict[str, str]:
        """Copies that are there, by what they were copied from."""
        named = [{"Name": f"tag:{SOURCE_TAG}", "Values": images.image_ids}]
        pages = self.ec2.get_paginator("describe_images").paginate(Owners=["self"], Filters=named)
        return {
            tags(image)[SOURCE_TAG]: image["ImageId"]
            for page in pages
            for image in page["Images"]
            if tags(image).get(KEY_TAG, "") == wanted.key
        }

    def copy(self, wanted: Wanted, image: Mapping[str, Any]) -> str:
        """Begin to copy an image here; its id. The token lets a call that is made twice make one copy."""
        source = image["ImageId"]
        kept = {**tags(image), SOURCE_TAG: source, **({KEY_TAG: wanted.key} if wanted.key else {})}
        tagged = [{"Key": name, "Value": value} for name, value in kept.items() if name[:4] != "aws:"]
        encrypted = {"Encrypted": True, "KmsKeyId": wanted.key} if wanted.key else {}
        made = self.ec2.copy_image(
            SourceImageId=source,
            SourceRegion=wanted.home,
            Name=image["Name"] if wanted.region != wanted.home else f"{image['Name']}-copy",
            Description=image.get("Description", ""),
            ClientToken=f"{source}-{wanted.region}-{wanted.key}"[-64:],
            TagSpecifications=[{"ResourceType": kind, "Tags": tagged} for kind in ("image", "snapshot")],
            **encrypted,
        )
        return str(made["ImageId"])

    def share(self, image_id: str, accounts: Sequence[str]) -> list[str]:
        """Let accounts launch an image; those that could not before."""
        there = self.ec2.describe_image_attribute(ImageId=image_id, Attribute="launchPermission")
        allowed = {each.get("UserId") for each in there["LaunchPermissions"]}
        new = [account for account in accounts if account not in allowed]
        if new:
            self.ec2.modify_image_attribute(
                ImageId=image_id, LaunchPermission={"Add": [{"UserId": account} for account in new]}
            )
        return new


def check_wanted(accounts: Sequence[str], regions: Sequence[str], known: Sequence[str]) -> Iterator[Refusal]:
    """What can be said before anything of the set is asked; ``known``: the regions that the account has."""
    if not accounts and not regions:
        yield Refusal(
            "nothing-to-share", "neither an account nor a region was named", "Give --account or --region"
        )
    for account in accounts:
        if not ACCOUNT.fullmatch(account):
            yield Refusal("bad-account", f"{account!r} is no account", "Give its number, 12 digits")
    for region in regions:
        if region not in known:
            yield Refusal(
                "no-such-region", f"this account has no region {region}", f"One of {', '.join(sorted(known))}"
            )


def check(
    wanted: Wanted, images: Mapping[str, Mapping[str, Any]], source: Region, target: Region
) -> list[Refusal]:
    """What would make the images, or their copies, of no use to those accounts."""
    if not wanted.copied:
        keys = {key for image in images.values() for key in source.snapshot_keys(image)}
    else:
        keys = {wanted.key or target.default_key()} - {""}
        inherited = {key for image in images.values() for key in source.snapshot_keys(image)}
        if inherited and not keys:  # a copy of what is encrypted is, with the default key
            keys = {str(target.ec2.get_ebs_default_kms_key_id()["KmsKeyId"])}
    found: list[Refusal] = []
    for key in sorted(keys):
        found += check_key(wanted, key, target)
    return found


def check_key(wanted: Wanted, key: str, target: Region) -> Iterator[Refusal]:
    """One key, by which an image would be encrypted in the region."""
    where = f"in {wanted.region}"
    of = target.key(key)
    if of is None:
        yield Refusal(
            "no-such-key", f"there is no key {key} {where}", "Name one of that region: --key alias/ingot"
        )
        return
    if of["KeyState"] != "Enabled":
        yield Refusal(
            "key-not-usable", f"key {key} {where} is {of['KeyState']}", "Enable it, or name another: --key"
        )
        return
    if not wanted.accounts:
        return
    if of["KeyManager"] == "AWS":
        yield Refusal(
            "image-not-shareable",
            f"{where} the images would be encrypted with {key}, a key of AWS, which no other account can use",
            "Share a copy with a key of your own: --key alias/ingot",
        )
        return
    lacking = [account for account in wanted.accounts if not allows(target.policy(of["KeyId"]), account)]
    if lacking:
        yield Refusal(
            "key-not-shared",
            f"the policy of {key} {where} does not let {', '.join(lacking)} use it",
            f"Allow arn:aws:iam::{lacking[0]}:root {', '.join(NEEDED)}",
        )


def allows(policy: Mapping[str, Any], account: str) -> bool:
    """Whether a key's policy lets an account do all that a launch needs. Conditions are not read."""
    granted: list[str] = []
    for statement in policy.get("Statement", []):
        principals = statement.get("Principal", {})
        named = ["*"] if principals == "*" else _list(principals.get("AWS", []))
        if statement["Effect"] == "Allow" and any(_names(principal, account) for principal in named):
            granted += _list(statement.get("Action", []))
    return all(
        any(fnmatch.fnmatchcase(need.lower(), action.lower()) for action in granted) for need in NEEDED
    )


def _names(principal: str, account: str) -> bool:
    return (
        principal in ("*", account)
        or re.fullmatch(rf"arn:aws[\w-]*:iam::{account}:.*", principal) is not None
    )


def _list(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)
