"""The canary of a bake: found in each form and place in which a secret may stay on an image."""

from __future__ import annotations

import base64
import bz2
import ctypes
import gzip
import io
import json
import lzma
import os
import py_compile
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from program import load

from ingot import image_inputs
from ingot.verify import canary as making

canary = load(Path(__file__).resolve().parents[2] / "roles/image_hygiene/files/canary.py")

CORE = "Zq7Xw9Lm2Kp4Rt6Yb8Nc"
SECRETS = {"hugging_face": f"hf_{CORE}AAAA", "index_url": f"https://bot:{CORE}BBBB@pypi.example.com/simple/"}
SECRET = SECRETS["hugging_face"].encode()
NOISE = bytes(range(256)) * 400


def _zstd(data: bytes) -> bytes:
    """As systemd packs an entry of its journal."""
    library = ctypes.CDLL("libzstd.so.1")
    library.ZSTD_compressBound.restype = library.ZSTD_compress.restype = ctypes.c_size_t
    size = ctypes.c_size_t(library.ZSTD_compressBound(len(data)))
    room = ctypes.create_string_buffer(size.value)
    packed = library.ZSTD_compress(room, size, data, ctypes.c_size_t(len(data)), 3)
    return room.raw[:packed]


def _tar_gz(data: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        member = tarfile.TarInfo("root/.netrc")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def _zip(data: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("wheel/METADATA", data * 20)
    return out.getvalue()


FORMS: dict[str, Callable[[bytes], bytes]] = {
    "as it is": lambda data: data,
    "behind a binary": lambda data: NOISE + data,
    "base64": base64.b64encode,
    "base64 one byte later": lambda data: base64.b64encode(b"x" + data),
    "base64 two bytes later": lambda data: base64.b64encode(b"xy" + data),
    "base64 in lines": lambda data: base64.encodebytes(b"user: x, password: and then some, as YAML " + data),
    "base64 of gzip": lambda data: base64.b64encode(gzip.compress(data + b" " * 60)),
    "hexadecimal": lambda data: data.hex().encode(),
    "UTF-16": lambda data: data.decode().encode("utf-16"),
    "gzip": gzip.compress,
    "gzip within a file": lambda data: NOISE + gzip.compress(NOISE + data),
    "gzip cut off": lambda data: gzip.compress(data + NOISE)[:-40],
    "zlib": lambda data: NOISE + zlib.compress(data + NOISE),
    "zstd": _zstd,
    "zstd within a journal": lambda data: NOISE + _zstd(b"_CMDLINE=packer build " + data * 40) + NOISE,
    "xz": lzma.compress,
    "bzip2": bz2.compress,
    "zip": _zip,
    "tar.gz": _tar_gz,
    "gzip of zstd": lambda data: gzip.compress(_zstd(data)),
}


@pytest.fixture
def scanner() -> Any:
    return canary.Scanner(canary.Canary(CORE, SECRETS))


def _hits(scanner: Any, root: Path) -> list[Any]:
    return list(scanner.tree(root))


@pytest.mark.planted("secrets of the bake", check="canary", defect="a secret, {}")
@pytest.mark.parametrize("form", FORMS)
def test_a_secret_is_found_in_each_form(scanner: Any, tmp_path: Path, form: str) -> None:
    (tmp_path / "var").mkdir()
    (tmp_path / "var/it").write_bytes(FORMS[form](SECRET))
    found = _hits(scanner, tmp_path)
    assert {hit.path for hit in found} == {"/var/it"}, form


@pytest.mark.parametrize("form", FORMS)
def test_what_is_no_secret_is_not_found_in_any_form(scanner: Any, tmp_path: Path, form: str) -> None:
    (tmp_path / "it").write_bytes(FORMS[form](b"hf_" + CORE[::2].encode() * 2 + b"AAAA"))
    assert _hits(scanner, tmp_path) == []


def test_compiled_python_is_looked_into(scanner: Any, tmp_path: Path) -> None:
    source = tmp_path / "settings.py"
    source.write_text(f"KEY = '{SECRETS['hugging_face']}'\n")
    py_compile.compile(str(source), cfile=str(tmp_path / "__pycache__/settings.cpython.pyc"))
    source.unlink()
    assert [hit.path for hit in _hits(scanner, tmp_path)] == ["/__pycache__/settings.cpython.pyc"]


def test_names_and_links_are_looked_at_and_not_repeated(scanner: Any, tmp_path: Path) -> None:
    (tmp_path / f"cache-{CORE}").mkdir()
    (tmp_path / "link").symlink_to(SECRETS["index_url"])
    found = _hits(scanner, tmp_path)
    assert {(hit.path, hit.form) for hit in found} == {("/…", "name of a file"), ("/link", "as it is")}
    assert CORE not in str(found)


def test_a_secret_on_the_border_of_two_chunks_is_found(
    scanner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canary, "CHUNK", 8192)
    (tmp_path / "it").write_bytes(b"x" * (8192 - 10) + SECRET + b"y" * 9000)
    assert [hit.channel for hit in _hits(scanner, tmp_path)] == ["hugging_face"]
    (tmp_path / "it").write_bytes(gzip.compress(base64.b64encode(random_bytes(60000)) + b"!" + SECRET))
    assert [hit.form for hit in _hits(scanner, tmp_path)] == ["gzip, as it is"]


def test_several_processes_find_what_one_finds(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / f"{number:03}").write_bytes(gzip.compress(SECRET) if number % 40 == 7 else NOISE)
    given = json.dumps({"core": CORE, "secrets": SECRETS})
    command = [sys.executable, str(canary.__file__), "--root", str(tmp_path)]
    said = []
    for cores in (sorted(os.sched_getaffinity(0))[:1], sorted(os.sched_getaffinity(0))):
        done = subprocess.run(
            ["taskset", "--cpu-list", ",".join(map(str, cores)), *command],
            input=given,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1, done.stderr
        said.append(json.loads(done.stdout))
    assert [hit["path"] for hit in said[0]["hits"]] == ["/007", "/047", "/087"]
    assert said[0] == said[1]


def random_bytes(count: int) -> bytes:
    """Such as no compression makes smaller, the same at every call."""
    state, out = 12345, bytearray()
    while len(out) < count:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out += (state >> 24).to_bytes(5, "little")
    return bytes(out[:count])


def test_a_bake_is_given_what_the_scanner_reads(tmp_path: Path) -> None:
    path = tmp_path / "canary.json"
    making.write(path)
    assert path.stat().st_mode & 0o777 == 0o600
    made = canary.read_canary(path.read_text())
    given = [*making.environment(json.loads(path.read_text())).values()]
    given.append(making.user_data(json.loads(path.read_text())))
    assert sum(made.core in value for value in given) == 4
    assert making.environment({}) == {}
    with pytest.raises(FileExistsError):
        making.write(path)


def test_the_password_of_an_index_is_in_no_record_of_the_image() -> None:
    url = {"python_runtime_index_url": SECRETS["index_url"]}
    written = image_inputs.record(url)
    assert CORE not in written
    assert image_inputs.is_current(written, url), "a node of the image has all that is installed"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("nothing", "cannot be read"),
        ("{}", "cannot be read"),
        (json.dumps({"core": "short", "secrets": {}}), "16 to 64"),
        (json.dumps({"core": CORE, "secrets": {}}), "no secrets"),
        (json.dumps({"core": CORE, "secrets": {"s3": "another"}}), "secrets of s3 do not hold"),
    ],
)
def test_what_is_no_canary_is_refused(given: str, said: str) -> None:
    with pytest.raises(canary.CanaryError, match=said):
        canary.read_canary(given)


def test_the_command_says_what_it_found_and_not_the_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = json.dumps({"core": CORE, "secrets": SECRETS})
    (tmp_path / "pip.conf").write_text(f"index-url = {SECRETS['index_url']}\n")
    for status in (1, 0):
        monkeypatch.setattr("sys.stdin", io.StringIO(given))
        assert canary.main(["--root", str(tmp_path)]) == status
        said = capsys.readouterr().out
        assert CORE not in said
        assert ("index_url" in str(json.loads(said)["hits"])) == bool(status)
        (tmp_path / "pip.conf").unlink(missing_ok=True)
