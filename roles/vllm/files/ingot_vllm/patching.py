"""Patches of ours: unified diffs that say what they are for, applied whole or refused.

Used for the packages of an environment (engine.py) and for vLLM's sources before a build (source.py).
"""

from __future__ import annotations

import json
import py_compile
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ingot_vllm import RefusedError

RECORD = "ingot-patches.json"


@dataclass
class Hunk:
    """Lines to be found in one file, and what to put in their place."""

    file: str
    old: str
    new: str


@dataclass
class Patch:
    """A unified diff with a header that says what it is for."""

    name: str
    title: str
    distributions: list[str]
    version: str
    only_with: str  # a choice that must have been made, or nothing
    hunks: list[Hunk]


def read_patch(path: Path) -> Patch:
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    start = next((i for i, line in enumerate(lines) if line.startswith("--- a/")), None)
    header = "".join(lines[:start])
    fields = dict(re.findall(r"^(Distribution|Version|Only-With): (.+)$", header, flags=re.MULTILINE))
    if start is None or not {"Distribution", "Version"} <= set(fields):
        raise RefusedError(
            f"{path.name} is not a patch of ours: it needs Distribution, Version and a unified diff"
        )
    hunks: list[Hunk] = []
    file = ""
    for line in lines[start:]:
        if line.startswith("+++ b/"):
            file = line[6:].strip()
        elif line.startswith("@@"):
            hunks.append(Hunk(file, "", ""))
        elif not line.startswith("--- a/") and hunks:
            mark, text = line[:1], line[1:]
            if mark not in " -+\n":
                raise RefusedError(f"{path.name}: a line of the diff begins with {mark!r}")
            if mark != "+":
                hunks[-1].old += text if mark != "\n" else "\n"
            if mark != "-":
                hunks[-1].new += text if mark != "\n" else "\n"
    return Patch(
        path.stem,
        lines[0].strip(),
        fields["Distribution"].split(),
        fields["Version"],
        fields.get("Only-With", ""),
        hunks,
    )


def apply(patch: Patch, version: str, root: Path, *, dry_run: bool) -> bool:
    """Apply a patch; whether it had to be. A file is replaced as a whole, and its bytecode compiled anew."""
    if version.split("+")[0] != patch.version:
        raise RefusedError(
            f"patch {patch.name} was written for vLLM {patch.version}, and {version} is installed: see"
            f" whether it is still needed ({patch.title})"
        )
    contents: dict[Path, str] = {}
    changed = False
    for hunk in patch.hunks:
        path = root / hunk.file
        if not path.is_file():
            raise RefusedError(f"patch {patch.name} does not apply: {path} does not exist")
        text = contents.setdefault(path, path.read_text(encoding="utf-8"))
        # What is there already is looked for first: an added line alone leaves the old ones in place.
        if text.count(hunk.new) == 1 and hunk.new:
            continue
        if text.count(hunk.old) != 1:
            raise RefusedError(
                f"patch {patch.name} does not apply: {path} does not have the lines that it changes"
            )
        contents[path] = text.replace(hunk.old, hunk.new)
        changed = True
    if changed and not dry_run:
        for path, text in contents.items():
            partial = path.with_name(f".{path.name}.partial")
            partial.write_text(text, encoding="utf-8")
            partial.chmod(path.stat().st_mode & 0o7777)
            partial.replace(path)
            if path.suffix == ".py":
                py_compile.compile(str(path), doraise=True)
    return changed


def wanted(directory: Path, distribution: str, choices: Collection[str] = ()) -> list[Patch]:
    """The patches of a directory that are meant for a distribution and the choices made."""
    patches = [read_patch(path) for path in sorted(directory.glob("*.patch"))]
    return [
        patch
        for patch in patches
        if distribution in patch.distributions and (not patch.only_with or patch.only_with in choices)
    ]


def apply_all(
    directory: Path,
    root: Path,
    distribution: str,
    version: str,
    *,
    choices: Collection[str] = (),
    dry_run: bool,
) -> list[str]:
    """Apply what is meant for a distribution; names of what changed.

    A patch whose effect is there before Ingot ever applied it is no longer needed, and is refused: it would
    hide that upstream has moved. What Ingot applied is remembered beside what it changed.
    """
    record = root / RECORD
    before: list[str] = json.loads(record.read_text()) if record.exists() else []
    patches = wanted(directory, distribution, choices)
    changed = [patch.name for patch in patches if apply(patch, version, root, dry_run=True)]
    needless = [patch.name for patch in patches if patch.name not in changed and patch.name not in before]
    if needless:
        raise RefusedError(
            f"patch {needless[0]} is no longer needed: {distribution} {version} has its change already."
            f" Remove it from roles/vllm/files/{directory.name}, or take this distribution out of its header"
        )
    if changed and not dry_run:
        # The record first: were it last, an interruption would make ours look like upstream's.
        record.write_text(json.dumps(sorted({*before, *changed})))
        for patch in patches:
            apply(patch, version, root, dry_run=False)
    return changed


def applied(root: Path) -> list[str]:
    """Names of the patches that were applied below a directory."""
    record = root / RECORD
    names: list[str] = json.loads(record.read_text()) if record.exists() else []
    return names
