"""An EC2 client of a local region, for who is outside of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingot.rehearsal.network import Network


class InsideClient:
    """A boto3 client whose calls are made in the region's network namespace: only there is its endpoint."""

    def __init__(self, client: Any, network: Network) -> None:
        self._client = client
        self._network = network

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._client, name)
        if not callable(attribute):
            return attribute
        return lambda **arguments: self._network.call(lambda: attribute(**arguments))


def ec2_client(environment: Mapping[str, str], network: Network) -> Any:
    """EC2 as a command with this environment sees it."""
    import boto3  # takes a third of a second, which a refusal need not pay
    from botocore.config import Config

    client = boto3.client(
        "ec2",
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        region_name=environment["AWS_REGION"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        # No network in between that could lose a call: what fails would fail again.
        config=Config(retries={"total_max_attempts": 1}),
    )
    return InsideClient(client, network)
