"""Wheels that say what they were made from: a key of everything that went in, written inside."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ingot_vllm import RefusedError

RECORD_NAME = "ingot-build.json"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the oldest time that a zip can hold: the same wheel from the same files


def key_of(inputs: Mapping[str, Any]) -> str:
    """A name for what a wheel is made from; any difference makes another."""
    text = json.dumps(inputs, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _line(name: str, data: bytes) -> tuple[str, str, str]:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return name, f"sha256={digest}", str(len(data))


def _metadata_directory(archive: zipfile.ZipFile, path: Path) -> str:
    names = {name.split("/")[0] for name in archive.namelist() if name.split("/")[0].endswith(".dist-info")}
    if len(names) != 1:
        raise RefusedError(f"{path} is no wheel: it has {len(names)} .dist-info directories")
    return names.pop()


def stamp(source: Path, target: Path, record: Mapping[str, Any]) -> None:
    """Write a wheel again with the record in it, the same bytes for the same content."""
    partial = target.with_name(f".{target.name}.partial")
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as new:
        directory = _metadata_directory(old, source)
        files = {
            name: old.read(name)
            for name in sorted(old.namelist())
            if not name.endswith("/") and name != f"{directory}/RECORD"
        }
        modes = {info.filename: info.external_attr for info in old.infolist()}
        content = {**record, "file": target.name}
        files[f"{directory}/{RECORD_NAME}"] = (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()
        listing = io.StringIO()
        rows = csv.writer(listing, lineterminator="\n")
        rows.writerows(_line(name, data) for name, data in files.items())
        rows.writerow((f"{directory}/RECORD", "", ""))
        files[f"{directory}/RECORD"] = listing.getvalue().encode()
        for name, data in files.items():
            info = zipfile.ZipInfo(name, _EPOCH)
            info.external_attr = modes.get(name) or (0o100644 << 16)
            info.compress_type = zipfile.ZIP_DEFLATED
            new.writestr(info, data)
    partial.replace(target)


def read(path: Path) -> dict[str, Any]:
    """What a wheel says of itself, once every file in it is what its list says.

    Raises:
        RefusedError: it is damaged, or not one of ours.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            directory = _metadata_directory(archive, path)
            listed = {
                row[0]: row for row in csv.reader(io.StringIO(archive.read(f"{directory}/RECORD").decode()))
            }
            present = {name for name in archive.namelist() if not name.endswith("/")}
            for name in sorted(present | listed.keys()):
                if name == f"{directory}/RECORD":
                    continue
                if name not in present or name not in listed:
                    raise RefusedError(f"{path} is damaged: {name} is not in both the wheel and its RECORD")
                if tuple(listed[name]) != _line(name, archive.read(name)):
                    raise RefusedError(f"{path} is damaged: {name} is not what RECORD says. Remove it")
            if f"{directory}/{RECORD_NAME}" not in present:
                raise RefusedError(
                    f"{path} does not say what it was made from: it was not built by Ingot. Remove it"
                )
            record: dict[str, Any] = json.loads(archive.read(f"{directory}/{RECORD_NAME}"))
    except (zipfile.BadZipFile, KeyError, OSError) as error:
        raise RefusedError(f"{path} is damaged or no wheel ({error}). Remove it") from error
    return record


def check(path: Path, key: str) -> dict[str, Any]:
    """What a wheel says of itself, if it was made from what the key stands for.

    Raises:
        RefusedError: it was made from something else, whatever it is called.
    """
    record = read(path)
    if record.get("key") != key or key_of(record.get("inputs", {})) != key:
        raise RefusedError(
            f"{path} was made from other inputs (its key is {record.get('key')}, wanted is {key}): it is not"
            " taken. Remove it from the store"
        )
    return record


def difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Names of the inputs that differ, to say why something is built again."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
