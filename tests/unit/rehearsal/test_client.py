"""The EC2 client for who is outside of a region: every call of it goes from inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from botocore.exceptions import ClientError

from ingot.rehearsal.client import ec2_client
from ingot.rehearsal.network import Network

from .conftest import LocalEc2


class FakeNetwork:
    """Counts the calls that were made in the region's namespace."""

    def __init__(self) -> None:
        self.calls = 0

    def call(self, function: Callable[[], Any]) -> Any:
        self.calls += 1
        return function()


@pytest.fixture
def network() -> FakeNetwork:
    return FakeNetwork()


@pytest.fixture
def client(ec2: LocalEc2, network: FakeNetwork) -> Any:
    environment = {
        "AWS_ENDPOINT_URL": ec2.url,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
    }
    return ec2_client(environment, cast(Network, network))


def test_each_call_goes_from_inside_the_region(client: Any, network: FakeNetwork, ec2: LocalEc2) -> None:
    assert client.describe_images(Owners=["136693071363"])["Images"][0]["ImageId"] == ec2.image_id
    assert client.describe_instances()["Reservations"] == []
    assert network.calls == 2


def test_what_is_no_call_is_answered_where_it_is_asked(client: Any, network: FakeNetwork) -> None:
    assert client.meta.region_name == "us-east-1"
    assert network.calls == 0


def test_a_refused_call_is_made_once(client: Any, network: FakeNetwork, ec2: LocalEc2) -> None:
    ec2.host.capacity = 0
    options = {"ImageId": ec2.image_id, "InstanceType": "m7i.large", "MinCount": 1, "MaxCount": 1}
    with pytest.raises(ClientError, match="InsufficientInstanceCapacity"):
        client.run_instances(**options)
    assert [call for call, *_ in ec2.host.calls].count("launch") == 1
    assert network.calls == 1
