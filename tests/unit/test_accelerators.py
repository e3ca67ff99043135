"""The table of accelerators says what EC2 says, and what it does not support is named."""

from __future__ import annotations

from typing import Any

import pytest
from moto.ec2.models.instance_types import INSTANCE_TYPES  # what DescribeInstanceTypes answers

from ingot import accelerators, instance_types

KNOWN = instance_types.load()
ACCELERATED = [name for name, kind in KNOWN.items() if kind.accelerator]


@pytest.mark.parametrize("name", ACCELERATED)
def test_every_accelerated_type_is_known_or_refused_with_a_reason(name: str) -> None:
    device = accelerators.gpu_of(name) or accelerators.neuron_of(name)
    assert (device is None) == bool(accelerators.unsupported(name))
    if device:
        assert device.name.lower() == KNOWN[name].accelerator


def devices(kind: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        *(kind.get("GpuInfo") or {}).get("Gpus", []),
        *(kind.get("InferenceAcceleratorInfo") or {}).get("Accelerators", []),
    ]
    return found


@pytest.mark.parametrize("name", [name for name in ACCELERATED if not accelerators.unsupported(name)])
def test_the_table_agrees_with_ec2(name: str) -> None:
    device = accelerators.gpu_of(name) or accelerators.neuron_of(name)
    assert device
    (told,) = devices(INSTANCE_TYPES[name])
    assert (device.name, device.count, device.memory_mib) == (
        told["Name"],
        told["Count"],
        told["MemoryInfo"]["SizeInMiB"],
    )
    if isinstance(device, accelerators.Neuron):
        (chip,) = INSTANCE_TYPES[name]["NeuronInfo"]["NeuronDevices"]
        assert device.cores == chip["CoreInfo"]["Count"]


def test_no_type_of_a_known_family_is_missing() -> None:
    table = accelerators.load()
    families = {family for gpu in table.gpus.values() for family in gpu.families}
    families |= {family for chip in table.neuron.values() for family in chip.families}
    told = {name for name in INSTANCE_TYPES if instance_types.family(name) in families}
    assert told == {name for name in ACCELERATED if instance_types.family(name) in families}


@pytest.mark.parametrize(
    ("name", "gpu", "generation", "capability", "gib", "count", "nvswitch"),
    [
        ("g4dn.xlarge", "T4", "turing", "7.5", 16, 1, False),
        ("g5.48xlarge", "A10G", "ampere", "8.6", 22.35, 8, False),
        ("g6.xlarge", "L4", "ada", "8.9", 22.35, 1, False),
        ("g6e.12xlarge", "L40S", "ada", "8.9", 44.70, 4, False),
        ("p4d.24xlarge", "A100", "ampere", "8.0", 40, 8, True),
        ("p4de.24xlarge", "A100", "ampere", "8.0", 80, 8, True),
        ("p5.48xlarge", "H100", "hopper", "9.0", 80, 8, True),
        ("p5.4xlarge", "H100", "hopper", "9.0", 80, 1, False),
        ("p5en.48xlarge", "H200", "hopper", "9.0", 141, 8, True),
        ("p6-b200.48xlarge", "B200", "blackwell", "10.0", 179.06, 8, True),
    ],
)
def test_each_gpu(
    name: str, gpu: str, generation: str, capability: str, gib: float, count: int, nvswitch: bool
) -> None:
    found = accelerators.gpu_of(name)
    assert found and accelerators.neuron_of(name) is None
    assert (found.name, found.generation, found.compute_capability) == (gpu, generation, capability)
    assert found.memory_gib == pytest.approx(gib, abs=0.01)
    assert (found.count, found.nvswitch) == (count, nvswitch)


@pytest.mark.parametrize(
    ("name", "chips", "cores"),
    [("inf2.xlarge", 1, 2), ("inf2.8xlarge", 1, 2), ("inf2.24xlarge", 6, 12), ("inf2.48xlarge", 12, 24)],
)
def test_each_inferentia2(name: str, chips: int, cores: int) -> None:
    found = accelerators.neuron_of(name)
    assert found and accelerators.gpu_of(name) is None
    assert (found.name, found.count, found.total_cores, found.memory_gib) == ("Inferentia2", chips, cores, 32)


@pytest.mark.parametrize("name", ["m7i.large", "c8g.48xlarge", "g5.3xlarge", "mystery", ""])
def test_what_has_none_or_is_unknown(name: str) -> None:
    assert accelerators.gpu_of(name) is None
    assert accelerators.neuron_of(name) is None
    assert accelerators.unsupported(name) == ""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("trn1.32xlarge", "2.28.1"),
        ("trn1n.32xlarge", "2.28.1"),
        ("trn2.48xlarge", "2.31"),
        ("inf1.xlarge", "2.21"),
        ("g7e.2xlarge", "driver"),
        ("g6f.large", "fraction"),
        ("p3.2xlarge", "7.0"),
    ],
)
def test_what_no_image_is_for_has_a_reason(name: str, said: str) -> None:
    assert said in accelerators.unsupported(name)
    assert accelerators.gpu_of(name) is None
    assert accelerators.neuron_of(name) is None


def test_the_types_with_a_device_come_smallest_first() -> None:
    assert accelerators.types_of("H100") == ["p5.4xlarge", "p5.48xlarge"]
    assert accelerators.types_of("Inferentia2")[0] == "inf2.xlarge"
    assert accelerators.types_of("V100") == []
