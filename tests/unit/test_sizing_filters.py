"""The filters give what the functions give, through a real template."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
from ansible.errors import AnsibleFilterError
from jinja2 import Environment

ROOT = Path(__file__).parents[2]
CONFIG = {
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "max_position_embeddings": 8192,
}


def plugin() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "ingot_sizing_filters", ROOT / "plugins/filter/ingot_sizing.py"
    )
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def render(template: str, **variables: object) -> str:
    environment = Environment()
    environment.filters.update(plugin().FilterModule().filters())
    return environment.from_string(template).render(**variables)


def test_a_template_sizes_a_model_from_its_config_text() -> None:
    text = render(
        "{{ (config | ingot_model('m', 283115520) | ingot_sizing(2, 8589934592, mode='vllm', "
        "max_model_len=2048, max_num_seqs=0, kv_cache_bytes='')).max_model_len }}",
        config=json.dumps(CONFIG),
    )
    assert text == "2048"


def test_ray_figures() -> None:
    assert render("{{ 2 | ingot_ray_num_cpus }}") == "3"
    assert int(render("{{ 8589934592 | ingot_object_store_bytes(67108864) }}")) == 80 * 1024**2


def test_a_refusal_reaches_the_user_as_it_is() -> None:
    with pytest.raises(AnsibleFilterError, match=r"m does not fit: it needs .* and the host has 1\.00 GiB"):
        render("{{ config | ingot_model('m', 283115520) | ingot_sizing(2, 1073741824) }}", config=CONFIG)


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(AnsibleFilterError, match="unexpected keyword"):
        render("{{ config | ingot_model('m', 1) | ingot_sizing(2, 8589934592, max_len=3) }}", config=CONFIG)
