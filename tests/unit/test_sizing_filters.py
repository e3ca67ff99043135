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


WHOLE = SHAPE | {"attention_heads": 9}


@pytest.mark.parametrize(
    ("instance_type", "options", "said"),
    [
        ("g5.12xlarge", "", "1 4"),
        ("g5.12xlarge", ", **{'tensor_parallel': 3, 'max_model_len': 0}", "3 1"),
        ("inf2.24xlarge", ", max_num_seqs=4", "1 12"),
    ],
)
def test_a_template_sizes_a_model_for_devices(instance_type: str, options: str, said: str) -> None:
    text = "{% set sized = shape | ingot_device_sizing('m', 'bfloat16', type" + options + ") %}"
    text += "{{ sized.tensor_parallel }} {{ sized.engines }}"
    assert render(text, shape=WHOLE, type=instance_type) == said


@pytest.mark.parametrize(
    ("shape", "instance_type", "said"),
    [
        (WHOLE | {"weight_bytes": 2**38}, "g5.xlarge", "m does not fit: each of 1 A10G"),
        (WHOLE, "m7i.large", "'m7i.large' has no GPU or Neuron chip"),
        (SHAPE, "g5.xlarge", "attention_heads"),
    ],
)
def test_what_fits_no_device_is_refused(shape: dict[str, int], instance_type: str, said: str) -> None:
    with pytest.raises(AnsibleFilterError, match=said):
        render("{{ shape | ingot_device_sizing('m', 'bfloat16', type) }}", shape=shape, type=instance_type)
