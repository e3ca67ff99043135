"""Versions of launch templates, as tools rely on that ask whether anything changed, or that clean up."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from .conftest import LocalEc2

DATA: dict[str, Any] = {
    "InstanceType": "m7i.large",
    "TagSpecifications": [{"ResourceType": "volume", "Tags": [{"Key": "a", "Value": "b"}]}],
}


@pytest.fixture
def client(ec2: LocalEc2) -> Any:
    client = ec2.client()
    client.create_launch_template(
        LaunchTemplateName="node",
        LaunchTemplateData=DATA,
        TagSpecifications=[{"ResourceType": "launch-template", "Tags": [{"Key": "c", "Value": "d"}]}],
    )
    return client


def numbers(client: Any) -> list[int]:
    answer = client.describe_launch_template_versions(LaunchTemplateName="node")
    return [version["VersionNumber"] for version in answer["LaunchTemplateVersions"]]


def test_a_calls_own_tags_are_no_part_of_the_template(client: Any) -> None:
    """moto alone: they are, so that the same call seems to bring a new version each time."""
    client.create_launch_template_version(LaunchTemplateName="node", LaunchTemplateData=DATA)
    first, second = client.describe_launch_template_versions(LaunchTemplateName="node")[
        "LaunchTemplateVersions"
    ]
    assert first["LaunchTemplateData"] == second["LaunchTemplateData"] == DATA
    assert client.describe_launch_templates()["LaunchTemplates"][0]["Tags"] == [{"Key": "c", "Value": "d"}]


def test_versions_keep_their_numbers_when_others_are_deleted(client: Any) -> None:
    """moto alone: not in it, and a version is found by its place in the list."""
    for _ in range(2):
        client.create_launch_template_version(LaunchTemplateName="node", LaunchTemplateData=DATA)
    client.modify_launch_template(LaunchTemplateName="node", DefaultVersion="3")
    gone = client.delete_launch_template_versions(LaunchTemplateName="node", Versions=["1"])
    assert [v["VersionNumber"] for v in gone["SuccessfullyDeletedLaunchTemplateVersions"]] == [1]
    assert numbers(client) == [2, 3]
    client.create_launch_template_version(LaunchTemplateName="node", LaunchTemplateData=DATA)
    assert numbers(client) == [2, 3, 4]
    shown = client.describe_launch_template_versions(LaunchTemplateName="node", Versions=["$Default"])
    assert shown["LaunchTemplateVersions"][0]["VersionNumber"] == 3


@pytest.mark.parametrize("version", ["1", "7"])
def test_the_default_version_and_an_unknown_one_are_not_deleted(client: Any, version: str) -> None:
    with pytest.raises(ClientError):
        client.delete_launch_template_versions(LaunchTemplateName="node", Versions=[version])
    assert numbers(client) == [1]
