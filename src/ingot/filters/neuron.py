"""Faces of ingot.neuron_sets for the role neuron."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ingot import neuron_cores, neuron_sets, sizing
from ingot.preflight import neuron


def plan(sets: object, name: str, repository: object) -> dict[str, Any]:
    """What is installed for a set, and from where."""
    return neuron_sets.plan(neuron_sets.given(sets), name, repository)


def cores(
    chips: Sequence[Mapping[str, Any]],
    devices: Sequence[str],
    model_id: str,
    shape: Mapping[str, Any],
    dtype: str,
    **asked: Any,
) -> dict[str, Any]:
    """The cores and flags of one engine on a node with these chips; ``refused`` says why there are none."""
    try:
        return neuron_cores.plan(chips, devices, model_id, shape, dtype, **asked) | {"refused": ""}
    except sizing.SizingError as error:
        return {"refused": str(error)}
    except ValueError as error:
        raise AnsibleFilterError(f"the shape of {model_id}: {error}") from error


FILTERS: dict[str, Callable[..., Any]] = {
    "ingot_neuron_refusals": neuron.machine_refusals,
    "ingot_neuron_plan": plan,
    "ingot_neuron_cores": cores,
}
