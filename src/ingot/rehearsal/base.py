"""Base trees: what an official AMI is in EC2, made by mmdebstrap into the cache."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from ingot.rehearsal.config import Settings


class BaseTree(BaseModel):
    """A finished root tree in the cache, and what the AMI made of it is called."""

    model_config = ConfigDict(frozen=True)

    tree: Path  # the root tree itself: the one layer of the base AMI
    key: str  # hash of the inputs
    architecture: str  # "x86_64" or "arm64"
    ami_name: str  # debian-13-amd64-<date>-<serial>
    owner: str
    created: str  # ISO 8601, UTC
    default_user: str


def installed(settings: Settings) -> list[BaseTree]:
    """Base trees that the cache holds for today's inputs: the daemon registers each as an AMI."""
    raise NotImplementedError
