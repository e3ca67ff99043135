"""The filters of the role model_store, through Ansible's own templating."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleError
from ansible.template import trust_as_template
from role_templates import evaluate

ROOT = Path(__file__).parents[2]
SMOLLM = "HuggingFaceTB/SmolLM2-135M-Instruct"


def render(expression: str, **variables: Any) -> Any:
    catalog = trust_as_template(
        f"{{{{ lookup('ansible.builtin.file', '{ROOT}/files/models.yml') | from_yaml }}}}"
    )
    return evaluate(expression, {"catalog": catalog} | variables)


def test_a_catalogue_that_an_inventory_looks_up_is_read() -> None:
    model = render(f"'{SMOLLM}' | ingot_catalogued(catalog, {{}})")
    assert model["source"] == "huggingface"
    assert {"path", "size", "sha256", "location"} == set(model["files"][0])
    assert model["files"][0]["location"].startswith(f"https://huggingface.co/{SMOLLM}/resolve/12fd25f7")


def test_another_source_takes_the_place_of_the_catalogues() -> None:
    model = render(
        f"'{SMOLLM}' | ingot_catalogued(catalog, source)",
        source={"kind": "s3", "location": "s3://bucket/models"},
    )
    assert model["source"] == "s3"
    assert model["files"][0]["location"] == f"s3://bucket/models/{SMOLLM}/config.json"


@pytest.mark.parametrize(
    ("model_id", "words"), [("../x", "leave the model store"), ("a/b", "not in the catalogue")]
)
def test_a_model_that_cannot_be_had_is_refused_in_words(model_id: str, words: str) -> None:
    with pytest.raises(AnsibleError, match=words):
        render(f"'{model_id}' | ingot_catalogued(catalog, {{}})")


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("'a/b' | ingot_catalogued({'a/b': 7}, {})", r"model_store_catalog: models\.a/b: it is no mapping"),
        (
            f"'{SMOLLM}' | ingot_catalogued(catalog, {{'kind': 'ftp'}})",
            "model_store_source_override: kind: Input should be .* the README of the role model_store",
        ),
    ],
)
def test_a_wrong_variable_is_named_with_its_field(expression: str, words: str) -> None:
    with pytest.raises(AnsibleError, match=words):
        render(expression)
