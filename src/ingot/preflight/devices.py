"""Whether a machine has what its image computes on, CPUs, GPUs or Neuron chips, and a model fits there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ingot import accelerator_sizing, accelerators, instance_types, models, sizing
from ingot.accelerators import Gpu, Neuron
from ingot.instance_types import InstanceType
from ingot.preflight import fit
from ingot.preflight.refusal import Refusal

if TYPE_CHECKING:  # whose own checks are of this package
    from ingot.images import Image

FEW = 3  # instance types that a person is told
DEVICES = {"nvidia": "NVIDIA GPUs", "neuron": "Neuron chips"}


def check_device(
    what: str, type_name: str, name: str, image: Image, table: Mapping[str, Image]
) -> list[Refusal]:
    """A type has the accelerator of the image, and none that the image would leave idle.

    Of an instance type that is not known nothing is said.

    Args:
        what: the machine in messages.
        type_name: EC2's name of its type.
        name: what the image is called in messages.
        image: its row of packer/images.yml.
        table: all rows.
    """
    known = instance_types.load()
    kind = known.get(type_name)
    if kind is None or _has(kind, image.accelerator):
        return []
    device = accelerators.gpu_of(type_name) or accelerators.neuron_of(type_name)
    there = f"{kind.accelerator_count} {device.name if device else kind.accelerator}"
    fitting = ", ".join(other for other, row in table.items() if _runs(kind, row))
    instead = (
        f", or an image for what it has ({fitting})" if fitting else "; packer/images.yml has none for it"
    )
    if image.accelerator:
        wanted = {instance_types.family(one.name) for one in known.values() if _has(one, image.accelerator)}
        return [
            Refusal(
                "no-accelerator",
                f"{what} has {there if kind.accelerator else 'no accelerator'}, and image {name} is for"
                f" {DEVICES[image.accelerator]}",
                f"Choose a type of {', '.join(sorted(wanted))}{instead}",
            )
        ]
    cost = f" (${kind.usd_hour:.4f} an hour, {instance_types.PRICE_BASIS})" if kind.usd_hour else ""
    running = [one for one in known.values() if _runs(one, image)]
    alike = [one for one in running if one.vcpu >= kind.vcpu and one.memory_mib >= kind.memory_mib]
    without = _cheapest(one.name for one in alike or running)
    return [
        Refusal(
            "accelerator-unused",
            f"{what} has {there}, and image {name} is for CPUs: it would be paid for{cost} and stay idle",
            f"Choose a type without, such as {', '.join(without)}{instead}",
        )
    ]


def _has(kind: InstanceType, accelerator: str) -> bool:
    """A type has that one, or none where that is none."""
    return device_of(kind.name, accelerator) is not None if accelerator else not kind.accelerator


def _runs(kind: InstanceType, image: Image) -> bool:
    """An image is for what a type has."""
    core = not image.core or instance_types.runs(instance_types.core_of(kind.name), image.core)
    return core and kind.arch == image.architecture and _has(kind, image.accelerator)


def _cheapest(names: Iterable[str]) -> list[str]:
    """The cheapest few, those of unknown price last."""
    known = instance_types.load()
    prices = ((known[name].usd_hour is None, known[name].usd_hour or 0, name) for name in names)
    return [name for *_, name in sorted(prices)[:FEW]]


def check_memory(
    what: str,
    type_name: str,
    accelerator: str,
    host: sizing.Host,
    model_id: str,
    model: models.Model,
    serving: Mapping[str, Any],
) -> list[Refusal]:
    """``accelerator`` is that of the image; ``serving`` are the variables of that role.

    Of a type that is not known, or has no such accelerator, nothing is said.
    """
    if not accelerator:
        return fit.check_memory(what, host, model_id, model, serving)
    device = device_of(type_name, accelerator)
    if device is None:
        return []
    try:
        _size(device, model_id, model, serving)
    except sizing.ModelDoesNotFitError as error:
        why, _, helps = str(error).partition(" What helps: ")
        fitting = _fitting(accelerator, model_id, model, serving)
        more = f". It would fit {', '.join(fitting)}" if fitting else ""
        do = helps.rstrip(".")
        return [Refusal("model-does-not-fit", f"{what}: {why.rstrip('.')}", do[0].upper() + do[1:] + more)]
    except sizing.SizingError as error:
        return [
            Refusal(
                "sizing-contradicts",
                f"{what}: {error}",
                "Correct serving_max_model_len, or tensor-parallel-size in serving_engine_flags",
            )
        ]
    return []


def device_of(type_name: str, accelerator: str) -> Gpu | Neuron | None:
    """What a type has of it."""
    if accelerator == "nvidia":
        return accelerators.gpu_of(type_name)
    return accelerators.neuron_of(type_name) if accelerator == "neuron" else None


def _size(
    device: Gpu | Neuron, model_id: str, model: models.Model, serving: Mapping[str, Any]
) -> accelerator_sizing.DeviceSizing:
    flags = serving.get("serving_engine_flags") or {}
    decoder = accelerator_sizing.decoder(model_id, model.shape, model.dtype)
    # 0 is the role's word for "compute it"
    degree = int(flags.get("tensor-parallel-size", 0)) or None
    length = int(serving.get("serving_max_model_len", 0)) or None
    if isinstance(device, Gpu):
        used = float(flags.get("gpu-memory-utilization", accelerator_sizing.UTILIZATION))
        return accelerator_sizing.size_gpu(
            device, decoder, tensor_parallel=degree, max_model_len=length, utilization=used
        )
    requests = int(serving.get("serving_max_num_seqs", 0)) or None
    return accelerator_sizing.size_neuron(
        device, decoder, tensor_parallel=degree, max_model_len=length, max_num_seqs=requests
    )


def _fitting(accelerator: str, model_id: str, model: models.Model, serving: Mapping[str, Any]) -> list[str]:
    """The cheapest types that hold it."""
    fitting = []
    for name in instance_types.load():
        if device := device_of(name, accelerator):
            try:
                _size(device, model_id, model, serving)
            except sizing.SizingError:
                continue
            fitting.append(name)
    return _cheapest(fitting)
