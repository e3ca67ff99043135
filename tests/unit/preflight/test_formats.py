"""A number format that the engine lacks on a node is refused, with one that works; each defect planted."""

from __future__ import annotations

from typing import Any

import pytest
from refusals import entry, names

from ingot import formats as table
from ingot import models
from ingot.preflight import formats
from ingot.preflight.refusal import Refusal


def accelerator_of(type_name: str) -> str:
    """That of the image which is for such a type."""
    if type_name.startswith("inf2"):
        return "neuron"
    return "nvidia" if type_name.startswith(("g4dn", "g5", "g6", "p")) else ""


def check(
    type_name: str,
    *quantization: str,
    dtype: str = "bfloat16",
    engine: str = "vllm",
    flags: dict[str, Any] | None = None,
) -> list[Refusal]:
    model = models.parse_catalog({"me/mine": entry(quantization=quantization, dtype=dtype)}).models["me/mine"]
    variables = {"serving_engine": engine, "serving_engine_flags": flags}
    accelerator = accelerator_of(type_name)
    return formats.check(f"instance type {type_name}", type_name, accelerator, "me/mine", model, variables)


@pytest.mark.parametrize(
    ("type_name", "quantization"),
    [
        ("c7i.large", ()),
        ("c6a.large", ("int8-w8a8",)),
        ("c7a.large", ("int4-awq",)),
        ("c8g.large", ("int4-w4a8",)),
        ("g5.xlarge", ("fp8",)),
        ("p4d.24xlarge", ("int8-w8a8",)),
        ("g6.xlarge", ("fp8",)),
        ("p5.48xlarge", ("nvfp4",)),
        ("p6-b200.48xlarge", ("nvfp4", "fp8")),
        ("inf2.xlarge", ()),
        ("", ("gguf",)),
    ],
)
def test_what_works_is_let_through(type_name: str, quantization: tuple[str, ...]) -> None:
    assert check(type_name, *quantization) == []


@pytest.mark.parametrize(
    ("type_name", "quantization", "instead"),
    [
        ("c7a.large", "fp8", "int8-w8a8"),
        ("c8g.large", "fp8", "int8-w8a8"),
        ("c8g.large", "int4-awq", "int4-w4a8"),
        ("c6a.large", "int4-gptq", "int8-w8a8"),
        ("c7i.large", "int4-w4a8", "int4-awq"),
        ("c7i.large", "nvfp4", "int4-awq"),
        ("g5.xlarge", "int4-w4a8", "int4-awq"),
        ("p5.48xlarge", "gguf", "int4-awq"),
        ("g6.xlarge", "bitsandbytes", "int4-awq"),
        ("p6-b200.48xlarge", "int8-w8a8", "fp8"),
        ("g4dn.xlarge", "mxfp4", "int4-awq"),
        ("inf2.xlarge", "int4-awq", "bf16"),
        ("inf2.xlarge", "fp8", "bf16"),
    ],
)
def test_what_does_not_is_refused_with_what_does(type_name: str, quantization: str, instead: str) -> None:
    dtype = "float16" if type_name == "g4dn.xlarge" else "bfloat16"
    (refusal,) = check(type_name, quantization, dtype=dtype)
    assert refusal.name == "format-unsupported"
    assert f"me/mine is in {quantization}" in refusal.why and type_name in refusal.why
    assert instead in refusal.do
    place = table.place_of(type_name, accelerator_of(type_name))
    assert place and instead in table.working(place), "what is offered must work there"


@pytest.mark.parametrize(
    ("type_name", "quantization", "families"),
    [
        ("p6-b200.48xlarge", "int8-w8a8", ["g5", "p5"]),
        ("c8g.large", "fp8", []),
        ("c7a.large", "fp8", ["m7i"]),
        ("c6a.large", "int4-awq", ["c7a", "m7i"]),
    ],
)
def test_where_it_works_is_said(type_name: str, quantization: str, families: list[str]) -> None:
    (refusal,) = check(type_name, quantization)
    assert all(family in refusal.do for family in families)
    assert ("choose an instance type of" in refusal.do) == bool(families)


