"""Instance types: their real vCPU and memory, and what of it the local machine gets.

moto ships the answers of DescribeInstanceTypes for all types, so that table is not repeated here.
"""

from __future__ import annotations

from dataclasses import dataclass

from moto.ec2.models.instance_types import INSTANCE_TYPES

from ingot.rehearsal.api import errors

MIB = 1024 * 1024


@dataclass(frozen=True)
class InstanceSize:
    """What EC2 gives to an instance of one type."""

    name: str
    vcpus: int
    memory_bytes: int
    architectures: tuple[str, ...]

    def require(self, architecture: str) -> None:
        """Refuse an image of another architecture, in EC2's words."""
        if architecture not in self.architectures:
            raise errors.architecture_mismatch(self.architectures[0], architecture)


def instance_size(name: str) -> InstanceSize:
    """Look up one instance type.

    Raises:
        EC2ClientError: EC2 has no such type (``InvalidParameterValue``, as RunInstances says it).
    """
    data = INSTANCE_TYPES.get(name)
    if data is None:
        raise errors.unknown_instance_type(name)
    return InstanceSize(
        name=name,
        vcpus=int(data["VCpuInfo"]["DefaultVCpus"]),
        memory_bytes=int(data["MemoryInfo"]["SizeInMiB"]) * MIB,
        architectures=tuple(a for a in data["ProcessorInfo"]["SupportedArchitectures"] if a != "i386"),
    )
