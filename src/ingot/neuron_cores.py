"""Which cores of a node's Neuron chips an engine takes, by what the node itself says of its chips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ingot import accelerator_sizing, accelerators, models
from ingot.accelerators import Neuron
from ingot.sizing import SizingError


def found(chips: Sequence[Mapping[str, Any]], devices: Sequence[str]) -> Neuron:
    """What the chips of a node are; ``devices`` are the names that its set is for.

    Raises:
        SizingError: they are none of these.
    """
    kinds = {(int(chip["cores"]), int(chip["memory"])) for chip in chips}
    for row in accelerators.load().neuron.values():
        if row.name in devices and kinds == {(row.cores, row.memory_bytes)}:
            return Neuron(**row.model_dump(exclude={"families"}), count=len(chips))
    there = " and ".join(f"chips of {cores} cores with {memory >> 30} GiB" for cores, memory in sorted(kinds))
    raise SizingError(
        f"the node has {there or 'no chips'}, and its Neuron set is for {', '.join(devices)}: launch a type"
        " with such chips, or replace the instance where one of its chips is broken"
    )


def plan(
    chips: Sequence[Mapping[str, Any]],
    devices: Sequence[str],
    model_id: str,
    shape: Mapping[str, Any],
    dtype: str,
    **asked: Any,
) -> dict[str, Any]:
    """The cores of one engine, and the flags of vLLM that go with them.

    The runtime gives a core to one process and to no other, so an engine gets the first that it needs and no
    more. ``asked`` are options of ``size_neuron``; zeros count as not given.

    Raises:
        SizingError: the model does not fit, or what is asked contradicts it or the node.
    """
    return on(found(chips, devices), model_id, shape, dtype, **asked)


def on(neuron: Neuron, model_id: str, shape: Mapping[str, Any], dtype: str, **asked: Any) -> dict[str, Any]:
    """The same for chips that are known, such as those of an instance type that is not there yet.

    Raises:
        SizingError: as for ``plan``.
    """
    decoder = accelerator_sizing.decoder(model_id, models.ModelShape.model_validate(dict(shape)), dtype)
    given = {name: int(value) for name, value in asked.items() if int(value)}
    one = accelerator_sizing.size_neuron(neuron, decoder, **given)
    last = one.tensor_parallel - 1
    return {
        "device": neuron.name,
        "chips": neuron.count,
        "cores": neuron.total_cores,
        "idle_cores": neuron.total_cores - one.tensor_parallel,
        "visible_cores": f"0-{last}" if last else "0",
        "flags": {
            "tensor-parallel-size": one.tensor_parallel,
            "max-model-len": one.max_model_len,
            "max-num-seqs": one.max_num_seqs,
            # The plugin's blocks are as long as the longest request; with fewer of them than requests it
            # reads out of bounds (README of vllm-neuron).
            "num-gpu-blocks-override": one.max_num_seqs,
            # vLLM's default is on, which wants blocks of another length, and is wrong for one request at once
            # (README of vllm-neuron). Written so, since vLLM leaves out what is false in a file of arguments.
            "no-enable-prefix-caching": True,
        },
    }
