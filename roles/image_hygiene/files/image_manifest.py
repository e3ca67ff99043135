#!/usr/bin/python3
"""Write what an image is made of to /usr/share/ingot/image.json.

    image_manifest.py [--root DIR] [--dry-run] < INPUTS

INPUTS is a JSON object with what only the bake knows (image, name, commit, created, base, roles); the rest is
read from the machine. The file is written only when more than the fields of VOLATILE differ, so that a bake
that changed nothing leaves it as it is. Prints "changed" or "unchanged". Standard library only.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

SCHEMA = 1
INPUTS = ("image", "name", "commit", "created", "base", "roles")
#: Differs from one minute to the next on a machine where nothing happens.
VOLATILE = ("free_bytes",)


class InputError(Exception):
    """What came on standard input is not what is wanted."""


def read_inputs(text: str) -> dict[str, Any]:
    """Parse the inputs.

    Raises:
        InputError: they are no JSON object with exactly the wanted keys.
    """
    try:
        inputs = json.loads(text)
    except ValueError as error:
        raise InputError(f"the inputs are no JSON: {error}") from error
    if not isinstance(inputs, dict) or set(inputs) != set(INPUTS):
        raise InputError(f"the inputs must be an object with {', '.join(INPUTS)}")
    return inputs


def operating_system(root: Path) -> str:
    for line in _lines(root / "etc/os-release"):
        key, _, value = line.partition("=")
        if key == "PRETTY_NAME":
            return value.strip('"')
    return "unknown"


def debian_packages(root: Path) -> dict[str, str]:
    """Installed packages and their versions, from dpkg's own status file."""
    packages: dict[str, str] = {}
    name = ""
    installed = False
    for line in _lines(root / "var/lib/dpkg/status"):
        key, _, value = line.partition(": ")
        if key == "Package":
            name, installed = value, False
        elif key == "Status":
            installed = value.endswith(" installed")
        elif key == "Version" and installed:
            packages[name] = value
    return packages


def facts(root: Path) -> dict[str, Any]:
    """What roles say of what they installed (versions, locks, hashes of weights), by file name."""
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted((root / "usr/share/ingot/facts.d").glob("*.json"))
    }


def builder(root: Path) -> dict[str, Any]:
    """Who the builder is, so that a clone can be told from it; the machine id is private, and so hashed."""
    machine_id = "".join(_lines(root / "etc/machine-id"))
    keys = {}
    for path in sorted((root / "etc/ssh").glob("ssh_host_*_key.pub")):
        key = base64.b64decode("".join(_lines(path)).split()[1])
        keys[path.name] = base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")
    hashed = hashlib.sha256(f"{machine_id}\n".encode()).hexdigest() if machine_id else ""
    return {"machine_id": hashed, "ssh_host_keys": keys}


def gather(inputs: dict[str, Any], root: Path) -> dict[str, Any]:
    packages = debian_packages(root)
    modules = root / "lib/modules"
    return {
        "schema": SCHEMA,
        **{key: inputs[key] for key in INPUTS},
        "architecture": platform.machine(),
        "os": operating_system(root),
        # The kernels of the image, not the one that happened to run while it was baked.
        "kernels": sorted(path.name for path in modules.iterdir()) if modules.is_dir() else [],
        "packages": len(packages),
        "facts": facts(root),
        "builder": builder(root),
        "free_bytes": shutil.disk_usage(root).free,
    }


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _stable(manifest: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in manifest.items() if key not in VOLATILE}


def write(manifest: dict[str, Any], path: Path, dry_run: bool) -> bool:
    """Whether the file had to change. Written beside its place and renamed, so that it is always whole."""
    try:
        if _stable(json.loads(path.read_text(encoding="utf-8"))) == _stable(manifest):
            return False
    except (OSError, ValueError):
        pass  # not there yet, or damaged
    if not dry_run:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".json.new")
        draft.write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        draft.chmod(0o644)
        draft.replace(path)
    return True


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, default=Path("/"))
    parser.add_argument("--dry-run", action="store_true", help="only say whether it would change")
    options = parser.parse_args(arguments)
    try:
        inputs = read_inputs(sys.stdin.read())
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    changed = write(
        gather(inputs, options.root), options.root / "usr/share/ingot/image.json", options.dry_run
    )
    print("changed" if changed else "unchanged")
    return 0


if __name__ == "__main__":
    sys.exit(main())
