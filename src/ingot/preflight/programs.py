"""What speaks against an engine on Neuron chips: programs that are not compiled, or cannot be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ingot import accelerators, neuron_artifacts, neuron_buckets, neuron_cores
from ingot.accelerators import Neuron
from ingot.checkout import ROOT
from ingot.models import Model
from ingot.preflight import fit, neuron, variables
from ingot.preflight.refusal import Refusal
from ingot.sizing import ModelDoesNotFitError, SizingError

#: The group of the image, as the inventories have it.
GROUP = "inf2"
CORRECT = "Correct neuron_context_buckets, neuron_generation_buckets or serving_max_model_len"


def check_programs(
    host: str, type_name: str, model_id: str, model: Model, given: Mapping[str, Any], there: Iterable[str]
) -> list[Refusal]:
    """All that the engine of a node would need is compiled, on the node or in the store.

    Args:
        host: the node in messages.
        type_name: EC2's name of its type; of one that is not known nothing is said, the node is asked later.
        model_id, model: what is served.
        given: the node's variables.
        there: paths that the node has.
    """
    device = accelerators.neuron_of(type_name)
    if device is None:
        return []
    if found := check_set(given):
        return found
    try:
        wanted = inputs(device, model_id, model, given)
    except ModelDoesNotFitError:
        return []  # which is refused with its arithmetic
    except SizingError as error:
        return [Refusal("bad-neuron-buckets", f"{host} ({type_name}): {error}", CORRECT)]
    plan = neuron_artifacts.plan(wanted, model.shape.weight_bytes, 1, 0)
    store = str(given.get("neuron_artifact_store", ""))
    if plan["directory"] in there or store.startswith("s3://"):
        return []  # what is in a bucket is seen when it is taken
    where = f"{host} ({type_name}) has no programs for its engine, and neither has"
    where += f" the store {store}" if store else " a store (neuron_artifact_store is empty)"
    held = neuron_artifacts.held(store) if store else []
    if lacking := neuron_artifacts.missing(wanted, held, where):
        do = f"Compile first, for it would compile for hours before it listens: {plan['how']}"
        return [Refusal("neuron-programs-missing", lacking, do)]
    return []


def check_set(given: Mapping[str, Any]) -> list[Refusal]:
    """The set of the node's variables is one that serves."""
    return neuron.refusals({"neuron_set": _default("neuron_set"), **given})


def inputs(device: Neuron, model_id: str, model: Model, given: Mapping[str, Any]) -> dict[str, Any]:
    """All that decides what is compiled, by a node's variables.

    Raises:
        SizingError: the model does not go with the chips, or the buckets not with the model.
    """
    table, _ = neuron.read(given.get("neuron_sets"))
    flags = neuron_cores.on(
        device,
        model_id,
        model.shape.model_dump(),
        model.dtype,
        tensor_parallel=given.get("neuron_tensor_parallel", 0),
        max_model_len=given.get("serving_max_model_len", 0),
        max_num_seqs=given.get("serving_max_num_seqs", 0),
    )["flags"]
    buckets = neuron_buckets.choose(
        _numbers(given.get("neuron_context_buckets")),
        _numbers(given.get("neuron_generation_buckets")),
        flags["max-model-len"],
    )
    named = {"id": model_id, "hash": neuron_artifacts.model_hash(model), "dtype": model.dtype}
    extra = [str(flag) for flag in given.get("neuron_compile_flags") or []]
    chosen = table.get(str(given.get("neuron_set") or _default("neuron_set")))
    return neuron_artifacts.inputs(chosen, device.name, named, flags, buckets, extra)


def compile_refusals(hosts: Mapping[str, Mapping[str, Any]], builders: Sequence[str]) -> list[Refusal]:
    """What speaks against compiling on the first of these hosts, as far as the controller can tell."""
    if not builders:
        return [
            Refusal(
                "no-compile-host",
                f"the inventory has no host in the group {GROUP}, and compile.yml compiles on its first",
                f"Launch an instance of the image {GROUP}, or put a host with its software into that group",
            )
        ]
    host, given = builders[0], hosts[builders[0]]
    model_id = str(given["serving_model_id"])
    catalog = fit.catalog_of(given)
    if found := [*fit.check_catalog(given), *fit.check_model_id(model_id, catalog)]:
        return found
    if found := check_set(given):
        return found
    type_name = str(given.get("neuron_compile_for") or given.get("ec2_instance_type", ""))
    device = accelerators.neuron_of(type_name)
    if device is None:
        has = f"{type_name}, which has no Neuron chip" if type_name else "not known"
        do = "Set neuron_compile_for to the instance type that will serve, such as inf2.xlarge"
        return [Refusal("no-compile-target", f"the type to compile for is {has}", do)]
    try:
        inputs(device, model_id, catalog.models[model_id], given)
    except SizingError as error:
        found.append(Refusal("bad-neuron-buckets", f"{host}, for {type_name}: {error}", CORRECT))
    store = str(given.get("neuron_artifact_store", ""))
    if store and not store.startswith(("s3://", "/", "~")):
        found.append(
            Refusal(
                "bad-artifact-store",
                f"neuron_artifact_store is {store}, which is no place that every command would find again",
                "Write s3://bucket/prefix, or a directory from / on",
            )
        )
    return found


def _numbers(given: object) -> list[int]:
    """As they came: what is no number is refused where buckets are chosen."""
    return list(given) if isinstance(given, Sequence) and not isinstance(given, str) else []


def _default(option: str, roles: Path = ROOT / "roles") -> Any:
    """What the role takes where the inventory says nothing."""
    return variables.specified(roles)["neuron"][option]["default"]
