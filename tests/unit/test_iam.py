"""The IAM policies: well-formed, no more than read-only on everything, and held against the calls seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ingot import iam

POLICIES = sorted(iam.POLICIES.glob("*.json"))


def statements(policy: Path) -> list[dict[str, Any]]:
    return list(json.loads(policy.read_text(encoding="utf-8"))["Statement"])


@pytest.mark.parametrize("policy", POLICIES, ids=lambda path: path.stem)
def test_a_policy_is_sorted_and_has_no_wildcard(policy: Path) -> None:
    for statement in statements(policy):
        assert statement["Action"] == sorted(statement["Action"]), statement["Sid"]
    allowed = iam.actions(policy)
    assert len(set(allowed)) == len(allowed)
    assert not [action for action in allowed if "*" in action]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda path: path.stem)
def test_what_ends_something_is_allowed_on_ingots_own_only(policy: Path) -> None:
    ending = ("ec2:Delete", "ec2:Terminate", "ec2:Stop")
    for statement in statements(policy):
        if any(action.startswith(ending) for action in statement["Action"]):
            assert "ingot:" in json.dumps(statement.get("Condition", {})), statement["Sid"]


def test_calls_that_the_policies_allow_bring_no_complaint() -> None:
    calls = {
        "Packer": ["ec2:RunInstances", "ec2:CreateTags", "sts:GetCallerIdentity"],
        "Ansible": ["ec2:CreateLaunchTemplate", "ec2:runinstances"],
    }
    assert iam.complaints(calls) == []


def test_a_call_that_its_policy_lacks_is_named_with_its_caller() -> None:
    calls = {
        "Packer": ["ec2:CopyImage"],
        "Ansible": ["ec2:CreateVpc", "ec2:DescribeImages"],
        "ingot-ray-head": ["ec2:RunInstances", "ec2:DescribeImages"],
    }
    assert iam.complaints(calls) == [
        "deploy.json does not allow ec2:CreateVpc, which Ansible called",
        "packer.json does not allow ec2:CopyImage, which Packer called",
        "ray-head.json does not allow ec2:DescribeImages, which ingot-ray-head called",
    ]


def test_what_somebody_tried_out_before_is_not_held_against_the_policies() -> None:
    tried = {"Boto3": ["iam:CreateRole", "ec2:DescribeImages"]}
    now = {"Boto3": [*tried["Boto3"], "ec2:CopyImage"], "Ansible": ["ec2:CreateLaunchTemplate"]}
    assert iam.complaints(iam.since(tried, now)) == [
        "deploy.json does not allow ec2:CopyImage, which Boto3 called"
    ]
