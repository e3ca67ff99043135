"""Programs for Neuron chips that are not compiled are refused before any change; each defect planted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from refusals import MODEL, names

from ingot import accelerators, compiled, models
from ingot.preflight import programs
from ingot.preflight.refusal import Refusal

TYPE = "inf2.xlarge"
INF2 = "inf2-1"


@pytest.fixture
def wanted(catalog: models.Catalog) -> dict[str, Any]:
    """What the engine of such a node needs."""
    device = accelerators.neuron_of(TYPE)
    assert device
    return programs.inputs(device, MODEL, catalog.models[MODEL], {})


@pytest.fixture
def check(catalog: models.Catalog) -> Any:
    def _check(there: list[str] | None = None, type_name: str = TYPE, **given: Any) -> list[Refusal]:
        return programs.check_programs(INF2, type_name, MODEL, catalog.models[MODEL], given, there or [])

    return _check


def keep(store: Path, inputs: dict[str, Any]) -> None:
    (store / f"{compiled.key(inputs)}.json").write_text(json.dumps({"inputs": inputs, "sha256": "0" * 64}))


def test_what_the_node_or_the_store_has_is_let_through(
    check: Any, wanted: dict[str, Any], tmp_path: Path
) -> None:
    assert check([f"/opt/ingot/neuron/{compiled.key(wanted)}"]) == []
    keep(tmp_path, wanted)
    assert check(neuron_artifact_store=str(tmp_path)) == []


def test_of_what_is_not_known_nothing_is_said(check: Any) -> None:
    assert check(type_name="") == []
    assert check(neuron_artifact_store="s3://bucket/prefix") == []


def test_nothing_compiled_is_refused_with_the_command(check: Any) -> None:
    (refusal,) = check()
    assert refusal.name == "neuron-programs-missing"
    assert (
        "no programs for its engine, and neither has a store (neuron_artifact_store is empty)" in refusal.why
    )
    assert "ansible-playbook -i INVENTORY playbooks/compile.yml -e '{" in refusal.do
    assert f'"serving_model_id": "{MODEL}"' in refusal.do


def test_the_bucket_that_is_missing_is_named(check: Any, wanted: dict[str, Any], tmp_path: Path) -> None:
    keep(tmp_path, wanted | {"context": [128, 512, 8192]})
    (tmp_path / "other.json").write_text("{")
    (refusal,) = check(neuron_artifact_store=str(tmp_path))
    assert "bucket 256, 1024, 2048, 4096 (lengths of prompts) is missing" in refusal.why


def test_another_model_of_that_name_is_not_taken_for_it(
    check: Any, wanted: dict[str, Any], tmp_path: Path
) -> None:
    keep(tmp_path, wanted | {"model_hash": "1" * 64})
    (refusal,) = check(neuron_artifact_store=str(tmp_path))
    assert f"what is compiled is for model_hash {'1' * 64}" in refusal.why


@pytest.mark.parametrize(
    "given",
    [
        {"neuron_context_buckets": [128, 1024]},
        {"neuron_generation_buckets": [8192, 128]},
        {"serving_max_model_len": 2048, "neuron_context_buckets": [8192]},
        {"neuron_compile_flags": ["--seq-len", "12"]},
        {"neuron_tensor_parallel": 2},  # of 9 heads
    ],
)
def test_buckets_that_cannot_be_are_refused(check: Any, given: dict[str, Any]) -> None:
    assert names(check(**given)) == ["bad-neuron-buckets"]


def test_a_set_that_there_is_not_is_refused_here_too(check: Any) -> None:
    assert names(check(neuron_set="sdk-2.33")) == ["unknown-neuron-set"]


# --- compile.yml --------------------------------------------------------------------------------------------


def refused(catalog: models.Catalog, builders: list[str] | None = None, **given: Any) -> list[Refusal]:
    entries = {name: model.model_dump() for name, model in catalog.models.items()}
    variables = {"serving_model_id": MODEL, "model_store_catalog": entries, "ec2_instance_type": TYPE} | given
    return programs.compile_refusals({INF2: variables}, [INF2] if builders is None else builders)


def test_compiling_is_let_through_on_a_node_and_on_a_host_without_chips(catalog: models.Catalog) -> None:
    assert refused(catalog) == []
    assert refused(catalog, ec2_instance_type="m7i.8xlarge", neuron_compile_for=TYPE) == []
    assert refused(catalog, neuron_artifact_store="s3://bucket/prefix") == []


@pytest.mark.parametrize(
    ("given", "name", "said"),
    [
        ({"builders": []}, "no-compile-host", "no host in the group inf2"),
        ({"ec2_instance_type": ""}, "no-compile-target", "the type to compile for is not known"),
        ({"neuron_compile_for": "g6.xlarge"}, "no-compile-target", "is g6.xlarge, which has no Neuron chip"),
        ({"serving_model_id": "a/b"}, "unknown-model", "a/b"),
        ({"neuron_set": "sdk-2.33"}, "unknown-neuron-set", "no set 'sdk-2.33'"),
        ({"neuron_context_buckets": [1]}, "bad-neuron-buckets", "ends with 1, and requests may have 8192"),
        ({"neuron_artifact_store": "store"}, "bad-artifact-store", "neuron_artifact_store is store"),
    ],
)
def test_what_cannot_be_compiled_is_refused_by_name(
    catalog: models.Catalog, given: dict[str, Any], name: str, said: str
) -> None:
    (refusal,) = refused(catalog, **given)
    assert (refusal.name, said in refusal.why) == (name, True), refusal
