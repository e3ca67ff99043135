"""The table of number formats: whole, of the pinned engine, and right about what checkpoints say they are."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from ingot import formats
from ingot.checkout import ROOT

TABLE = formats.load()


def test_what_was_read_is_the_version_that_is_installed() -> None:
    versions = yaml.safe_load((ROOT / "files/versions.yml").read_text(encoding="utf-8"))
    assert versions["vllm"] == TABLE.vllm, "read the claims of files/formats.yml again"


@pytest.mark.parametrize(
    ("name", "place", "how"),
    [
        ("fp8", "hopper", "native"),
        ("fp8", "ada", "native"),
        ("fp8", "blackwell", "native"),
        ("fp8", "ampere", "weights"),
        ("fp8", "x86-64-amx", "native"),
        ("fp8", "x86-64-v4", "none"),
        ("fp8", "arm", "none"),
        ("nvfp4", "blackwell", "native"),
        ("nvfp4", "hopper", "weights"),
        ("int8-w8a8", "ampere", "native"),
        ("int8-w8a8", "blackwell", "none"),
        ("int4-awq", "turing", "weights"),
        ("int4-gptq", "x86-64-v3", "none"),
        ("int4-w4a8", "arm", "native"),
        ("int4-w4a8", "hopper", "none"),
        ("bf16", "turing", "none"),
        ("fp16", "turing", "native"),
        ("mxfp4", "arm", "unknown"),
    ],
)
def test_vllm(name: str, place: formats.Place, how: str) -> None:
    assert TABLE.formats[name].claim(place).how == how


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("fp8", ["ada", "hopper", "blackwell"]),
        ("nvfp4", ["blackwell"]),
        ("int4-awq", ["ampere", "ada", "hopper"]),
        ("int8-w8a8", []),
        ("bf16", ["ampere", "ada", "hopper", "blackwell"]),
    ],
)
def test_tensorrt_llm(name: str, places: list[str]) -> None:
    assert formats.places_of(name, "tensorrt_llm") == places


@pytest.mark.parametrize("name", ["gguf", "bitsandbytes"])
def test_what_works_nowhere(name: str) -> None:
    assert formats.places_of(name) == []


def test_no_claim_is_of_silicon_that_nobody_had() -> None:
    """Raise one only together with the run that showed it."""
    claims = [claim for one in TABLE.formats.values() for claim in (*one.vllm, *one.tensorrt_llm)]
    assert {claim.proof for claim in claims} <= {"source", "documentation", "native-x86", "unproved"}


@pytest.mark.parametrize(
    ("instance_type", "accelerator", "place"),
    [
        ("g4dn.xlarge", "nvidia", "turing"),
        ("g5.xlarge", "nvidia", "ampere"),
        ("p4d.24xlarge", "nvidia", "ampere"),
        ("g6e.xlarge", "nvidia", "ada"),
        ("p5en.48xlarge", "nvidia", "hopper"),
        ("p6-b200.48xlarge", "nvidia", "blackwell"),
        ("inf2.xlarge", "neuron", "inferentia2"),
        ("m7i-flex.large", "", "x86-64-amx"),
        ("c8i.large", "", "x86-64-amx"),
        ("c7a.large", "", "x86-64-v4"),
        ("c6i.large", "", "x86-64-v4"),
        ("m6a.large", "", "x86-64-v3"),
        ("c8g.large", "", "arm"),
        ("g5.xlarge", "", None),
        ("m7i.large", "nvidia", None),
        ("g5.xlarge", "neuron", None),
        ("trn2.48xlarge", "neuron", None),
        ("mystery", "", None),
        ("", "nvidia", None),
    ],
)
def test_where_a_type_computes(instance_type: str, accelerator: str, place: str | None) -> None:
    assert formats.place_of(instance_type, accelerator) == place


def compressed(form: str, weights: dict[str, Any], activations: dict[str, Any] | None) -> dict[str, Any]:
    group = {"weights": weights, "input_activations": activations, "targets": ["Linear"]}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}


INT4, INT8 = {"num_bits": 4, "type": "int"}, {"num_bits": 8, "type": "int"}
FLOAT4, FLOAT8 = {"num_bits": 4, "type": "float"}, {"num_bits": 8, "type": "float"}


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "fp8"),
        ({"quant_method": "awq", "bits": 4}, "int4-awq"),
        ({"quant_method": "gptq", "bits": 4}, "int4-gptq"),
        ({"quant_method": "gptq", "bits": 8}, "int8-gptq"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "nvfp4"}, "nvfp4"),
        ({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}, "nvfp4"),
        (compressed("int-quantized", INT8, INT8), "int8-w8a8"),
        (compressed("pack-quantized", INT4, None), "int4-w4a16"),
        (compressed("pack-quantized", INT8, None), "int8-w8a16"),
        (compressed("int-quantized", INT4, INT8), "int4-w4a8"),
        (compressed("float-quantized", FLOAT8, FLOAT8), "fp8"),
        (compressed("nvfp4-pack-quantized", FLOAT4 | {"group_size": 16}, FLOAT4), "nvfp4"),
        (compressed("mxfp4-pack-quantized", FLOAT4 | {"group_size": 32}, None), "mxfp4"),
    ],
)
def test_what_a_checkpoint_is_in(config: dict[str, Any], name: str) -> None:
    assert formats.of_checkpoint(config) == [name]


def test_layers_of_two_formats() -> None:
    mixed = compressed("mixed-precision", INT4, None)
    mixed["config_groups"]["group_1"] = {"weights": FLOAT8, "input_activations": FLOAT8}
    assert formats.of_checkpoint(mixed) == ["fp8", "int4-w4a16"]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"quant_method": "aqlm"}, "quant_method aqlm"),
        ({"quant_method": "gptq", "bits": 3}, "bits 3"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8"}, "quant_algo W4A8"),
        (compressed("pack-quantized", INT4, INT4), "format pack-quantized"),
        ({"quant_method": "compressed-tensors"}, "compressed-tensors"),
        ({}, "without a quant_method"),
    ],
)
def test_an_unknown_one_is_named(config: dict[str, Any], said: str) -> None:
    with pytest.raises(formats.FormatError, match=said):
        formats.of_checkpoint(config)


def test_the_page_shows_the_table() -> None:
    page = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    assert formats.documented() in page, "paste what ingot.formats.documented() gives"
