"""What an image is made of.

As one hash, put on the image as a tag: an image whose tag has the same need not be baked again. And as a
record on the image itself: where it says the same as this checkout and inventory, the install phase of the
roles would change nothing, and site.yml leaves it out.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ingot.checkout import ROOT
from ingot.preflight import variables as known

TAG = "ingot:inputs"

ON_THE_IMAGE = ("roles/**/*", "files/**/*", "src/ingot/doctor/**/*", "src/ingot/driver/**/*")
AROUND_IT = (
    "packer/*.pkr.hcl",
    "packer/images.yml",
    "playbooks/image.yml",
    "inventories/image/**/*",
    "plugins/**/*",
    "src/ingot/filters/**/*",
)
IGNORED = ("__pycache__", "README.md", "iam", "containers")
CREDENTIALS = re.compile(r"://[^/\s@]*@")
INSTALLED_FILES = ("vllm_lock",)
"""Variables that name a file of the controller whose contents decide what is installed."""


def digest(root: Path, inventory: Path, extra: Mapping[str, Any]) -> str:
    """The hash over all that a bake reads.

    With the inventory that is layered over the image's own, and the variables that outrank both.
    """
    files = _hash(root, [*_files(root, (*ON_THE_IMAGE, *AROUND_IT)), *inventory.rglob("*")])
    return hashlib.sha256(f"{files} {_json(extra)}".encode()).hexdigest()[:32] if extra else files


def record(variables: Mapping[str, Any], root: Path = ROOT) -> str:
    """The record of a bake with these variables, one line of JSON."""
    return _json({"code": _hash(root, _files(root, ON_THE_IMAGE)), "variables": _of_roles(variables, root)})


def is_current(written: str, variables: Mapping[str, Any], root: Path = ROOT) -> bool:
    """Whether the install phase, run with these variables, would find all as the bake left it.

    What the bake set and nobody sets now was meant for the image, and stays. What only is set now must be
    known to concern the configure phase alone: those are the variables that every inventory has.
    """
    try:
        baked = json.loads(written)
        code, then = baked["code"], baked["variables"]
    except (ValueError, KeyError, TypeError):
        return False  # no image of ours, or one of an older Ingot
    if code != _hash(root, _files(root, ON_THE_IMAGE)):
        return False
    everywhere = known.playbook_options(root / known.DOCUMENTED)
    return all(
        _json(then[name]) == _json(value) if name in then else name in everywhere
        for name, value in _of_roles(variables, root).items()
    )


def _of_roles(variables: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Those that roles read, except secrets, in words that are true of every checkout."""
    options = sorted(known.public_role_options(root / "roles"))
    found = {name: _anywhere(variables[name], root) for name in options if name in variables}
    for name in set(INSTALLED_FILES).intersection(found):
        found[name] = _file(root / found[name])
    return found


def _anywhere(value: Any, root: Path) -> Any:
    """The value, with paths into the checkout made relative to it, and no password in an address."""
    if isinstance(value, Mapping):
        return {key: _anywhere(part, root) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_anywhere(part, root) for part in value]
    if isinstance(value, str) and "://" in value:
        return CREDENTIALS.sub("://", value)
    if isinstance(value, str) and value.startswith("/"):
        path = Path(os.path.normpath(value))
        return str(path.relative_to(root)) if path.is_relative_to(root) else value
    return value


def _file(path: Path) -> dict[str, str]:
    """A file, wherever it is: its name and what is in it."""
    content = path.read_bytes() if path.is_file() else b""
    return {"name": path.name, "sha256": hashlib.sha256(content).hexdigest()}


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


def _files(root: Path, patterns: Iterable[str]) -> list[Path]:
    return [path for pattern in patterns for path in root.glob(pattern)]


def _hash(root: Path, paths: Iterable[Path]) -> str:
    """Over names and contents."""
    total = hashlib.sha256()
    for path in sorted(set(paths)):
        name = path.relative_to(root)
        if path.is_file() and not set(name.parts) & set(IGNORED):
            total.update(str(name).encode() + b"\0")
            total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:32]
