"""Whether a model and an image fit a machine."""

from __future__ import annotations

import pytest
from refusals import MODEL, names

from ingot import models, sizing
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
