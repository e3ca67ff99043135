"""tools/graviton.py: when an image is baked from the wheel store, and what comes into the store."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ingot_vllm import wheel

import graviton
from steps import LEFT_OUT, ToolError


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


@pytest.fixture
def baked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path, tuple[str, ...]]]:
    """What is baked, with which store, and which tests follow, instead of doing it."""
    done: list[tuple[str, Path, tuple[str, ...]]] = []
    monkeypatch.setenv("INGOT_CACHE", str(tmp_path))
    monkeypatch.setattr(graviton, "rehearse", lambda *what: done.append((what[0], what[1], what[2:])))
    return done


@pytest.mark.parametrize(("image", "core"), [("graviton3", "neoverse-v1"), ("graviton4", "neoverse-v2")])
def test_a_wheel_of_this_checkout_is_found_whatever_debian_has(image: str, core: str, tmp_path: Path) -> None:
    inputs = graviton.wanted(image)
    assert inputs["core"] == core
    assert json.loads(json.dumps(inputs)) == inputs
    store = tmp_path / "wheels"
    made = a_wheel(store, "a.whl", {**inputs, "compiler": "g++ 14", "tcmalloc": "abc"})
    assert graviton.stored(store, inputs) == ([made], [])


def test_wheels_of_other_inputs_are_named_with_what_differs(tmp_path: Path) -> None:
    inputs = graviton.wanted("graviton3")
    store = tmp_path / "wheels"
    a_wheel(store, "a.whl", {**inputs, "core": "neoverse-v2", "torch": "1"})
    (store / "b.whl").write_bytes(b"half a wheel")
    found, others = graviton.stored(store, inputs)
    assert found == []
    assert others[0] == "a.whl was made with another core, torch"
    assert "b.whl is damaged" in others[1]


def test_without_that_wheel_nothing_is_baked_and_it_says_so(
    baked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGOT_STEP_REMARK", str(tmp_path / "remark"))
    a_wheel(tmp_path / "wheels", "a.whl", graviton.wanted("graviton3"))
    assert graviton.main(["--stored", "--image", "graviton4"]) == LEFT_OUT
    assert "no vLLM for graviton4 in the wheel store" in (tmp_path / "remark").read_text()
    assert baked == []


def test_with_it_the_image_is_baked(baked: list[Any], tmp_path: Path) -> None:
    a_wheel(tmp_path / "wheels", "a.whl", graviton.wanted("graviton3"))
    assert graviton.main(["--stored"]) == 0
    assert baked == [("graviton3", tmp_path / "wheels", ("-m", "not long"))]


def test_another_image_is_compiled_where_the_store_has_none(baked: list[Any], tmp_path: Path) -> None:
    assert graviton.main(["--needed", "--image", "graviton4"]) == 0
    assert baked == [("graviton4", tmp_path / "wheels", ("-m", "not long"))]


def test_a_cluster_is_called_as_its_image_and_ended_where_all_is_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[tuple[str, list[str]]] = []

    def run(command: tuple[object, ...], *, env: dict[str, str], **_: object) -> SimpleNamespace:
        ran.append((env["INGOT_CLUSTER"], [str(word) for word in command]))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(graviton, "forget", lambda _: None)
    monkeypatch.setattr("graviton.subprocess.run", run)
    graviton.rehearse("graviton4", Path("/store"), "-m", "not long")
    assert {cluster for cluster, _ in ran} == {"graviton4"}
    bake, tests, destroy = (command for _, command in ran)
    assert bake[1:] == ["rehearse", "--image", "graviton4", "--extra-vars", '{"vllm_wheel_store": "/store"}']
    assert tests[1:] == ["tests/graviton", "-m", "not long"]
    assert destroy[-1] == "destroy_confirm=graviton4"


def test_what_was_compiled_comes_into_the_store(tmp_path: Path) -> None:
    made = a_wheel(tmp_path / "fresh", "k.whl", {})
    store = tmp_path / "wheels"
    assert "is in the wheel store now" in graviton.keep(made, store)
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
    monkeypatch.setenv("INGOT_STEP_REMARK", str(tmp_path / "remark"))

    def fails(image: str, store: Path) -> None:
        a_wheel(store, f"{image}.whl", {})
        raise ToolError("the engine does not start")

    monkeypatch.setattr(graviton, "rehearse", fails)
    assert graviton.main([]) == 1
    assert "the engine does not start" in capsys.readouterr().err
    assert (tmp_path / "wheels/graviton3.whl").exists()
    assert "the first build of these inputs, compared with no other" in (tmp_path / "remark").read_text()
    assert graviton.main([]) == 1
    assert "have the same extension, byte by byte" in (tmp_path / "remark").read_text()