def test_bfloat16_on_a_t4_is_refused_with_the_setting_that_helps() -> None:
    (refusal,) = check("g4dn.xlarge", "int4-awq")
    assert refusal.name == "format-unsupported"
    assert "me/mine computes in bf16" in refusal.why
    assert "serving_engine_flags: {dtype: float16}" in refusal.do
    for flag in ("float16", "half"):
        assert check("g4dn.xlarge", "int4-awq", flags={"dtype": flag}) == []
    assert check("g4dn.xlarge", dtype="float16") == []
    assert names(check("g4dn.xlarge", flags={"dtype": "auto"})) == ["format-unsupported"]


@pytest.mark.parametrize(
    ("type_name", "quantization", "said"),
    [
        ("g5.xlarge", "fp8", "serving_engine: vllm"),
        ("p5.48xlarge", "nvfp4", "p6-b200"),
        ("p6-b200.48xlarge", "int4-awq", "nvfp4"),
        ("p5.48xlarge", "int8-w8a8", "fp8"),
    ],
)
def test_tensorrt_llm_has_fewer(type_name: str, quantization: str, said: str) -> None:
    (refusal,) = check(type_name, quantization, engine="tensorrt_llm")
    assert refusal.name == "format-unsupported"
    assert "TensorRT-LLM does not compute" in refusal.why
    assert said in refusal.do


def test_tensorrt_llm_is_for_gpus() -> None:
    (refusal,) = check("m7i.large", engine="tensorrt_llm")
    assert "NVIDIA's GPUs" in refusal.why
    assert "serving_engine: vllm" in refusal.do


@pytest.mark.parametrize(
    ("quantization", "method"),
    [
        ((), "fp8"),
        ((), "fp8_per_channel"),
        ((), "online"),
        (("int4-awq",), "awq_marlin"),
        (("int4-gptq",), "gptq"),
        (("fp8",), "fp8"),
        (("int8-w8a8",), "compressed-tensors"),
        (("nvfp4",), "modelopt_fp4"),
    ],
)
def test_a_method_that_fits_is_let_through(quantization: tuple[str, ...], method: str) -> None:
    assert check("g6.xlarge", *quantization, flags={"quantization": method}) == []


@pytest.mark.parametrize(
    ("quantization", "method", "name", "said"),
    [
        ((), "gguf", "format-unsupported", "has no quantization 'gguf'"),
        ((), "bitsandbytes", "format-unsupported", "has no quantization"),
        ((), "fp8_per_chanel", "format-unsupported", "Write 'fp8_per_channel'"),
        ((), "awq", "format-contradicts", "not quantised"),
        (("int4-awq",), "gptq", "format-contradicts", "is int4-awq"),
        (("fp8",), "fp8_per_tensor", "format-contradicts", "is fp8"),
    ],
)
def test_a_method_that_does_not_fit_is_refused(
    quantization: tuple[str, ...], method: str, name: str, said: str
) -> None:
    (refusal,) = check("g6.xlarge", *quantization, flags={"quantization": method})
    assert refusal.name == name
    assert said in str(refusal)


def test_what_the_engine_would_make_must_work_there() -> None:
    (refusal,) = check("c7a.large", flags={"quantization": "fp8"})
    assert refusal.name == "format-unsupported"
    assert "would be made (serving_engine_flags: quantization fp8) fp8" in refusal.why
    assert check("m7i.large", flags={"quantization": "fp8"}) == []


def test_nodes_of_one_type_are_told_together() -> None:
    model = models.parse_catalog({"me/mine": entry(quantization=["fp8"])}).models["me/mine"]
    nodes = {
        "a": {"ec2_instance_type": "c8g.large"},
        "b": {"ec2_instance_type": "c8g.large"},
        "c": {"ec2_instance_type": "m7i.large"},
        "d": {},
    }
    (refusal,) = formats.check_nodes(nodes, "me/mine", model)
    assert "c8g.large (a, b)" in refusal.why
