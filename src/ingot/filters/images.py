"""Faces of ingot.images for playbooks/image.yml."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible.module_utils.basic import _PY_MIN
from ansible.release import __version__ as core_version

from ingot import arguments, images, models
from ingot.preflight.node import check_python
from ingot.preflight.refusal import Refusal


def image_refusals(
    build: Mapping[str, str], variables: Mapping[str, Any], host: str, python: str
) -> list[Refusal]:
    """What can be said before the machine is touched: table, roles, variables, its Python."""
    if not build:
        return [
            Refusal(
                "no-image",
                "image_build is not set",
                "This playbook is run by Packer: packer build packer/<image>.pkr.hcl",
            )
        ]
    return [
        *images.refusals(build["image"], variables),
        *check_python(host, python, _PY_MIN, core_version),
    ]


def machine_refusals(
    size: int, host: str, catalog: object, model_ids: Iterable[str], variables: Mapping[str, Any]
) -> list[Refusal]:
    """Once there are facts: whether the root volume holds the models, and the values of variables."""
    return [*volume_refusals(size, host, catalog, model_ids), *arguments.refusals(variables)]


def volume_refusals(size: int, host: str, catalog: object, model_ids: Iterable[str]) -> list[Refusal]:
    """Whether the root volume holds the models that are to be baked."""
    known = models.parse_catalog(catalog)
    try:
        weights = sum(known.model(model_id).size for model_id in model_ids)
    except models.ModelError as error:
        return [Refusal("unknown-model", str(error), "Mend model_store_models")]
    return images.check_volume(host, size, weights)


def accelerator(groups: Iterable[str]) -> str:
    """What a node of these groups computes on, by its image: ``nvidia``, ``neuron``; empty for CPUs."""
    found = images.of_groups(groups)
    return found[1].accelerator if found else ""


FILTERS: dict[str, Callable[..., Any]] = {
    "ingot_image_refusals": image_refusals,
    "ingot_machine_refusals": machine_refusals,
    "ingot_accelerator": accelerator,
}
