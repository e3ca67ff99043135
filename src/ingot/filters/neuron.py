"""Faces of ingot.neuron_sets for the role neuron."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ingot import accelerators, models, neuron_artifacts, neuron_buckets, neuron_cores, neuron_sets, sizing
from ingot.models import Model
from ingot.preflight import neuron
from ingot.table import check


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


def cores_of(
    instance_type: str,
    devices: Sequence[str],
    model_id: str,
    shape: Mapping[str, Any],
    dtype: str,
    **asked: Any,
) -> dict[str, Any]:
    """The same for an instance type: for the programs that are compiled before there is a node of it."""
    device = accelerators.neuron_of(instance_type)
    if device is None or device.name not in devices:
        there = device.name if device else "no Neuron chip of files/accelerators.yml"
        why = f"neuron_compile_for is {instance_type}, which has {there}: name a type of {devices[0]}"
        return {"refused": why}
    chips = [{"cores": device.cores, "memory": device.memory_bytes}] * device.count
    return cores(chips, devices, model_id, shape, dtype, **asked)


def programs(
    flags: Mapping[str, Any],
    sets: object,
    name: str,
    model: Mapping[str, str],
    weight_bytes: int,
    host: Mapping[str, int],
    context: Sequence[int] = (),
    generation: Sequence[int] = (),
    extra: Sequence[str] = (),
) -> dict[str, Any]:
    """What is compiled for an engine with these flags; ``refused`` says why it cannot be.

    Args:
        flags: those of ``cores``.
        sets, name: the table of sets, and the one that compiles.
        model: ``id``, ``hash``, ``dtype``, and the chip that it is for, ``device``.
        weight_bytes: of the model.
        host: ``cpus`` of who compiles, and ``memory_bytes`` that compiling takes, 0 to estimate it.
        context, generation: the buckets; empty for those of NxD Inference.
        extra: further flags of the compiling program.
    """
    try:
        buckets = neuron_buckets.choose(list(context), list(generation), int(flags["max-model-len"]))
        chosen = neuron_sets.given(sets).get(name)
        made_from = neuron_artifacts.inputs(chosen, model["device"], model, flags, buckets, list(extra))
    except sizing.SizingError as error:
        return {"refused": str(error)}
    measured = int(host.get("memory_bytes", 0))
    return neuron_artifacts.plan(made_from, int(weight_bytes), int(host["cpus"]), measured, list(extra)) | {
        "refused": ""
    }


def model_hash(entry: Mapping[str, Any]) -> str:
    """One hash for all files of a model of the catalogue."""
    return neuron_artifacts.model_hash(check(entry, Model, "the model's entry", models.MEND))


FILTERS: dict[str, Callable[..., Any]] = {
    "ingot_neuron_refusals": neuron.machine_refusals,
    "ingot_neuron_plan": plan,
    "ingot_neuron_cores": cores,
    "ingot_neuron_cores_of": cores_of,
    "ingot_neuron_programs": programs,
    "ingot_model_hash": model_hash,
}
