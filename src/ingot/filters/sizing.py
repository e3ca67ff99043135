"""Jinja face of ``ingot.sizing`` and ``ingot.accelerator_sizing``: what fits, for roles and playbooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from ansible.errors import AnsibleFilterError

from ingot import accelerator_sizing, accelerators, instance_types, models, sizing


def ingot_sizing(
    shape: Mapping[str, Any], model_id: str, cores: int, memory_bytes: int, **options: Any
) -> dict[str, int]:
    """Size a replica for a host.

    Args:
        shape: the model's, as in files/models.yml (weight_bytes, layers, kv_heads, head_dim, max_model_len).
        model_id: its name, for messages.
        cores, memory_bytes: of the smallest host that serves it.
        options: ``dtype``, ``shm_bytes`` and those of ``ingot.sizing.size``. Empty strings and zeros count as
            not given, so that a role can pass its own variables through.
    """
    given = {key: value for key, value in options.items() if value not in ("", 0, None)}
    shm = given.pop("shm_bytes", None)
    try:
        model = sizing.Model(
            model_id=model_id,
            weight_bytes=int(shape["weight_bytes"]),
            layers=int(shape["layers"]),
            kv_heads=int(shape["kv_heads"]),
            head_dim=int(shape["head_dim"]),
            max_positions=int(shape["max_model_len"]),
            dtype=given.pop("dtype", "bfloat16"),
        )
        host = sizing.Host(int(cores), int(memory_bytes), None if shm is None else int(shm))
        return sizing.as_dict(sizing.size(host, model, **given))
    except KeyError as error:
        raise AnsibleFilterError(f"the shape of {model_id} has no {error.args[0]!r}") from error
    except (sizing.SizingError, TypeError) as error:
        raise AnsibleFilterError(str(error)) from error


def ingot_device_sizing(
    shape: Mapping[str, Any],
    model_id: str,
    dtype: str,
    instance_type: str,
    *,
    eager: bool = False,
    drain_s: int = 120,
    **options: Any,
) -> dict[str, int]:
    """Size an engine for the GPUs or Neuron chips of an instance type.

    Args:
        shape: the model's, as in files/models.yml.
        model_id: its name, for messages.
        dtype: what it computes in.
        instance_type: EC2's name.
        eager, drain_s: those of ``ingot.sizing.size``.
        options: those of ``size_gpu`` and ``size_neuron``; empty strings and zeros count as not given.
    """
    given = {key: value for key, value in options.items() if value not in ("", 0, None)}
    try:
        decoder = accelerator_sizing.decoder(model_id, models.ModelShape.model_validate(dict(shape)), dtype)
        if gpu := accelerators.gpu_of(instance_type):
            sized = accelerator_sizing.size_gpu(gpu, decoder, **given)
        elif neuron := accelerators.neuron_of(instance_type):
            sized = accelerator_sizing.size_neuron(neuron, decoder, **given)
        else:
            raise AnsibleFilterError(f"{instance_type!r} has no GPU or Neuron chip of files/accelerators.yml")
    except (sizing.SizingError, ValueError, TypeError) as error:
        raise AnsibleFilterError(str(error)) from error
    # Weights are read once for each engine, by the host; all else of it is on the devices.
    weights = sized.engines * decoder.weight_bytes
    cores = instance_types.get(instance_type).vcpu
    return asdict(sized) | {
        "needed_bytes": sized.needed_bytes,
        "engine_bytes": 0,
        "start_timeout_s": sizing.start_timeout_s(weights, cores, eager=eager),
        "stop_timeout_s": drain_s + sizing.STOP_MARGIN,
    }


def ingot_ray_num_cpus(cores: int) -> int:
    """Logical CPUs that a node of this many cores announces to Ray."""
    return sizing.ray_num_cpus(int(cores))


def ingot_object_store_bytes(memory_bytes: int, shm_bytes: int | None = None) -> int:
    """Size of Ray's object store on a host."""
    return sizing.object_store_bytes(int(memory_bytes), None if shm_bytes is None else int(shm_bytes))


FILTERS: dict[str, Callable[..., Any]] = {
    "ingot_device_sizing": ingot_device_sizing,
    "ingot_object_store_bytes": ingot_object_store_bytes,
    "ingot_ray_num_cpus": ingot_ray_num_cpus,
    "ingot_sizing": ingot_sizing,
}
