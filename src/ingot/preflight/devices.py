"""Whether a model fits what it would compute on: a host's memory, or that of its GPUs or Neuron chips."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingot import accelerator_sizing, accelerators, instance_types, models, sizing
from ingot.accelerators import Gpu, Neuron
from ingot.preflight import fit
from ingot.preflight.refusal import Refusal

FEW = 3  # instance types that a person is told


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

    Of an accelerated node whose instance type is not known nothing is said.
    """
    if not accelerator:
        return fit.check_memory(what, host, model_id, model, serving)
    if not type_name:
        return []
    device = device_of(type_name, accelerator)
    if device is None:
        devices = "NVIDIA GPU" if accelerator == "nvidia" else "Neuron chip"
        having = [name for name in instance_types.load() if device_of(name, accelerator)]
        families = sorted({instance_types.family(name) for name in having})
        return [
            Refusal(
                "no-accelerator",
                f"{what} has no {devices} that the image is for",
                f"Choose a type of {', '.join(families)}, or an image for CPUs",
            )
        ]
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
    """The cheapest types that hold it, those of unknown price last."""
    fitting = []
    for name, kind in instance_types.load().items():
        if device := device_of(name, accelerator):
            try:
                _size(device, model_id, model, serving)
            except sizing.SizingError:
                continue
            fitting.append((kind.usd_hour is None, kind.usd_hour or 0, name))
    return [name for *_, name in sorted(fitting)[:FEW]]
