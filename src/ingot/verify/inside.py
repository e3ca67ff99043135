"""``image.json`` held against what is found on the image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ingot.verify.rows import Row, held, left_out, some

EQUAL = "equal to image.json"
DISTRIBUTIONS = ("torch", "ray")


def rows(
    inside: Mapping[str, Any], tags: Mapping[str, str], running: str = "", machine: str = ""
) -> list[Row]:
    """A row for each thing that the image says of itself.

    ``inside`` as playbooks/files/evidence.py tells it, ``tags`` are the AMI's, ``running`` is the kernel and
    ``machine`` the architecture of a clone.
    """
    manifest = inside["manifest"]
    if not manifest:
        return [held("manifest", False, "/usr/share/ingot/image.json is not there", "it is there")]
    facts = manifest.get("facts", {})
    return [
        _of_tags(manifest, tags),
        *_system(manifest, inside, running, machine),
        *_engine(facts.get("vllm") or {}, inside, tags),
        *_allocator(facts.get("cpu_tuning") or {}, inside),
        *_weights(facts.get("model_store") or {}, inside),
    ]


def _of_tags(manifest: Mapping[str, Any], tags: Mapping[str, str]) -> Row:
    """Somebody may have tagged the image of another bake."""
    wrong = [
        f"{name}: {manifest.get(name)} on the image, {tags.get(f'ingot:{name}')} in its tag"
        for name in ("image", "commit")
        if manifest.get(name) != tags.get(f"ingot:{name}")
    ]
    return held(
        "manifest-tags", not wrong, some(wrong) or f"{manifest['image']} of {manifest['commit']}", EQUAL
    )


def _system(
    manifest: Mapping[str, Any], inside: Mapping[str, Any], running: str, machine: str
) -> Iterator[Row]:
    wrong = [
        f"{name}: {manifest.get(name)} in image.json, {found} found"
        for name, found in (("os", inside["os"]), ("packages", len(inside["debian"])))
        if manifest.get(name) != found
    ]
    if machine and manifest.get("architecture") != machine:
        wrong.append(f"architecture: {manifest.get('architecture')} in image.json, {machine} found")
    yield held(
        "manifest-system",
        not wrong,
        some(wrong) or f"{inside['os']}, {len(inside['debian'])} packages",
        EQUAL,
    )
    kernels = manifest.get("kernels", [])
    if not kernels and not inside["kernels"]:
        yield left_out(
            "manifest-kernel", "the image has no kernel of its own", "the kernel that boots is one of its"
        )
        return
    good = kernels == inside["kernels"] and (not running or running in kernels)
    evidence = f"image.json {kernels}, found {inside['kernels']}, running {running or 'none'}"
    yield held("manifest-kernel", good, evidence, "the same, and one of them boots")


def _engine(facts: Mapping[str, Any], inside: Mapping[str, Any], tags: Mapping[str, str]) -> Iterator[Row]:
    found = inside["python"].get("vllm", {"python": "", "distributions": {}})
    there = {name: of["version"] for name, of in found["distributions"].items()}
    distribution = str(facts.get("distribution", "vllm"))
    pairs = [
        ("python", facts.get("python"), found["python"]),
        (distribution, facts.get("vllm"), there.get(distribution)),
        *((name, facts.get(name), there.get(name)) for name in DISTRIBUTIONS),
    ]
    wrong = [
        f"{name}: {said} in image.json, {version or 'none'} found"
        for name, said, version in pairs
        if str(said).partition("+")[0] != str(version).partition("+")[0]
    ]
    evidence = some(wrong) or ", ".join(f"{name} {version}" for name, _, version in pairs)
    yield held("manifest-versions", not wrong, evidence, EQUAL)
    compiled = facts.get("compiled") or {}
    core = str(compiled.get("cpu", ""))
    flag = str(compiled.get("flag", ""))
    if core or tags.get("ingot:core"):
        good = core == tags.get("ingot:core", "") and flag.endswith(core)
        evidence = (
            f"compiled for {core or 'nothing'} ({flag}), tag ingot:core {tags.get('ingot:core', 'absent')}"
        )
        yield held("manifest-core", good, evidence, "one core in manifest, flag and tag")
    else:
        yield left_out(
            "manifest-core", "the engine is a wheel that chooses at run time", "one core everywhere"
        )


def _allocator(facts: Mapping[str, Any], inside: Mapping[str, Any]) -> Iterator[Row]:
    if library := facts.get("library"):
        there = bool(inside["allocator"])
        evidence = f"{facts.get('allocator')}: {library} {'is there' if there else 'is not there'}"
        yield held("manifest-allocator", there, evidence, "the library that image.json names is there")


def _weights(facts: Mapping[str, Any], inside: Mapping[str, Any]) -> Iterator[Row]:
    wrong = []
    for model, of in facts.items():
        found = inside["weights"].get(model, {})
        for name, digest in of.get("sha256", {}).items():
            if found.get(name) != digest:
                seen = found[name][:12] if found.get(name) else "no such file"
                wrong.append(f"{model}/{name}: {digest[:12]} in image.json, {seen}")
    count = sum(len(of.get("sha256", {})) for of in facts.values())
    if count:
        yield held("manifest-weights", not wrong, some(wrong) or f"sha256 of {count} files", EQUAL)
    else:
        yield left_out("manifest-weights", "the image carries no weights", EQUAL)
