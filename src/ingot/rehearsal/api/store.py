"""The books across ``down`` and ``up``: moto keeps everything in memory and has no way to save it.

Two files in the state directory, each replaced atomically: ``api.pickle`` (everything but S3: small, and
written before a changing call is answered) and ``s3.pickle`` beside ``objects/``, which holds the objects'
contents once each.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import pickle
import threading
from collections import defaultdict
from pathlib import Path
from types import FunctionType
from typing import Any, Protocol, cast

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_private_key,
)
from moto.backends import get_backend
from moto.s3.models import FakeKey

log = logging.getLogger(__name__)

ACCOUNT = "123456789012"
# Services whose objects point at each other: they must be in one file to stay the same objects.
SERVICES = ("ec2", "autoscaling", "iam", "sts", "ssm", "cloudwatch", "kms")
FORMAT = 1

# How long S3 may be ahead of its file while objects are being written.
S3_DELAY_SECONDS = 1.0


class StateError(Exception):
    """The saved state cannot be read; the message names the file and says what to do."""


class _Lock(Protocol):
    def __enter__(self) -> Any: ...
    def __exit__(self, *args: Any) -> Any: ...


class Store:
    """Saves and restores moto's backends of one account.

    One lock guards the books and their files: with two of them, an answer that is saved and a machine's
    change that is saved could wait for each other.
    """

    def __init__(self, directory: Path, lock: _Lock) -> None:
        self.directory = directory
        self._lock = lock
        self._s3_timer: threading.Timer | None = None

    @property
    def api_file(self) -> Path:
        return self.directory / "api.pickle"

    @property
    def s3_file(self) -> Path:
        return self.directory / "s3.pickle"

    @property
    def objects(self) -> Path:
        return self.directory / "objects"

    def restore(self) -> bool:
        """Put the saved books back into moto. False if there are none.

        Raises:
            StateError: a file is there and cannot be read.
        """
        found = False
        for file in (self.api_file, self.s3_file):
            if not file.exists():
                continue
            try:
                saved = pickle.loads(file.read_bytes())
                if saved["format"] != FORMAT:
                    raise ValueError(f"format {saved['format']}, this version of ingot reads {FORMAT}")
                for service, regions in saved["backends"].items():
                    _backends(service).update(regions)
            except Exception as error:  # unpickling raises whatever the saved classes raise
                raise StateError(
                    f"The local EC2's records in {file} cannot be read ({type(error).__name__}: {error}). "
                    "Start afresh with `ingot local down --purge`, which removes its machines and images."
                ) from error
            found = True
        return found

    def save(self) -> None:
        """Write the books of everything but S3."""
        with self._lock:
            _replace(self.api_file, self._dump(SERVICES, _Pickler))

    def save_s3_soon(self) -> None:
        """Write S3's books in a moment; many objects are often stored in a row."""
        with self._lock:
            if self._s3_timer is None:
                self._s3_timer = threading.Timer(S3_DELAY_SECONDS, self.save_s3)
                self._s3_timer.daemon = True
                self._s3_timer.start()

    def save_s3(self) -> None:
        """Write S3's books and the objects that are not on disk yet."""
        with self._lock:
            self._s3_timer = None
            self.objects.mkdir(mode=0o700, parents=True, exist_ok=True)
            kept: set[str] = set()
            data = self._dump(("s3",), lambda file: _S3Pickler(file, self.objects, kept))
            _replace(self.s3_file, data)
            for path in self.objects.iterdir():
                if path.name not in kept:
                    path.unlink()

    def close(self) -> None:
        """Write everything that is not written yet."""
        with self._lock:
            if self._s3_timer is not None:
                self._s3_timer.cancel()
                self.save_s3()
            self.save()

    def _dump(self, services: tuple[str, ...], pickler: Any) -> bytes:
        backends = {service: dict(_backends(service)) for service in services}
        buffer = io.BytesIO()
        pickler(buffer).dump({"format": FORMAT, "backends": backends})
        return buffer.getvalue()


def _backends(service: str) -> Any:
    """A service's books of our account, by region."""
    return get_backend(cast(Any, service))[ACCOUNT]


class _Pickler(pickle.Pickler):
    """pickle, plus what moto's backends hold and pickle refuses."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, defaultdict) and _is_local(obj.default_factory):
            # SSM: defaultdict(lambda: defaultdict(dict)), the only local function among the services kept
            return _nested_defaultdict, (dict(obj),)
        if isinstance(obj, defaultdict) and type(obj) is not defaultdict:
            # SSM's parameters: a defaultdict whose constructor wants what pickle does not know
            return (
                _restore_defaultdict,
                (type(obj), obj.default_factory),
                obj.__dict__,
                None,
                iter(obj.items()),
            )
        if isinstance(obj, RSAPrivateKey | EllipticCurvePrivateKey):
            # KMS keeps its keys as objects of the library
            return _restore_private_key, (_private_bytes(obj),)
        return NotImplemented


class _S3Pickler(_Pickler):
    """Leaves the contents of objects out and puts them into files of their own."""

    def __init__(self, file: Any, objects: Path, kept: set[str]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._objects = objects
        self._kept = kept

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, FakeKey):
            state = obj.__getstate__()
            content = state.pop("value") or b""
            name = hashlib.sha256(content).hexdigest()
            path = self._objects / name
            if not path.exists():
                _replace(path, content)
            self._kept.add(name)
            return _restore_key, (type(obj), state, path)
        return super().reducer_override(obj)


def _private_bytes(key: RSAPrivateKey | EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())


def _restore_private_key(data: bytes) -> Any:
    return load_der_private_key(data, password=None)


def _is_local(factory: Any) -> bool:
    return isinstance(factory, FunctionType) and "<locals>" in factory.__qualname__


def _inner() -> Any:
    return defaultdict(dict)


def _nested_defaultdict(content: dict[Any, Any]) -> Any:
    return defaultdict(_inner, content)


def _restore_defaultdict(kind: type[defaultdict[Any, Any]], factory: Any) -> Any:
    made = kind.__new__(kind)
    defaultdict.__init__(made, factory)
    return made


def _restore_key(kind: type[FakeKey], state: dict[str, Any], path: Path) -> FakeKey:
    key: Any = object.__new__(kind)
    key.__setstate__(state | {"value": path.read_bytes()})
    return cast(FakeKey, key)


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    partial.replace(path)
