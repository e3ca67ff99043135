"""What an image holds, and what became of it since another: packages, units, ports, settings, sizes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ingot.table import Strict
from ingot.verify.rows import Row, held, left_out

MIB = 1 << 20


class Contents(Strict):
    """Of a clone that nobody has configured. ``packages`` and the like: version or value by name.

    ``sizes``: bytes on disk by directory. ``volume_gib``: the least root volume that the image starts with.
    """

    image_id: str
    name: str
    commit: str
    volume_gib: int
    kernels: tuple[str, ...]
    packages: dict[str, str]
    distributions: dict[str, str]
    engine: dict[str, str]
    weights: dict[str, str]
    units: tuple[str, ...]
    ports: tuple[str, ...]
    sysctls: dict[str, str]
    sizes: dict[str, int]

    @property
    def bytes(self) -> int:
        """All that is on the root volume."""
        return sum(self.sizes.values())


class Change(Strict):
    """One thing that is new (``before`` is empty), gone (``after`` is), or another."""

    what: str
    name: str
    before: str
    after: str


def of(image_id: str, volume_gib: int, fresh: Mapping[str, Any]) -> Contents | None:
    """By what was found on the fresh clone; None if it has no manifest, and so is no image of ours."""
    inside = fresh["evidence"]["inside"]
    manifest = inside["manifest"]
    if not manifest:
        return None
    return Contents(
        image_id=image_id,
        name=str(manifest.get("name", "")),
        commit=str(manifest.get("commit", "")),
        volume_gib=volume_gib,
        kernels=tuple(inside["kernels"]),
        packages={name: package["version"] for name, package in inside["debian"].items()},
        distributions={
            f"{venv}: {name}": distribution["version"]
            for venv, environment in inside["python"].items()
            for name, distribution in environment["distributions"].items()
        },
        engine=dict(_flat("", manifest.get("facts", {}).get("vllm") or {})),
        weights={
            f"{model}/{name}": digest
            for model, files in inside["weights"].items()
            for name, digest in files.items()
        },
        units=tuple(inside["units"]),
        # Not on which address: every clone has its own.
        ports=tuple(re.sub(r" on \S+", "", one) for one in fresh["surface"]["listening"]),
        sysctls=inside["sysctls"],
        sizes=inside["sizes"],
    )


def _flat(prefix: str, facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}", str(value)


def changes(before: Contents, after: Contents) -> list[Change]:
    """All that is not the same, in the order in which a person asks; sizes only from 1 MiB on."""
    found = [*_named("kernel", dict.fromkeys(before.kernels, "there"), dict.fromkeys(after.kernels, "there"))]
    for what, field in (
        ("engine", "engine"),
        ("package", "packages"),
        ("Python distribution", "distributions"),
        ("file of weights", "weights"),
        ("sysctl", "sysctls"),
    ):
        found += _named(what, getattr(before, field), getattr(after, field))
    for what, field in (("enabled unit", "units"), ("port", "ports")):
        old, new = (dict.fromkeys(getattr(side, field), "there") for side in (before, after))
        found += _named(what, old, new)
    for name in sorted({*before.sizes, *after.sizes}):
        one, other = before.sizes.get(name, 0), after.sizes.get(name, 0)
        if abs(one - other) >= MIB:
            found.append(Change(what="size", name=name, before=mib(one), after=mib(other)))
    return found


def _named(what: str, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Change]:
    for name in sorted({*before, *after}):
        one, other = before.get(name, ""), after.get(name, "")
        if one != other:
            yield Change(what=what, name=name, before=one, after=other)


def mib(size: int) -> str:
    return f"{size / MIB:,.0f} MiB"


def row(before: Contents | None, after: Contents) -> Row:
    """The size of the root is an interface: volumes that are launched with the old one must still do."""
    limit = "no larger a root volume than the published image needs"
    if before is None:
        return left_out("root-size", f"{after.volume_gib} GiB; held against no other image", limit)
    evidence = (
        f"{after.volume_gib} GiB, {mib(after.bytes)} used; {before.image_id}: {before.volume_gib} GiB,"
        f" {mib(before.bytes)} used"
    )
    return held("root-size", after.volume_gib <= before.volume_gib, evidence, limit)
