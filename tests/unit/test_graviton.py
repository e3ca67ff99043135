"""tools/graviton.py: when an image is baked from the wheel store, and what comes into the store."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from ingot_vllm import wheel

import graviton
from steps import ToolError


def a_wheel(directory: Path, name: str, inputs: dict[str, Any], code: bytes = b"code") -> Path:
    directory.mkdir(exist_ok=True)
    source = directory.with_name(f"source-{name}")
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr("vllm/_C.abi3.so", code)
        archive.writestr("vllm-1.dist-info/METADATA", "Name: vllm\n")
        archive.writestr("vllm-1.dist-info/RECORD", "")
    made = directory / name
    wheel.stamp(source, made, {"key": "k", "inputs": inputs})
    return made


def test_a_wheel_of_this_checkout_is_found_whatever_debian_has(tmp_path: Path) -> None:
    inputs = graviton.wanted()
    assert json.loads(json.dumps(inputs)) == inputs
    store = tmp_path / "wheels"
    made = a_wheel(store, "a.whl", {**inputs, "compiler": "g++ 14", "tcmalloc": "abc"})
    assert graviton.stored(store, inputs) == ([made], [])


def test_wheels_of_other_inputs_are_named_with_what_differs(tmp_path: Path) -> None:
    inputs = graviton.wanted()
    store = tmp_path / "wheels"
    a_wheel(store, "a.whl", {**inputs, "core": "neoverse-v2", "torch": "1"})
    (store / "b.whl").write_bytes(b"half a wheel")
    found, others = graviton.stored(store, inputs)
    assert found == []
    assert others[0] == "a.whl was made with another core, torch"
    assert "b.whl is damaged" in others[1]


def test_without_that_wheel_nothing_is_baked_and_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INGOT_CACHE", str(tmp_path))
    monkeypatch.setattr(graviton, "rehearse", lambda store, *_: pytest.fail(f"baked with {store}"))
    assert graviton.main(["--stored"]) == 0
    assert "none: graviton3 is not baked here (`make test-full` compiles it)" in capsys.readouterr().out


def test_with_it_the_image_is_baked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_CACHE", str(tmp_path))
    a_wheel(tmp_path / "wheels", "a.whl", graviton.wanted())
    stores: list[Path] = []
    monkeypatch.setattr(graviton, "rehearse", lambda store, *_: stores.append(store))
    assert graviton.main(["--stored"]) == 0
    assert stores == [tmp_path / "wheels"]


def test_what_was_compiled_comes_into_the_store(tmp_path: Path) -> None:
    made = a_wheel(tmp_path / "fresh", "k.whl", {})
    store = tmp_path / "wheels"
    assert "is in" in graviton.keep(made, store)
    assert (store / "k.whl").read_bytes() == made.read_bytes()
    assert "byte by byte" in graviton.keep(made, store)


def test_two_builds_that_differ_are_refused(tmp_path: Path) -> None:
    made = a_wheel(tmp_path / "fresh", "k.whl", {})
    a_wheel(tmp_path / "wheels", "k.whl", {}, code=b"other code")
    with pytest.raises(ToolError, match="two builds from the same inputs differ"):
        graviton.keep(made, tmp_path / "wheels")


def test_what_was_compiled_is_kept_whatever_came_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INGOT_CACHE", str(tmp_path))

    def fails(store: Path) -> None:
        a_wheel(store, "k.whl", {})
        raise ToolError("the engine does not start")

    monkeypatch.setattr(graviton, "rehearse", fails)
    assert graviton.main([]) == 1
    assert "the engine does not start" in capsys.readouterr().err
    assert (tmp_path / "wheels/k.whl").exists()
