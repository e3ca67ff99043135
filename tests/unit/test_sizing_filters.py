"""The filters give what the functions give, through a real template."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError
from jinja2 import Environment

from ingot.filters import FILTERS

SHAPE = {"layers": 30, "kv_heads": 3, "head_dim": 64, "max_model_len": 8192, "weight_bytes": 269060552}


def render(template: str, **variables: object) -> str:
    environment = Environment()
    environment.filters.update(FILTERS)
    return environment.from_string(template).render(**variables)


def test_a_template_sizes_a_model_from_the_catalogue() -> None:
    text = render(
        "{{ (shape | ingot_sizing('m', 2, 8589934592, mode='vllm', max_model_len=2048, max_num_seqs=0, "
        "kv_cache_bytes='')).max_model_len }}",
        shape=SHAPE,
    )
    assert text == "2048"


def test_ray_figures() -> None:
    assert render("{{ 2 | ingot_ray_num_cpus }}") == "3"
    assert int(render("{{ 8589934592 | ingot_object_store_bytes(67108864) }}")) == 80 * 1024**2


def test_a_refusal_reaches_the_user_as_it_is() -> None:
    with pytest.raises(AnsibleFilterError, match=r"m does not fit: it needs .* and the host has 1\.00 GiB"):
        render("{{ shape | ingot_sizing('m', 2, 1073741824) }}", shape=SHAPE)


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(AnsibleFilterError, match="unexpected keyword"):
        render("{{ shape | ingot_sizing('m', 2, 8589934592, max_len=3) }}", shape=SHAPE)


def test_a_shape_that_lacks_something_is_an_error() -> None:
    with pytest.raises(AnsibleFilterError, match="the shape of m has no 'layers'"):
        render("{{ {'weight_bytes': 1} | ingot_sizing('m', 2, 8589934592) }}")
