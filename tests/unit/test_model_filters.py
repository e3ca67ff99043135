"""The filters of the role model_store, through Ansible's own templating."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleError
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import filter_loader, init_plugin_loader
from ansible.template import Templar, trust_as_template

ROOT = Path(__file__).parents[2]
SMOLLM = "HuggingFaceTB/SmolLM2-135M-Instruct"


@pytest.fixture(scope="module")
def render() -> Any:
    init_plugin_loader()
    filter_loader.add_directory(str(ROOT / "plugins/filter"))
    catalog = trust_as_template(
        f"{{{{ lookup('ansible.builtin.file', '{ROOT}/files/models.yml') | from_yaml }}}}"
    )

    def rendered(expression: str, **variables: Any) -> Any:
        templar = Templar(DataLoader(), variables={"catalog": catalog} | variables)
        return templar.template(trust_as_template(f"{{{{ {expression} }}}}"))

    return rendered


def test_a_catalogue_that_an_inventory_looks_up_is_read(render: Any) -> None:
    model = render(f"'{SMOLLM}' | ingot_catalogued(catalog, {{}})")
    assert model["source"] == "huggingface"
    assert {"path", "size", "sha256", "location"} == set(model["files"][0])
    assert model["files"][0]["location"].startswith(f"https://huggingface.co/{SMOLLM}/resolve/12fd25f7")


def test_another_source_takes_the_place_of_the_catalogues(render: Any) -> None:
    model = render(
        f"'{SMOLLM}' | ingot_catalogued(catalog, source)",
        source={"kind": "s3", "location": "s3://bucket/models"},
    )
    assert model["source"] == "s3"
    assert model["files"][0]["location"] == f"s3://bucket/models/{SMOLLM}/config.json"


@pytest.mark.parametrize(
    ("model_id", "words"), [("../x", "leave the model store"), ("a/b", "not in the catalogue")]
)
def test_a_model_that_cannot_be_had_is_refused_in_words(render: Any, model_id: str, words: str) -> None:
    with pytest.raises(AnsibleError, match=words):
        render(f"'{model_id}' | ingot_catalogued(catalog, {{}})")
