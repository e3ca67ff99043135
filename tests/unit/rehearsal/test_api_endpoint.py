"""The endpoint beside EC2: the mirror, the record of calls, and what is shut."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest
from botocore.exceptions import ClientError
from werkzeug.test import Client

from ingot.rehearsal.api.calls import iam_actions, operation, short_agent, signed_service
from ingot.rehearsal.api.mirror import Mirror

from .conftest import LocalEc2


@pytest.fixture
def mirror(tmp_path: Path) -> Client:
    root = tmp_path / "content"
    (root / "wheels").mkdir(parents=True)
    (root / "wheels" / "a+b-1.0-py3-none-any.whl").write_bytes(b"0123456789")
    (tmp_path / "secret").write_text("secret")
    return Client(Mirror(root, "/_mirror/"))


def test_a_directory_is_a_list_of_links(mirror: Client) -> None:
    assert '<a href="wheels/">wheels/</a>' in mirror.get("/_mirror/").text
    page = mirror.get("/_mirror/wheels/").text
    assert '<a href="a%2Bb-1.0-py3-none-any.whl">a+b-1.0-py3-none-any.whl</a>' in page
    assert mirror.get("/_mirror/wheels").headers["Location"].endswith("/_mirror/wheels/")


def test_files_come_whole_and_in_parts(mirror: Client) -> None:
    url = "/_mirror/wheels/a%2Bb-1.0-py3-none-any.whl"
    assert mirror.get(url).data == b"0123456789"
    part = mirror.get(url, headers={"Range": "bytes=2-4"})
    assert (part.status_code, part.data) == (206, b"234")
    etag = mirror.get(url).headers["ETag"]
    assert mirror.get(url, headers={"If-None-Match": etag}).status_code == 304


@pytest.mark.parametrize("path", ["../secret", "%2e%2e/secret", "wheels/../../secret", "nothing"])
def test_nothing_else_can_be_read(mirror: Client, path: str) -> None:
    assert mirror.get(f"/_mirror/{path}").status_code == 404


def test_the_mirror_is_read_only(mirror: Client) -> None:
    assert mirror.put("/_mirror/wheels/x", data=b"x").status_code == 405


def test_motos_own_api_is_shut(ec2: LocalEc2) -> None:
    client = Client(ec2.service.endpoint)
    instance_id = ec2.launch()
    assert client.post("/moto-api/reset").status_code == 404
    assert ec2.instance(instance_id)
    with urllib.request.urlopen(f"{ec2.url}/_ingot/ready") as answer:
        assert json.load(answer) == {"ready": True}


def test_calls_are_recorded_by_caller(ec2: LocalEc2) -> None:
    ec2.launch(TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": "a", "Value": "b"}]}])
    ec2.client("sts").get_caller_identity()
    ec2.client("s3").create_bucket(Bucket="models")
    ec2.client("s3").put_object(Bucket="models", Key="k", Body=b"")
    ec2.client("ssm").describe_parameters()
    ec2.client("cloudwatch").list_metrics()
    calls = json.loads((ec2.state / "calls.json").read_text())
    assert set(calls["Boto3"]) >= {
        "ec2:RunInstances", "ec2:CreateTags", "ec2:DescribeInstances", "sts:GetCallerIdentity",
        "s3:CreateBucket", "s3:PutObject", "ssm:DescribeParameters", "cloudwatch:ListMetrics",
    }  # fmt: skip


def test_the_log_says_why_a_call_was_refused(ec2: LocalEc2, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="ingot")
    with pytest.raises(ClientError):
        ec2.launch(ImageId="ami-0123456789abcdef0")
    with pytest.raises(ClientError):
        ec2.client("ssm").get_parameter(Name="/nothing")
    assert "ec2:RunInstances 400 InvalidAMIID.NotFound" in caplog.text
    assert "ssm:GetParameter 400 ParameterNotFound" in caplog.text


def test_what_a_call_needs_in_iam() -> None:
    body = "Action=RunInstances&TagSpecification.1.ResourceType=instance&IamInstanceProfile.Name=node"
    needed = ["ec2:RunInstances", "ec2:CreateTags", "iam:PassRole"]
    assert iam_actions("ec2", "RunInstances", body) == needed
    assert iam_actions("ec2", "CreateTags", "Action=CreateTags&Tag.1.Key=a") == ["ec2:CreateTags"]
    assert iam_actions("monitoring", "PutMetricData") == ["cloudwatch:PutMetricData"]


def test_the_operation_of_a_request() -> None:
    header = "AWS4-HMAC-SHA256 Credential=AKIA/20261130/us-east-1/ec2/aws4_request, SignedHeaders=host"
    assert signed_service(header) == "ec2"
    assert signed_service("") is None
    assert operation("ec2", "POST", "/", "Action=RunInstances&Version=2016-11-15", "") == "RunInstances"
    assert operation("ssm", "POST", "/", "{}", "AmazonSSM.GetParameter") == "GetParameter"
    assert operation("s3", "GET", "/bucket/key", "", "") == "GetObject"
    assert operation("s3", "GET", "/bucket", "", "") == "ListBucket"


def test_callers_are_named_without_versions() -> None:
    packer = "APN/1.0 HashiCorp/1.0 packer-plugin-amazon/1.8.1 (+https://www.packer.io/) aws-sdk-go-v2/1.3"
    assert short_agent(packer) == "packer-plugin-amazon"
    assert short_agent("Boto3/1.40 md/Botocore#1.40 ua/2.1 os/linux") == "Boto3"
    assert (
        short_agent("Boto3/1.40 ua/2.1 os/linux cfg/retry-mode#legacy app/ingot-ray-head") == "ingot-ray-head"
    )
    assert short_agent("") == "unknown"
