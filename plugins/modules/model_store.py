#!/usr/bin/python
# Copyright: Ingot contributors
# Apache-2.0
"""Keep a model's files in a store: fetch what is missing, let only the right ones in, verify again."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: model_store
short_description: Files of a model, each with the sha256 that the catalogue states
description:
  - A file is downloaded to a hidden directory of the store, hashed, and renamed to its place only if the hash
    is the expected one. What was verified is remembered with size and time of change, so that looking again
    costs nothing until a file changes.
options:
  state:
    description:
      - C(planned) says which files are missing and refuses if the disk cannot hold them; it changes nothing.
      - C(fetched) brings one file, from O(url) or from where O(local) says that it was put.
      - C(sealed) verifies all files, removes those of an earlier revision, and remembers the revision.
      - C(verified) verifies all files and refuses if one is missing or is not what it must be; it changes
        nothing.
    choices: [planned, fetched, sealed, verified]
    type: str
    required: true
  root:
    description: Directory of the store.
    type: path
    required: true
  model:
    description: Id of the model, which is also its directory below O(root).
    type: str
    required: true
  revision:
    description: Revision that the files belong to.
    type: str
    default: ""
  files:
    description: Files of the model, or the one to bring for C(fetched).
    type: list
    elements: dict
    required: true
    suboptions:
      path:
        description: Name below the model's directory.
        type: str
        required: true
      size:
        description: Size in bytes.
        type: int
        required: true
      sha256:
        description: The hash.
        type: str
        required: true
  url:
    description: Where to download the file from. A query string is a secret and is not shown.
    type: str
  token:
    description: Bearer token for that host; it is not sent to a host that it redirects to.
    type: str
  local:
    description: Whether the file was put into the hidden directory already.
    type: bool
    default: false
  reserve:
    description: Bytes that must stay free on the disk.
    type: int
    default: 1073741824
  timeout:
    description: Seconds without a byte after which the connection is given up and tried again.
    type: int
    default: 60
  retries:
    description: How many times a broken download is taken up again.
    type: int
    default: 5
  everything:
    description: Hash every file, whether or not it changed since it was last verified.
    type: bool
    default: false
author: Ingot
"""

EXAMPLES = r"""
- name: Fetch the weights
  model_store:
    state: fetched
    root: /opt/ingot/models
    model: HuggingFaceTB/SmolLM2-135M-Instruct
    files: [{path: model.safetensors, size: 269060552, sha256: 5af571cbf07...}]
    url: https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct/resolve/12fd25f77/model.safetensors
"""

RETURN = r"""
missing:
  description: For C(planned), the files to bring.
  type: list
  returned: success
incoming:
  description: Directory where a file is put for O(local).
  type: str
  returned: success
"""

BLOCK = 1 << 20
RECORD = ".ingot-model.json"
PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class StoreError(Exception):
    """What was asked for is refused; the message names the model, the file and the reason."""


def human(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.1f} MiB"


def inside(name: str, what: str) -> str:
    """The name, if it stays below the directory that it is joined to."""
    if not all(PART.fullmatch(part) for part in name.split("/")):
        raise StoreError(f"{what} {name!r} is refused: it would leave the store, or is no plain name")
    return name


def make_directory(path: Path, stop: Path) -> None:
    """Make a directory and its parents below ``stop``, readable by everybody whatever the umask is."""
    missing = [directory for directory in (path, *path.parents) if not directory.exists()]
    for directory in reversed(missing):
        directory.mkdir()
        if stop in directory.parents:
            directory.chmod(0o755)


