"""Whether a model and an image fit a machine."""

from __future__ import annotations

import pytest
from refusals import MODEL, names

from ingot import images, models, sizing
from ingot.preflight import fit


@pytest.mark.parametrize(
    "model", ["../../etc/shadow", "/etc", "a/../../b", "a/b/c", "", "..", "a/ b", "a\nb"]
)
def test_a_model_id_that_escapes_the_store_is_refused(model: str, catalog: models.Catalog) -> None:
    assert names(fit.check_model_id(model, catalog)) == ["model-id-escapes"]


def test_a_model_that_the_catalogue_lacks_is_refused_with_the_nearest(catalog: models.Catalog) -> None:
    refusals = fit.check_model_id("HuggingFaceTB/SmolLM-135M-Instruct", catalog)
    assert names(refusals) == ["unknown-model"]
    assert MODEL in refusals[0].do


def test_a_model_that_fits_and_one_that_does_not(catalog: models.Catalog) -> None:
    host = sizing.Host(cores=4, memory_bytes=16 * sizing.GIB)
    serving = {"serving_mode": "ray_serve"}
    assert fit.check_memory("m", host, MODEL, catalog.models[MODEL], serving) == []
    refusals = fit.check_memory("m7i.xlarge", host, "big/model", catalog.models["big/model"], serving)
    assert names(refusals) == ["model-does-not-fit"]
    assert "140.00 GiB weights" in refusals[0].why
    assert "nstance type with at least" in refusals[0].do


def test_figures_that_contradict_the_model_are_refused(catalog: models.Catalog) -> None:
    host = sizing.Host(cores=4, memory_bytes=16 * sizing.GIB)
    serving = {"serving_mode": "vllm", "serving_max_model_len": 10**6}
    refusals = fit.check_memory("m", host, MODEL, catalog.models[MODEL], serving)
    assert names(refusals) == ["sizing-contradicts"]


def test_architectures() -> None:
    assert fit.check_architecture("a", "aarch64", "graviton3", "arm64") == []
    assert names(fit.check_architecture("c7g.large", "arm64", "x86", "x86_64")) == ["architecture-differs"]


CORES = {"x86": "", "graviton3": "neoverse-v1", "graviton4": "neoverse-v2"}


def test_an_image_for_a_core_that_the_type_lacks_is_refused_with_what_fits() -> None:
    (refusal,) = fit.check_core("instance type c7g.2xlarge", "c7g.2xlarge", "ami-1", "neoverse-v2", CORES)
    assert refusal.name == "wrong-core"
    assert "c7g.2xlarge has neoverse-v1 cores, and image ami-1 was compiled for neoverse-v2" in refusal.why
    for word in ("c8g", "m8g", "r8g", "graviton3"):
        assert word in refusal.do
    for word in ("c7g", "m7i", "graviton4", "x86"):
        assert word not in refusal.do


@pytest.mark.parametrize(
    ("type_name", "compiled_for"),
    [
        ("c8g.large", "neoverse-v2"),
        ("c8g.large", "neoverse-v1"),
        ("m7i.large", ""),
        ("m7i.large", "neoverse-v1"),
        ("c10g.large", "neoverse-v2"),
    ],
    ids=["the same", "a later one", "compiled for none", "another architecture", "an unknown core"],
)
def test_what_is_not_judged_by_its_core(type_name: str, compiled_for: str) -> None:
    assert fit.check_core("it", type_name, "ami-1", compiled_for, CORES) == []


def test_where_no_image_fits_that_is_said() -> None:
    (refusal,) = fit.check_core("it", "m6g.large", "ami-1", "neoverse-v1", images.load().cores)
    assert "none of packer/images.yml" in refusal.do
