"""What a compiler made, under the key of all that went in. Standard library only: roles copy it to the node.

Neuron's compiler makes a program for each length of input (a bucket). They are good for one model, release,
degree of tensor parallelism, batch and set of buckets, and the engine does not notice another: it takes
whatever lies in its directory, or compiles for hours before it listens. So the directory is called like the
key, and says in a record what went into it and what each file hashes to.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ingot.driver import RefusedError

RECORD = "ingot-neuron.json"
BUCKETS = {"context": "lengths of prompts", "generation": "lengths while tokens are generated"}
Inputs = Mapping[str, Any]


def key(inputs: Inputs) -> str:
    """A hash of all that went in."""
    text = json.dumps(inputs, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def record(directory: Path, inputs: Inputs) -> dict[str, Any]:
    """What a directory with programs says of itself, with the hash of each file."""
    return {
        "inputs": dict(inputs),
        "files": {
            path.relative_to(directory).as_posix(): {"size": path.stat().st_size, "sha256": sha256_of(path)}
            for path in sorted(directory.rglob("*"))
            if path.is_file() and path.name != RECORD
        },
    }


def read(directory: Path) -> dict[str, Any]:
    """The record of a directory.

    Raises:
        RefusedError: there is none, or none that was written by us.
    """
    try:
        found = json.loads((directory / RECORD).read_text(encoding="utf-8"))
        if isinstance(found["inputs"], dict) and isinstance(found["files"], dict):
            return dict(found)
        why = "it holds no inputs and files"
    except OSError as error:
        why = str(error.strerror)
    except (ValueError, KeyError, TypeError) as error:
        why = repr(error)
    raise RefusedError(f"{directory / RECORD} cannot be read: {why}")


def verify(directory: Path, inputs: Inputs, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The directory holds what was made from these inputs, byte by byte.

    Args:
        directory: where it lies.
        inputs: what is wanted.
        known: what this returned before: a file of that size and time of change is not hashed again.

    Returns:
        Size and time of change of each file.

    Raises:
        RefusedError: it was made from others; a file is missing, there is one more, or one is another.
    """
    found = read(directory)
    if differs := difference(found["inputs"], inputs):
        raise RefusedError(f"{directory} was made from other inputs: {differs}")
    there = {
        path.relative_to(directory).as_posix(): path
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != RECORD
    }
    if missing := sorted(set(found["files"]) - set(there)):
        raise RefusedError(f"{directory} lacks {', '.join(missing)}")
    if strange := sorted(set(there) - set(found["files"])):
        raise RefusedError(f"{directory} has {', '.join(strange)}, which its record does not")
    seen = {}
    for name, path in there.items():
        status = path.stat()
        seen[name] = [status.st_size, status.st_mtime_ns]
        wanted = found["files"][name]
        same = (known or {}).get(name) == seen[name]
        if status.st_size != wanted["size"] or (not same and sha256_of(path) != wanted["sha256"]):
            raise RefusedError(f"{path} is not what its record says: it is damaged, or was changed")
    return seen


def difference(made: Inputs, wanted: Inputs) -> str:
    """How two sets of inputs differ, in words; empty where they do not."""
    names = [*wanted, *(name for name in made if name not in wanted)]
    return "; ".join(
        f"{name} {_said(made.get(name))}, wanted is {_said(wanted.get(name))}"
        for name in names
        if made.get(name) != wanted.get(name)
    )


def lacking(wanted: Inputs, held: Iterable[Inputs]) -> str:
    """What is not compiled, in words: the buckets that are missing, or in what the nearest of it differs."""
    alike = [made for made in held if made.get("model") == wanted.get("model")]
    if not alike:
        each = (f"{_said(wanted[name])} ({what})" for name, what in BUCKETS.items())
        return f"nothing is compiled of {wanted['model']}: its buckets {' and '.join(each)} are missing"
    nearest = min(alike, key=lambda made: sum(made.get(name) != wanted[name] for name in wanted))
    missing = {name: sorted(set(wanted[name]) - set(nearest.get(name) or [])) for name in BUCKETS}
    words = [
        f"bucket {_said(lengths)} ({BUCKETS[name]}) is missing"
        for name, lengths in missing.items()
        if lengths
    ]
    rest = difference(
        {name: value for name, value in nearest.items() if not missing.get(name)},
        {name: value for name, value in wanted.items() if not missing.get(name)},
    )
    words += [f"what is compiled is for {rest}"] if rest else []
    return f"of {wanted['model']}: " + "; ".join(words)


def _said(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "not said" if value is None else str(value) or "none"


def sha256_of(path: Path) -> str:
    """Of a file of any size."""
    with path.open("rb") as stream:
        digest = hashlib.sha256()
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