class Store:
    """One model in the store."""

    def __init__(self, root: Path, model: str, revision: str) -> None:
        self.model = inside(model, "model id")
        self.root = root
        self.directory = root / model
        self.incoming = root / ".incoming" / model.replace("/", "--")
        self.revision = revision
        self.record = self._read()

    def _read(self) -> dict[str, Any]:
        try:
            read: dict[str, Any] = json.loads((self.directory / RECORD).read_text())
        except (FileNotFoundError, ValueError):
            return {"revision": "", "files": {}}
        return read

    def write(self) -> None:
        partial = self.directory / f"{RECORD}.partial"
        partial.write_text(json.dumps(self.record, indent=1, sort_keys=True))
        partial.chmod(0o644)
        partial.replace(self.directory / RECORD)

    def path(self, file: dict[str, Any]) -> Path:
        return self.directory / inside(file["path"], f"file of {self.model}")

    def partial(self, file: dict[str, Any]) -> Path:
        return self.incoming / inside(file["path"], f"file of {self.model}")

    def is_known(self, file: dict[str, Any]) -> bool:
        """Whether the file is there, untouched since it was verified to be the one that is wanted."""
        known = self.record["files"].get(file["path"])
        try:
            status = self.path(file).stat()
        except FileNotFoundError:
            return False
        return bool(known) and known == [file["sha256"], status.st_size, status.st_mtime_ns]

    def remember(self, file: dict[str, Any]) -> None:
        status = self.path(file).stat()
        self.record["files"][file["path"]] = [file["sha256"], status.st_size, status.st_mtime_ns]

    def check(self, file: dict[str, Any], path: Path, origin: str) -> None:
        """Refuse a file that is not what the catalogue says."""
        named = f"{file['path']} of {self.model} {origin}"
        size = path.stat().st_size
        if size != file["size"]:
            raise StoreError(f"{named} is refused: expected {file['size']} bytes, found {size}")
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != file["sha256"]:
            raise StoreError(f"{named} is refused: expected sha256 {file['sha256']}, found {found}")

    def verify(self, files: list[dict[str, Any]], *, everything: bool) -> None:
        for file in files:
            path = self.path(file)
            if not path.is_file():
                raise StoreError(f"{file['path']} of {self.model} is missing: {path} does not exist")
            if everything or not self.is_known(file):
                self.check(file, path, f"in {self.directory}")

    def missing(self, files: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Files to bring. One that is there and not known is hashed: it may have come with a copy."""
        found = []
        for file in files:
            if not self.is_known(file):
                try:
                    self.check(file, self.path(file), "")
                except (FileNotFoundError, StoreError):
                    found.append(file)
        return found

    def check_space(self, files: list[dict[str, Any]], reserve: int) -> None:
        """Refuse, before the first byte, what the disk cannot hold."""
        needed = 0
        for file in files:
            partial = self.partial(file)
            there = partial.stat().st_size if partial.exists() else 0
            needed += max(file["size"] - there, 0)
        existing = next(path for path in (self.root, *self.root.parents) if path.exists())
        free = shutil.disk_usage(existing).free
        if needed and free < needed + reserve:
            raise StoreError(
                f"the disk of {self.root} is too small for {self.model}: {human(needed)} are to be fetched,"
                f" {human(reserve)} must stay free, and {human(free)} are free"
            )

    def publish(self, file: dict[str, Any]) -> None:
        """Move a verified file to its place."""
        partial, path = self.partial(file), self.path(file)
        make_directory(path.parent, self.root.parent)
        partial.chmod(0o644)
        os.chown(partial, os.geteuid(), os.getegid())
        partial.replace(path)
        self.remember(file)
        self.write()

    def prune(self, files: list[dict[str, Any]]) -> bool:
        """Remove what only an earlier revision had, and what is left of interrupted downloads."""
        wanted = {file["path"] for file in files}
        gone = sorted(set(self.record["files"]) - wanted)
        for name in gone:
            (self.directory / inside(name, f"file of {self.model}")).unlink(missing_ok=True)
            del self.record["files"][name]
        if self.incoming.exists():
            shutil.rmtree(self.incoming)
            return True
        return bool(gone)


class Downloader:
    """One file over HTTP, taken up where it broke off."""

    def __init__(self, url: str, token: str | None, timeout: int, retries: int) -> None:
        self._url = url
        self._token = token
        self._timeout = timeout
        self._retries = retries
        self.shown = url.split("?")[0]

    def fetch(self, size: int, partial: Path) -> None:
        """Bring ``partial`` to ``size`` bytes."""
        for attempt in range(self._retries + 1):
            try:
                self._continue(size, partial)
            except (TimeoutError, ConnectionError, HTTPException, urllib.error.URLError) as error:
                code = getattr(error, "code", None)
                final = code is not None and code < 500 and code not in (408, 429)
                if final or attempt == self._retries:
                    raise StoreError(f"{self.shown} cannot be fetched: {self._reason(error)}") from error
            else:
                if partial.stat().st_size >= size:
                    return
            time.sleep(min(2**attempt, 30))
        raise StoreError(f"{self.shown} ends after {partial.stat().st_size} of {size} bytes")

    def _reason(self, error: Exception) -> str:
        reason = str(getattr(error, "reason", None) or error)
        code = getattr(error, "code", None)
        if code in (401, 403):
            reason += ". The model is gated or private, or the token or link has no right to it"
        return f"{code} {reason}" if code else reason

    def _continue(self, size: int, partial: Path) -> None:
        there = partial.stat().st_size if partial.exists() else 0
        if there > size:
            partial.unlink()
            there = 0
        if there == size:
            return
        request = urllib.request.Request(self._url, headers={"User-Agent": "ingot"})
        if self._token:
            # Not for the host that it redirects to.
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        if there:
            request.add_header("Range", f"bytes={there}-")
        with urllib.request.urlopen(request, timeout=self._timeout) as response:
            # A server that knows no ranges sends the whole file again.
            continued = response.status == 206
            self._write(response, partial, "ab" if continued else "wb", size - (there if continued else 0))

    def _write(self, response: IO[bytes], partial: Path, mode: str, rest: int) -> None:
        with partial.open(mode) as stream:
            while block := response.read(BLOCK):
                rest -= len(block)
                if rest < 0:
                    raise StoreError(f"{self.shown} is longer than the catalogue says")
                stream.write(block)
            stream.flush()
            os.fsync(stream.fileno())


def fetch(store: Store, file: dict[str, Any], parameters: dict[str, Any]) -> None:
    partial = store.partial(file)
    make_directory(partial.parent, store.root)
    origin = "as it was sent"
    if not parameters["local"]:
        downloader = Downloader(
            parameters["url"], parameters["token"], parameters["timeout"], parameters["retries"]
        )
        downloader.fetch(file["size"], partial)
        origin = f"from {downloader.shown}"
    try:
        store.check(file, partial, origin)
    except StoreError:
        partial.unlink(missing_ok=True)
        raise
    store.publish(file)


def run(parameters: dict[str, Any], *, check_mode: bool) -> dict[str, Any]:
    """What the module does; its result."""
    store = Store(Path(parameters["root"]), parameters["model"], parameters["revision"])
    files: list[dict[str, Any]] = parameters["files"]
    for file in files:
        store.path(file)
    result: dict[str, Any] = {"changed": False, "incoming": str(store.incoming)}
    if parameters["state"] == "planned":
        result["missing"] = store.missing(files)
        store.check_space(result["missing"], parameters["reserve"])
    elif parameters["state"] == "fetched":
        result["changed"] = True
        if not check_mode:
            fetch(store, files[0], parameters)
    elif parameters["state"] == "verified":
        store.verify(files, everything=parameters["everything"])
    elif not check_mode:
        store.verify(files, everything=parameters["everything"])
        before = json.dumps(store.record, sort_keys=True)
        for file in files:
            store.remember(file)
        store.record["revision"] = store.revision
        result["changed"] = store.prune(files) or json.dumps(store.record, sort_keys=True) != before
        if result["changed"]:
            store.write()
    return result


def main() -> None:
    file = {
        "path": {"type": "str", "required": True},
        "size": {"type": "int", "required": True},
        "sha256": {"type": "str", "required": True},
    }
    module = AnsibleModule(
        argument_spec={
            "state": {
                "type": "str",
                "choices": ["planned", "fetched", "sealed", "verified"],
                "required": True,
            },
            "root": {"type": "path", "required": True},
            "model": {"type": "str", "required": True},
            "revision": {"type": "str", "default": ""},
            "files": {"type": "list", "elements": "dict", "options": file, "required": True},
            "url": {"type": "str", "no_log": False},
            "token": {"type": "str", "no_log": True},
            "local": {"type": "bool", "default": False},
            "reserve": {"type": "int", "default": 1 << 30},
            "timeout": {"type": "int", "default": 60},
            "retries": {"type": "int", "default": 5},
            "everything": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(**run(module.params, check_mode=module.check_mode))
    except StoreError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{module.params['model']}: {error}")


if __name__ == "__main__":
    main()
