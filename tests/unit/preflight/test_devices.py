"""A model against the memory of what it would compute on; each defect planted."""

from __future__ import annotations

from typing import Any

import pytest
from refusals import MODEL, names

from ingot import images, instance_types, models, sizing
from ingot.images import Image
from ingot.preflight import devices, fit
from ingot.preflight.refusal import Refusal

HOST = sizing.Host(cores=4, memory_bytes=16 * sizing.GIB)


@pytest.fixture
def check(catalog: models.Catalog) -> Any:
    def _check(type_name: str, accelerator: str, model: str = MODEL, **serving: Any) -> list[Refusal]:
        variables = {"serving_mode": "vllm", **serving}
        return devices.check_memory(
            f"instance type {type_name}",
            type_name,
            accelerator,
            HOST,
            model,
            catalog.models[model],
            variables,
        )

    return _check


@pytest.mark.parametrize(
    ("type_name", "accelerator"),
    [("m7i.xlarge", ""), ("g5.xlarge", "nvidia"), ("inf2.xlarge", "neuron"), ("", "nvidia")],
)
def test_what_fits_is_let_through(check: Any, type_name: str, accelerator: str) -> None:
    assert check(type_name, accelerator) == []


def test_the_memory_of_the_device_counts_and_not_the_hosts(check: Any) -> None:
    (refusal,) = check("g5.xlarge", "nvidia", "big/model")
    assert refusal.name == "model-does-not-fit"
    assert "each of 1 A10G needs" in refusal.why and "140.00 GiB weights" in refusal.why
    assert "It would fit" in refusal.do
    offered = refusal.do.rpartition("It would fit ")[2].split(", ")
    assert offered and all(check(name, "nvidia", "big/model") == [] for name in offered)


def test_what_fits_nowhere_says_so_by_saying_nothing(check: Any) -> None:
    (refusal,) = check("inf2.xlarge", "neuron", "big/model")
    assert refusal.name == "model-does-not-fit"
    assert "It would fit" not in refusal.do, "9 heads are divided by no degree but 1, and 140 GiB fit no core"


@pytest.mark.parametrize(
    ("serving", "name"),
    [
        ({"serving_max_model_len": 10**6}, "sizing-contradicts"),
        ({"serving_engine_flags": {"tensor-parallel-size": 2}}, "sizing-contradicts"),
        ({"serving_engine_flags": {"gpu-memory-utilization": 0.1}}, "model-does-not-fit"),
    ],
)
def test_what_is_set_is_held_against_the_model(check: Any, serving: dict[str, Any], name: str) -> None:
    assert names(check("g5.12xlarge", "nvidia", **serving)) == [name]


def test_a_batch_too_large_for_a_core_is_refused(check: Any) -> None:
    assert check("inf2.xlarge", "neuron", serving_max_num_seqs=32) == []
    assert names(check("inf2.xlarge", "neuron", serving_max_num_seqs=128)) == ["model-does-not-fit"]


@pytest.mark.parametrize(
    ("type_name", "accelerator"),
    [("m7i.large", "nvidia"), ("inf2.xlarge", "nvidia"), ("g5.xlarge", "neuron")],
)
def test_of_a_type_without_the_device_the_memory_is_not_judged(
    check: Any, type_name: str, accelerator: str
) -> None:
    """That it has none is refused by itself."""
    assert check(type_name, accelerator, "big/model") == []


ROW = images.load().images["x86"].model_dump()
TABLE = images.load().images | {
    "gpu": Image.model_validate(
        ROW | {"accelerator": "nvidia", "roles": ["base", "nvidia", "image_hygiene"]}
    ),
}
NEURON = {
    "inf2": Image.model_validate(
        ROW | {"accelerator": "neuron", "roles": ["base", "neuron", "image_hygiene"]}
    )
}


