#!/usr/bin/python3
"""Look for the canary of a bake everywhere on an image: no secret that a bake was given may be on it.

    canary.py [--root DIR] < CANARY

CANARY is what `ingot canary` wrote, JSON: {"core": ..., "secrets": {channel: secret}}. Each secret holds the
core, letters and digits that are nowhere else in the world. Looked at are all names and contents of the
image: as they are, in base64 and hexadecimal, as UTF-16, broken over lines, and within gzip, zlib, zstd, xz,
bzip2 and zip at any place of a file, one within another too; that takes in journals, caches and archives.
Standard library only. Prints JSON; exit status 0: not there, 1: there, 2: wrong call.
"""

from __future__ import annotations

import argparse
import base64
import bz2
import ctypes
import json
import lzma
import multiprocessing
import os
import re
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

CHUNK = 16 << 20
OVERLAP = 4096  # of two chunks: a secret, broken over lines in base64, is shorter
LARGEST_MEMBER = 256 << 20
DEPTH = 3
NEVER = ("/proc", "/sys", "/dev", "/run")  # made by the kernel and by each boot
CORE = re.compile(r"[A-Za-z0-9]{16,64}")
#: base64 of the first bytes of gzip, zstd and xz, as in cloud-init's user-data.
PACKED_BASE64_STARTS = (b"H4sI", b"KLUv", b"/Td6W")
PACKED_BASE64 = re.compile(rb"(?:H4sI|KLUv|/Td6W)[A-Za-z0-9+/\s]{32,}={0,2}")


class CanaryError(Exception):
    """What came on standard input is no canary."""


@dataclass(frozen=True)
class Hit:
    path: str
    channel: str
    form: str


