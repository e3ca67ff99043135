"""Role vllm, method source: a wheel says what it was made from, and no other is taken in its place."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from ingot_vllm import RefusedError, wheel

INPUTS: dict[str, Any] = {"core": "neoverse-v1", "sdist": "a" * 64, "patches": {"core-flag": "b" * 64}}
KEY = wheel.key_of(INPUTS)
NAME = "vllm-1.0+cpu-cp38-abi3-linux_aarch64.whl"


def plain(path: Path) -> Path:
    """A wheel as a build leaves it."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("vllm/__init__.py", "x = 1\n")
        archive.writestr("vllm/_C.abi3.so", b"\x7fELF")
        archive.writestr("vllm-1.0+cpu.dist-info/METADATA", "Name: vllm\n")
        archive.writestr("vllm-1.0+cpu.dist-info/RECORD", "vllm/__init__.py,,\n")
    return path


@pytest.fixture
def stamped(tmp_path: Path) -> Path:
    target = tmp_path / NAME
    wheel.stamp(plain(tmp_path / "built.whl"), target, {"key": KEY, "inputs": INPUTS, "cpu": "neoverse-v1"})
    return target


def test_a_wheel_says_what_it_was_made_from(stamped: Path) -> None:
    record = wheel.check(stamped, KEY)
    assert (record["key"], record["inputs"], record["file"]) == (KEY, INPUTS, NAME)
    with zipfile.ZipFile(stamped) as archive:
        assert archive.read("vllm/__init__.py") == b"x = 1\n"
        assert archive.testzip() is None


def test_the_same_files_make_the_same_wheel(stamped: Path, tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    again = tmp_path / "again" / NAME
    wheel.stamp(plain(tmp_path / "later.whl"), again, {"inputs": INPUTS, "key": KEY, "cpu": "neoverse-v1"})
    assert again.read_bytes() == stamped.read_bytes()


@pytest.mark.parametrize(
    "other",
    [
        {**INPUTS, "core": "neoverse-v2"},
        {**INPUTS, "patches": {}},
        {**INPUTS, "patches": {"core-flag": "c" * 64}},
        {**INPUTS, "torch": "2"},
        {key: INPUTS[key] for key in ("core", "sdist")},
    ],
    ids=["core", "no patch", "another patch", "more", "less"],
)
def test_a_wheel_of_another_key_is_never_taken(stamped: Path, other: dict[str, Any]) -> None:
    with pytest.raises(RefusedError, match=f"was made from other inputs .its key is {KEY}, wanted is"):
        wheel.check(stamped, wheel.key_of(other))


def test_a_wheel_that_only_claims_the_key_is_not_taken(tmp_path: Path) -> None:
    target = tmp_path / NAME
    claims = {"key": KEY, "inputs": {**INPUTS, "core": "neoverse-v2"}}
    wheel.stamp(plain(tmp_path / "built.whl"), target, claims)
    with pytest.raises(RefusedError, match="was made from other inputs"):
        wheel.check(target, KEY)


def rewrite(path: Path, name: str, data: bytes | None) -> None:
    with zipfile.ZipFile(path) as archive:
        files = {item: archive.read(item) for item in archive.namelist()}
    if data is None:
        del files[name]
    else:
        files[name] = data
    with zipfile.ZipFile(path, "w") as archive:
        for item, content in files.items():
            archive.writestr(item, content)


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("vllm/_C.abi3.so", b"\x7fELF, another", r"is damaged: vllm/_C\.abi3\.so is not what RECORD says"),
        ("vllm/_C.abi3.so", None, r"_C\.abi3\.so is not in both"),
        ("vllm/more.py", b"", r"vllm/more\.py is not in both"),
        ("vllm-1.0+cpu.dist-info/RECORD", None, "is damaged or no wheel"),
    ],
    ids=["changed", "missing", "added", "no list"],
)
def test_a_damaged_wheel_is_not_taken(stamped: Path, name: str, data: bytes | None, says: str) -> None:
    rewrite(stamped, name, data)
    with pytest.raises(RefusedError, match=says):
        wheel.check(stamped, KEY)


def test_a_wheel_cut_short_or_not_ours_is_not_taken(stamped: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.whl"
    short.write_bytes(stamped.read_bytes()[:200])
    with pytest.raises(RefusedError, match="is damaged or no wheel"):
        wheel.check(short, KEY)
    foreign = tmp_path / "foreign.whl"
    with zipfile.ZipFile(foreign, "w") as archive:
        archive.writestr("a-1.dist-info/METADATA", "")
        archive.writestr("a-1.dist-info/RECORD", "a-1.dist-info/RECORD,,\n")
    with pytest.raises(RefusedError, match=r"METADATA is not in both"):
        wheel.check(foreign, KEY)
    empty = tmp_path / "empty.whl"
    with zipfile.ZipFile(empty, "w") as archive:
        archive.writestr("a-1.dist-info/RECORD", "a-1.dist-info/RECORD,,\n")
    with pytest.raises(RefusedError, match="was not built by Ingot"):
        wheel.check(empty, KEY)


def test_what_differs_is_named() -> None:
    assert wheel.difference(INPUTS, {**INPUTS, "core": "neoverse-v2", "torch": "2"}) == ["core", "torch"]
    assert json.dumps(INPUTS)  # a key is made of what JSON can hold
