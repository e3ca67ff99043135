"""Stub: the CUDA libraries that PyPI's torch is linked against, as one small wheel of empty ones.

Usage: stub_wheel.py MACHINE DIRECTORY     (MACHINE: x86_64 or aarch64)

Torch's CPU build lives on an index of its own, and that is what a user's image gets. The rehearsal installs
from PyPI alone, where torch is a CUDA build: on a machine without a GPU it needs 15 libraries (2.7 GB) only
to be loaded, never to be called in earnest. This wheel puts empty libraries of those names beside torch, all
of them needing one more that defines every symbol torch looks up; each function answers 100, which is CUDA's
"no device".

The libraries are written here, byte by byte, so that no compiler is needed and the wheel is the same
everywhere: a lock file can hold its hash.
"""

from __future__ import annotations

import base64
import hashlib
import os
import struct
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

NAME = "ingot-cuda-stub"
VERSION = "1"

# Names that the ELF files of torch's wheel need (`readelf -d`). The functions they look up are listed in
# symbols.txt (`readelf -W --dyn-syms`: undefined, beginning with cu, nccl or nv, or with two underscores
# and cu).
_SONAMES = (
    "libcublas.so.13",
    "libcublasLt.so.13",
    "libcuda.so.1",
    "libcudart.so.13",
    "libcudnn.so.9",
    "libcufft.so.12",
    "libcufile.so.0",
    "libcupti.so.13",
    "libcurand.so.10",
    "libcusolver.so.12",
    "libcusparse.so.12",
    "libcusparseLt.so.0",
    "libnccl.so.2",
    "libnvrtc.so.13",
    "libnvshmem_host.so.3",
)
# The functions live in a library that no symbol version mentions: the loader asserts that a library which a
# version names has versions itself, and ours have none.
_COMMON = "libingot_cuda_stub.so.1"


class _Machine(NamedTuple):
    """What differs in an ELF file."""

    number: int  # e_machine
    page: int  # the largest that its kernels have
    no_device: bytes  # a function that returns 100, cudaErrorNoDevice


MACHINES = {
    "x86_64": _Machine(62, 0x1000, b"\xb8\x64\x00\x00\x00\xc3"),  # mov eax, 100; ret
    "aarch64": _Machine(183, 0x10000, struct.pack("<2I", 0x52800C80, 0xD65F03C0)),  # mov w0, #100; ret
}
_DT_NEEDED, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT = 1, 4, 5, 6, 10, 11
_DT_SONAME, _DT_RUNPATH = 14, 29


def _elf_hash(name: str) -> int:
    value = 0
    for char in name.encode():
        value = (value << 4) + char
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & ~high
    return value


def _hash_table(functions: list[str]) -> bytes:
    """The System V hash table over a symbol table whose entry 0 is the null symbol."""
    bucket_count, symbol_count = max(1, len(functions) // 2), len(functions) + 1
    buckets, chains = [0] * bucket_count, [0] * symbol_count
    for index, name in enumerate(functions, start=1):
        bucket = _elf_hash(name) % bucket_count
        chains[index], buckets[bucket] = buckets[bucket], index
    return struct.pack(f"<{2 + bucket_count + symbol_count}I", bucket_count, symbol_count, *buckets, *chains)


def shared_object(machine: str, soname: str, needed: list[str], functions: list[str]) -> bytes:
    """An ELF library that needs ``needed`` and defines ``functions``, all with the same body."""
    number, page, no_device = MACHINES[machine]
    strings = bytearray(b"\0")

    def string(text: str) -> int:
        offset = len(strings)
        strings.extend(text.encode() + b"\0")
        return offset

    entries = [(_DT_NEEDED, string(name)) for name in needed]
    entries += [(_DT_SONAME, string(soname)), (_DT_RUNPATH, string("$ORIGIN"))]
    names_at = [string(name) for name in functions]

    # One segment to read and execute: headers, the one function body, symbols, hash table, strings. Then, on
    # a page of its own, the dynamic section, which the loader may write to.
    header_size, program_header_size, program_headers = 64, 56, 4
    text_at = header_size + program_header_size * program_headers
    symbols_at = -(-(text_at + len(no_device)) // 8) * 8
    symbols = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", at, 0x12, 0, 1, text_at, len(no_device))
        for at in names_at  # a global function
    )
    hash_at = symbols_at + len(symbols)
    hash_table = _hash_table(functions)
    strings_at = hash_at + len(hash_table)
    end = strings_at + len(strings)
    dynamic_at = -(-end // page) * page

    entries += [
        (_DT_HASH, hash_at),
        (_DT_STRTAB, strings_at),
        (_DT_SYMTAB, symbols_at),
        (_DT_STRSZ, len(strings)),
        (_DT_SYMENT, 24),
        (0, 0),
    ]
    dynamic = b"".join(struct.pack("<QQ", tag, value) for tag, value in entries)

    def program_header(kind: int, flags: int, at: int, size: int, align: int) -> bytes:
        return struct.pack("<IIQQQQQQ", kind, flags, at, at, at, size, size, align)

    identification = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)  # 64 bits, little endian, version 1
    head = (
        identification
        + struct.pack("<HHIQQQI", 3, number, 1, 0, header_size, 0, 0)  # shared object
        + struct.pack("<HHHHHH", header_size, program_header_size, program_headers, 64, 0, 0)
        + program_header(1, 5, 0, end, page)  # PT_LOAD, read and execute
        + program_header(1, 6, dynamic_at, len(dynamic), page)  # PT_LOAD, read and write
        + program_header(2, 6, dynamic_at, len(dynamic), 8)  # PT_DYNAMIC
        + program_header(
            0x6474E551, 6, 0, 0, 16
        )  # PT_GNU_STACK: without it the loader wants an executable stack
    )
    body = (head + no_device).ljust(symbols_at, b"\0") + symbols + hash_table + bytes(strings)
    return body.ljust(dynamic_at, b"\0") + dynamic


def libraries(machine: str) -> dict[str, bytes]:
    """File name to content of every stub library."""
    functions = Path(__file__).with_name("symbols.txt").read_text().split()
    made = {soname: shared_object(machine, soname, [_COMMON], []) for soname in _SONAMES}
    return made | {_COMMON: shared_object(machine, _COMMON, [], functions)}


def filename(machine: str) -> str:
    return f"{NAME.replace('-', '_')}-{VERSION}-py3-none-manylinux_2_17_{machine}.whl"


def build_wheel(directory: Path, machine: str) -> Path:
    """Write the wheel into ``directory`` (atomically) and return its path."""
    info = f"{NAME.replace('-', '_')}-{VERSION}.dist-info"
    files = {f"torch/lib/{name}": content for name, content in libraries(machine).items()}
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n".encode()
    file_name = filename(machine)
    tag = file_name.removesuffix(".whl").split("-", 2)[2]
    files[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: ingot\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    )
    record = f"{info}/RECORD"
    lines = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=').decode()},"
        f"{len(content)}"
        for name, content in files.items()
    ]
    files[record] = "\n".join([*lines, f"{record},,", ""]).encode()

    target = directory / file_name
    partial = directory / f".{file_name}.{os.getpid()}"
    # Stored, not compressed, and all of one date: what zlib makes differs by version, and the hash must not.
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as wheel:
        for name, content in files.items():
            member = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            member.external_attr = 0o644 << 16
            wheel.writestr(member, content)
    partial.replace(target)
    return target


if __name__ == "__main__":
    print(build_wheel(Path(sys.argv[2]), sys.argv[1]))