@dataclass(frozen=True)
class Canary:
    core: str
    secrets: dict[str, str]

    def forms(self) -> dict[str, bytes]:
        """What is looked for, by what it is called."""
        plain = self.core.encode()
        forms = {
            "as it is": plain,
            "reversed": plain[::-1],
            "UTF-16": self.core.encode("utf-16-le"),
            "hexadecimal": plain.hex().encode(),
            "HEXADECIMAL": plain.hex().upper().encode(),
        }
        for before in range(3):  # its place within base64's groups of three bytes is anybody's
            coded = base64.b64encode(bytes(before) + plain)
            whole = (before + len(plain)) * 8 // 6
            forms[f"base64, {before} before"] = coded[-(-before * 8 // 6) : whole]
        return forms

    def channel(self, around: bytes) -> str:
        """Which secret it is, as far as what stands around it says."""
        for channel, secret in self.secrets.items():
            if secret.encode() in around:
                return channel
        return "one of " + ", ".join(sorted(self.secrets))


def read_canary(text: str) -> Canary:
    """The canary of a bake.

    Raises:
        CanaryError: it is none.
    """
    try:
        given = json.loads(text)
        canary = Canary(str(given["core"]), {str(k): str(v) for k, v in given["secrets"].items()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CanaryError(f"the canary cannot be read: {error!r}") from error
    if not CORE.fullmatch(canary.core):
        raise CanaryError("its core must be 16 to 64 letters and digits: less would be found by chance")
    if lacking := sorted(channel for channel, secret in canary.secrets.items() if canary.core not in secret):
        raise CanaryError(f"the secrets of {', '.join(lacking) or 'no channel'} do not hold its core")
    if not canary.secrets:
        raise CanaryError("it has no secrets, so that nothing could be found")
    return canary


# --- packed data --------------------------------------------------------------------------------------------
# Each takes the data and where in it something begins, and gives what comes before its end, or before damage.
# Most of what begins like packed data is none, so that nothing is copied before it is known.


class _Stream(Protocol):
    @property
    def eof(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int) -> bytes: ...


def _unpack(stream: _Stream, data: bytes, start: int) -> bytes:
    parts: list[bytes] = []
    size, step = 0, 1 << 12
    view = memoryview(data)
    try:
        while start < len(view) and size < LARGEST_MEMBER and not stream.eof:
            parts.append(stream.decompress(view[start : start + step], LARGEST_MEMBER - size))  # type: ignore[arg-type]
            size += len(parts[-1])
            start += step
            step = min(2 * step, 1 << 20)
    except (zlib.error, lzma.LZMAError, OSError, ValueError):
        pass
    return b"".join(parts)


def _gzip(data: bytes, start: int) -> bytes:
    return _unpack(zlib.decompressobj(31), data, start)


def _zlib(data: bytes, start: int) -> bytes:
    return _unpack(zlib.decompressobj(15), data, start)


def _zip_member(data: bytes, start: int) -> bytes:
    """The member with the local header that begins there; stored ones are found as they are."""
    header = data[start : start + 30]
    if len(header) < 30 or int.from_bytes(header[8:10], "little") != zlib.DEFLATED:
        return b""
    names = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    return _unpack(zlib.decompressobj(-15), data, start + 30 + names)


def _xz(data: bytes, start: int) -> bytes:
    return _unpack(lzma.LZMADecompressor(memlimit=1 << 30), data, start)


def _bzip2(data: bytes, start: int) -> bytes:
    return _unpack(bz2.BZ2Decompressor(), data, start)


class _Buffer(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t), ("at", ctypes.c_size_t))


class Zstd:
    """libzstd, which dpkg and systemd bring: Python has none before 3.14."""

    def __init__(self) -> None:
        try:
            self.library = ctypes.CDLL("libzstd.so.1")
        except OSError as error:
            raise CanaryError(
                f"libzstd.so.1 is not there, and journals are packed with it: {error}"
            ) from error
        self.library.ZSTD_createDStream.restype = ctypes.c_void_p
        self.library.ZSTD_decompressStream.restype = ctypes.c_size_t
        self.library.ZSTD_decompressStream.argtypes = (
            ctypes.c_void_p,
            ctypes.POINTER(_Buffer),
            ctypes.POINTER(_Buffer),
        )
        self.library.ZSTD_freeDStream.argtypes = (ctypes.c_void_p,)
        self.library.ZSTD_isError.argtypes = (ctypes.c_size_t,)

    def __call__(self, data: bytes, start: int) -> bytes:
        """The frame that begins there, or as much of it as is whole."""
        stream = self.library.ZSTD_createDStream()
        room = ctypes.create_string_buffer(1 << 17)
        source = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value
        taken = _Buffer(source, len(data), start)
        parts: list[bytes] = []
        size = 0
        try:
            while size < LARGEST_MEMBER:
                given = _Buffer(ctypes.cast(room, ctypes.c_void_p), len(room), 0)
                left = self.library.ZSTD_decompressStream(stream, ctypes.byref(given), ctypes.byref(taken))
                parts.append(room.raw[: given.at])
                size += given.at
                ended = taken.at == taken.size and given.at < given.size
                if self.library.ZSTD_isError(left) or left == 0 or ended:
                    break
        finally:
            self.library.ZSTD_freeDStream(stream)
        return b"".join(parts)


def unpackers() -> dict[str, tuple[re.Pattern[bytes], Callable[[bytes, int], bytes]]]:
    """How each kind of packed data begins, and how it is unpacked."""
    return {
        "gzip": (re.compile(rb"\x1f\x8b\x08"), _gzip),
        "zstd": (re.compile(rb"\x28\xb5\x2f\xfd"), Zstd()),
        "xz": (re.compile(rb"\xfd7zXZ\x00"), _xz),
        "bzip2": (re.compile(rb"BZh[1-9]1AY&SY"), _bzip2),
        "zip": (re.compile(rb"PK\x03\x04"), _zip_member),
        "zlib": (re.compile(rb"\x78[\x01\x5e\x9c\xda]"), _zlib),
    }


# --- looking ------------------------------------------------------------------------------------------------


_scanner: Scanner  # of a process of the pool


class Scanner:
    def __init__(self, canary: Canary) -> None:
        self.canary = canary
        self.forms = canary.forms()
        self.unpackers = unpackers()

    def look(self, data: bytes, within: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
        """Channel and form of all that is in the data."""
        for form, needle in self.forms.items():
            if (at := data.find(needle)) >= 0:
                around = data[max(0, at - 256) : at + 256]
                yield self.canary.channel(around), within + form.partition(",")[0]
        joined = data.translate(None, b"\r\n")
        if len(joined) != len(data):
            for form, needle in self.forms.items():
                if needle in joined and needle not in data:
                    yield self.canary.channel(b""), f"{within}{form.partition(',')[0]}, broken over lines"
        if depth == DEPTH:
            return
        for kind, (magic, unpack) in self.unpackers.items():
            for match in magic.finditer(data):
                unpacked = unpack(data, match.start())
                if len(unpacked) >= len(self.canary.core):
                    yield from self.look(unpacked, f"{within}{kind}, ", depth + 1)
        if not any(start in data for start in PACKED_BASE64_STARTS):  # far cheaper than the expression
            return
        for match in PACKED_BASE64.finditer(data):
            coded = bytes(match.group()).translate(None, b" \t\r\n=")
            decoded = base64.b64decode(coded[: len(coded) // 4 * 4])
            yield from self.look(decoded, f"{within}base64 of ", depth + 1)

    def file(self, path: Path, size: int) -> Iterator[tuple[str, str]]:
        """The same of a file, which need not fit the memory. What is packed is read whole up to a limit."""
        with path.open("rb") as stream:
            data = stream.read(min(CHUNK, size + 1))  # a buffer of a chunk costs more than most files
            while data:
                yield from self.look(data)
                if stream.tell() >= size:
                    return
                more = stream.read(CHUNK - OVERLAP)
                data = data[-OVERLAP:] + more if more else b""

    def packed_file(self, path: Path) -> Iterator[tuple[str, str]]:
        """A large file that is one packed stream from its beginning: its later chunks say nothing alone."""
        with path.open("rb") as stream:
            head = stream.read(16)
            for kind, (magic, unpack) in self.unpackers.items():
                if magic.match(head):
                    stream.seek(0)
                    yield from self.look(unpack(stream.read(LARGEST_MEMBER), 0), f"{kind}, ", 1)

    def tree(self, root: Path, processes: int = 1) -> Iterator[Hit]:
        """All names and files of an image, each hit once; by so many processes, for it is all computing."""
        places = []
        for place, name, path in entries(root):
            if self.canary.core in name:
                yield Hit(f"{place}/…", self.canary.channel(name.encode()), "name of a file")
            places.append((f"{place}/{name}".replace(self.canary.core, "…"), path))
        paths = [path for _, path in places]
        if processes == 1:
            found: Iterable[list[tuple[str, str]]] = map(self.of, paths)
            yield from _hits(places, found)
            return
        with multiprocessing.Pool(processes, _begin, (self.canary,)) as pool:
            yield from _hits(places, pool.imap(_look, paths, chunksize=32))

    def of(self, path: Path) -> list[tuple[str, str]]:
        """Channel and form of all that is in a file, or in what a link says."""
        return sorted(set(self._of(path)))

    def _of(self, path: Path) -> Iterator[tuple[str, str]]:
        try:
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode):
                yield from self.look(os.fsencode(path.readlink()))
            elif stat.S_ISREG(status.st_mode):
                yield from self.file(path, status.st_size)
                if status.st_size > CHUNK:
                    yield from self.packed_file(path)
        except FileNotFoundError:  # gone while we looked
            return


def _hits(places: list[tuple[str, Path]], found: Iterable[list[tuple[str, str]]]) -> Iterator[Hit]:
    for (there, _), inside in zip(places, found, strict=True):
        for channel, form in inside:
            yield Hit(there, channel, form)


def _begin(canary: Canary) -> None:
    """Of each process: the libraries cannot be handed over."""
    global _scanner  # noqa: PLW0603  # the only way that a pool has
    _scanner = Scanner(canary)


def _look(path: Path) -> list[tuple[str, str]]:
    return _scanner.of(path)


def entries(root: Path) -> Iterator[tuple[str, str, Path]]:
    """Directory, name and path of all that is on an image, and on no other file system."""
    device = root.lstat().st_dev
    for directory, names, plain in os.walk(root):
        place = f"/{Path(directory).relative_to(root)}".replace("/.", "", 1).rstrip("/")
        for name in [*plain, *names]:
            yield place, name, Path(directory, name)
        names[:] = [
            name
            for name in names
            if f"{place}/{name}" not in NEVER and _device(Path(directory, name)) == device
        ]


def _device(path: Path) -> int:
    try:
        return path.lstat().st_dev
    except FileNotFoundError:  # gone while we looked
        return -1


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, default=Path("/"), help="tree to look at (default: this system)")
    options = parser.parse_args(arguments)
    try:
        canary = read_canary(sys.stdin.read())
        hits = list(Scanner(canary).tree(options.root, len(os.sched_getaffinity(0))))
    except (CanaryError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    result = {"channels": sorted(canary.secrets), "hits": [asdict(hit) for hit in hits]}
    print(json.dumps(result, indent=1))
    return 1 if hits else 0


if __name__ == "__main__":
    sys.exit(main())
