"""Faces of ingot.driver_sets for the role nvidia."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ingot import driver_sets
from ingot.preflight import drivers


def plan(sets: object, name: str, releases: Sequence[str]) -> dict[str, Any]:
    """What is installed for a set, for kernels of these releases."""
    return driver_sets.plan(driver_sets.given(sets), name, releases)


FILTERS: dict[str, Callable[..., Any]] = {
    "ingot_driver_refusals": drivers.machine_refusals,
    "ingot_driver_plan": plan,
}
