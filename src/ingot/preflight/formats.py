"""Whether the engine computes with a model's number formats where it would be served."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from ingot import formats, images, instance_types, models
from ingot.formats import ENGINE_NAMES, UNQUANTISED, Engine, Place
from ingot.preflight.refusal import Refusal

FEW = 5  # alternatives that a person is told


def check_nodes(nodes: Mapping[str, Mapping[str, Any]], model_id: str, model: models.Model) -> list[Refusal]:
    """``nodes`` maps each host to its variables; of one whose instance type is not known nothing is said."""
    alike: dict[tuple[str, str], list[str]] = {}
    for host, variables in sorted(nodes.items()):
        image = images.of_groups(variables.get("group_names", ()))
        accelerator = image[1].accelerator if image else ""
        alike.setdefault((str(variables.get("ec2_instance_type", "")), accelerator), []).append(host)
    return [
        refusal
        for (type_name, accelerator), hosts in alike.items()
        for refusal in check(
            f"{type_name} ({', '.join(hosts)})", type_name, accelerator, model_id, model, nodes[hosts[0]]
        )
    ]


def check(
    what: str,
    type_name: str,
    accelerator: str,
    model_id: str,
    model: models.Model,
    variables: Mapping[str, Any],
) -> list[Refusal]:
    """What the checkpoint is in, or what the engine is told to make of it, works on that instance type.

    ``accelerator`` is that of the image: without one it computes on the CPUs, whatever else there is.
    """
    engine: Engine = "tensorrt_llm" if variables.get("serving_engine") == "tensorrt_llm" else "vllm"
    flags = variables.get("serving_engine_flags") or {}
    method = str(flags.get("quantization") or "")
    if method and engine == "vllm" and (found := _check_method(method, model_id, model)):
        return found
    place = formats.place_of(type_name, accelerator)
    if place is None:
        return []
    dtype = str(flags.get("dtype") or "auto")
    computes = UNQUANTISED.get(formats.DTYPE_ALIASES.get(dtype, dtype), UNQUANTISED[model.dtype])
    made = formats.of_online(method) if not model.quantization else None
    wanted = [(computes, "computes in"), *((name, "is in") for name in model.quantization)]
    if made and engine == "vllm":
        wanted.append((made, f"would be made (serving_engine_flags: quantization {method})"))
    return [
        refusal
        for name, said in wanted
        for refusal in _check_format(what, place, engine, name, f"{model_id} {said} {name}")
    ]


def _check_format(what: str, place: Place, engine: Engine, name: str, said: str) -> list[Refusal]:
    known = formats.load().formats[name]
    claim = known.claim(place, engine)
    if claim.how != "none":
        return []
    choices = []
    others = _others(name, place, engine)
    if name in UNQUANTISED.values() and others:
        dtypes = [dtype for dtype, other in UNQUANTISED.items() if other == others[0]]
        choices.append(f"set serving_engine_flags: {{dtype: {dtypes[0]}}}")
    elif others:
        choices.append(f"serve a checkpoint in {' or '.join(others)}")
    if families := _families(name, place, engine):
        choices.append(f"choose an instance type of {', '.join(families)}")
    if engine == "tensorrt_llm" and known.claim(place, "vllm").works:
        choices.append("set serving_engine: vllm")
    do = ", or ".join(choices) or "serve another checkpoint"
    return [
        Refusal(
            "format-unsupported",
            f"{said} ({known.what}), with which {ENGINE_NAMES[engine]} does not compute on {what}, {place}"
            f" ({claim.source})",
            do[0].upper() + do[1:],
        )
    ]


def _others(name: str, place: Place, engine: Engine) -> list[str]:
    """What works there instead: unquantised for unquantised, else what is nearest in bits."""
    plain = set(UNQUANTISED.values())
    known = formats.load().formats
    working = formats.working(place, engine)
    alike = [other for other in working if (other in plain) == (name in plain)] or working
    return sorted(alike, key=lambda other: abs(known[other].bits - known[name].bits))[:FEW]


def _families(name: str, place: Place, engine: Engine) -> list[str]:
    """Families of the same kind, which an image for this one may be for, on which the format works."""
    places = {other for other in formats.places_of(name, engine) if _kind(other) == _kind(place)}
    accelerator = {"gpu": "nvidia", "inferentia2": "neuron"}.get(_kind(place), "")
    types = [kind for kind in instance_types.load() if formats.place_of(kind, accelerator) in places]
    return sorted({instance_types.family(kind) for kind in types})


def _kind(place: Place) -> str:
    return "gpu" if place in formats.GPUS else "x86" if place.startswith("x86") else place


def _check_method(method: str, model_id: str, model: models.Model) -> list[Refusal]:
    """What `--quantization` is told is a method of the engine, and that of the checkpoint."""
    table = formats.load()
    if method in table.others:
        return []
    usable = _usable()
    if method not in usable:
        near = difflib.get_close_matches(method, usable, n=1)
        return [
            Refusal(
                "format-unsupported",
                f"vLLM {table.vllm} has no quantization {method!r} (serving_engine_flags)",
                f"Write {near[0]!r} if that is meant"
                if near
                else f"Leave it out, and serve a checkpoint in one of {', '.join(_formats())}",
            )
        ]
    named = formats.of_method(method)
    if model.quantization:
        fits = any(name in model.quantization for name in named)
    else:
        fits = formats.of_online(method) is not None
    if fits:
        return []
    is_in = ", ".join(model.quantization) or "not quantised"
    return [
        Refusal(
            "format-contradicts",
            f"serving_engine_flags says quantization {method!r}, and {model_id} is {is_in}",
            "Leave it out, for the engine reads what the checkpoint is in; or serve one in that format",
        )
    ]


def _formats() -> list[str]:
    """The formats that work anywhere."""
    return [name for name in formats.load().formats if formats.places_of(name)]


def _usable() -> list[str]:
    """The words of `--quantization` for them."""
    known = formats.load().formats
    return sorted({word for name in _formats() for word in (*known[name].methods, *known[name].online)})
