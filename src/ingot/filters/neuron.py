"""Faces of ingot.neuron_sets for the role neuron."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ingot import neuron_sets
from ingot.preflight import neuron


def plan(sets: object, name: str, repository: object) -> dict[str, Any]:
    """What is installed for a set, and from where."""
    return neuron_sets.plan(neuron_sets.given(sets), name, repository)


FILTERS: dict[str, Callable[..., Any]] = {
    "ingot_neuron_refusals": neuron.machine_refusals,
    "ingot_neuron_plan": plan,
}
