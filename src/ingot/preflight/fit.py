"""Whether model and image fit a machine: what a launch knows of a type, and a node of itself."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from ingot import instance_types, models, sizing
from ingot.checkout import ROOT
from ingot.preflight.refusal import Refusal
from ingot.table import TableError

CATALOG = ROOT / "files" / "models.yml"
GIB = 1 << 30
# Disk, as measured on the x86 image: the system after the bake, and the virtual environment with bytecode.
SYSTEM_BYTES = 3 * GIB
VENV_BYTES = 4 * GIB
SPARE = 1.2  # of weights: a download next to what it replaces, and caches
SPARE_BYTES = GIB  # journal, compile caches


def catalog_of(variables: Mapping[str, Any]) -> models.Catalog:
    """The catalogue that the role model_store will use."""
    given = variables.get("model_store_catalog")
    return models.load_catalog(CATALOG) if given is None else models.parse_catalog(given)


def check_catalog(variables: Mapping[str, Any]) -> list[Refusal]:
    """That catalogue can be read, and each entry of it."""
    try:
        catalog_of(variables)
    except TableError as error:
        return [Refusal("bad-model-catalogue", error.why, error.do)]
    return []


def check_model_id(model: str, catalog: models.Catalog) -> list[Refusal]:
    """The id stays within the model store, and the catalogue knows its weights."""
    try:
        models.check_model_id(model)
    except models.ModelError as error:
        return [
            Refusal(
                "model-id-escapes",
                str(error),
                "Write it as <owner>/<name>, letters, digits, dot, dash and underscore only",
            )
        ]
    if model in catalog.models:
        return []
    near = difflib.get_close_matches(model, catalog.models, n=1, cutoff=0.5)
    return [
        Refusal(
            "unknown-model",
            f"the catalogue of models has no {model!r}",
            f"Write {near[0]!r} if that is meant"
            if near
            else f"Make its entry in files/models.yml with: ingot models lock {model}",
        )
    ]


def check_architecture(what: str, found: str, image: str, wanted: str) -> list[Refusal]:
    """``found`` and ``wanted`` in EC2's words; the kernel's own ``aarch64`` is understood."""
    if {"aarch64": "arm64"}.get(found, found) == wanted:
        return []
    return [
        Refusal(
            "architecture-differs",
            f"{what} is {found}, image {image} is {wanted}",
            f"Choose an instance type of architecture {wanted}, or an image built for {found}",
        )
    ]


def check_core(
    what: str, type_name: str, image: str, compiled_for: str, images: Mapping[str, str]
) -> list[Refusal]:
    """A type's core has what the image was compiled to use; else its engine would be ended by SIGILL.

    Not judged are types of unknown core, images that were compiled for none, and cores of two architectures,
    which have a refusal of their own. ``images`` has what each image of the table is compiled for.
    """
    core = instance_types.core_of(type_name)
    if instance_types.runs(core, compiled_for) or not instance_types.runs(compiled_for, core):
        return []
    fitting = sorted(name for name, other in images.items() if instance_types.runs(core, other))
    return [
        Refusal(
            "wrong-core",
            f"{what} has {core} cores, and image {image} was compiled for {compiled_for}",
            f"Choose a type of the families {', '.join(instance_types.families_for(compiled_for))},"
            f" or an image for {core} ({', '.join(fitting) or 'none of packer/images.yml'})",
        )
    ]


def check_memory(
    what: str, host: sizing.Host, model_id: str, model: models.Model, serving: Mapping[str, Any]
) -> list[Refusal]:
    """Weights, KV cache and overhead against the memory; ``serving`` are the variables of that role."""
    try:
        sizing.size(
            host,
            sizing.Model(
                model_id=model_id,
                weight_bytes=model.shape.weight_bytes,
                layers=model.shape.layers,
                kv_heads=model.shape.kv_heads,
                head_dim=model.shape.head_dim,
                max_positions=model.shape.max_model_len,
                dtype=model.dtype,
            ),
            mode=serving["serving_mode"],
            # 0 is the role's word for "compute it"
            max_model_len=int(serving.get("serving_max_model_len", 0)) or None,
            max_num_seqs=int(serving.get("serving_max_num_seqs", 0)) or None,
            kv_cache_bytes=int(serving.get("serving_kv_cache_memory_bytes", 0)) or None,
        )
    except sizing.SizingError as error:
        why, _, helps = str(error).partition(" What helps: ")
        name = (
            "model-does-not-fit" if isinstance(error, sizing.ModelDoesNotFitError) else "sizing-contradicts"
        )
        do = helps.rstrip(".").capitalize() or "Correct that variable"
        return [Refusal(name, f"{what}: {why.rstrip('.')}", do)]
    return []


def disk_needed(weights: int) -> int:
    """Size of a root volume that holds the system, the environment and weights of this size."""
    return SYSTEM_BYTES + VENV_BYTES + SPARE_BYTES + int(weights * SPARE)


def check_disk(what: str, size: int, needed: int, parts: str) -> list[Refusal]:
    if size >= needed:
        return []
    return [
        Refusal(
            "disk-too-small",
            f"{what} has {size / GIB:.1f} GiB, {needed / GIB:.1f} GiB are needed ({parts})",
            "Set launch_volume_gib higher and launch again, or free space",
        )
    ]