def device(type_name: str, image: str, table: dict[str, Image] = TABLE | NEURON) -> list[Refusal]:
    return devices.check_device(
        f"instance type {type_name}", type_name, f"ami-1 ({image})", table[image], table
    )


@pytest.mark.parametrize(
    ("type_name", "image"),
    [
        ("m7i.large", "x86"),
        ("c7g.large", "graviton3"),
        ("g5.xlarge", "gpu"),
        ("p5.48xlarge", "gpu"),
        ("inf2.xlarge", "inf2"),
        ("m9z.large", "x86"),
        ("", "gpu"),
    ],
)
def test_an_image_on_what_it_is_for_is_let_through(type_name: str, image: str) -> None:
    assert device(type_name, image) == []


@pytest.mark.parametrize(
    ("type_name", "image", "has", "instead"),
    [
        ("g5.xlarge", "x86", "has 1 A10G", "an image for what it has (gpu)"),
        ("p5.48xlarge", "x86", "has 8 H100", "an image for what it has (gpu)"),
        ("inf2.24xlarge", "x86", "has 6 Inferentia2", "an image for what it has (inf2)"),
        ("g5.xlarge", "graviton3", "has 1 A10G", "an image for what it has (gpu)"),
        ("inf2.xlarge", "graviton4", "has 1 Inferentia2", "an image for what it has (inf2)"),
    ],
)
def test_an_image_for_cpus_on_an_accelerator_wastes_it_and_is_refused(
    type_name: str, image: str, has: str, instead: str
) -> None:
    (refusal,) = device(type_name, image)
    assert refusal.name == "accelerator-unused"
    assert f"instance type {type_name} {has}, and image ami-1 ({image}) is for CPUs" in refusal.why
    assert (
        "it would be paid for ($" in refusal.why and "on-demand Linux in us-east-1) and stay" in refusal.why
    )
    assert refusal.do.endswith(instead)
    offered = refusal.do.removeprefix("Choose a type without, such as ").partition(", or ")[0].split(", ")
    assert 0 < len(offered) <= devices.FEW
    for name in offered:
        kind = instance_types.get(name)
        assert not kind.accelerator and kind.arch == TABLE[image].architecture
        assert device(name, image) == []
        assert fit.check_core(name, name, image, TABLE[image].core, {}) == []
        assert kind.usd_hour and kind.usd_hour < (instance_types.get(type_name).usd_hour or 0)


def test_where_no_image_is_for_it_that_is_said_and_no_price_that_is_not_known() -> None:
    (refusal,) = device("trn2.48xlarge", "x86")
    assert "has 16 trainium2, and image ami-1 (x86) is for CPUs: it would be paid for and stay" in refusal.why
    assert refusal.do.endswith("; packer/images.yml has none for it")


@pytest.mark.parametrize(
    ("type_name", "image", "has", "wanted", "families", "instead"),
    [
        ("m7i.large", "gpu", "no accelerator", "NVIDIA GPUs", "g4dn, g5, g6", "(x86)"),
        ("inf2.xlarge", "gpu", "1 Inferentia2", "NVIDIA GPUs", "p5", "(inf2)"),
        ("g5.xlarge", "inf2", "1 A10G", "Neuron chips", "a type of inf2,", "(gpu)"),
        (
            "trn2.48xlarge",
            "inf2",
            "16 trainium2",
            "Neuron chips",
            "a type of inf2;",
            "packer/images.yml has none for it",
        ),
        ("c7g.large", "gpu", "no accelerator", "NVIDIA GPUs", "g5", "(graviton3)"),
    ],
)
def test_an_image_for_what_is_not_there_is_refused(
    type_name: str, image: str, has: str, wanted: str, families: str, instead: str
) -> None:
    (refusal,) = device(type_name, image)
    assert refusal.name == "no-accelerator"
    assert f"instance type {type_name} has {has}, and image ami-1 ({image}) is for {wanted}" in refusal.why
    assert families in refusal.do and instead in refusal.do
