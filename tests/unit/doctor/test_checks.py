"""Each check against a planted defect."""

from __future__ import annotations

import json
import os
import pwd
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ingot.doctor import checks
from ingot.doctor.settings import Settings


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "models" / "smol"
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(b"weights")
    for directory in (path, path.parent, tmp_path):
        directory.chmod(0o755)
    return path


@pytest.fixture
def anybody(monkeypatch: pytest.MonkeyPatch) -> str:
    """A user who owns nothing, whoever runs the test; directories above the test's own are passable."""
    allowed = checks._allowed

    def only_below(path: Path, user: str, wanted: int) -> bool:
        return "models" not in path.parts or allowed(path, user, wanted)

    monkeypatch.setattr(checks, "_allowed", only_below)
    return "nobody"


def found(check: Any, **values: Any) -> list[str]:
    return [finding.cause for finding in check(Settings(**values))]


def test_a_whole_readable_model_passes(model: Path, anybody: str) -> None:
    assert found(checks.model_files, model_path=str(model), user=anybody) == []


@pytest.mark.parametrize("blocked", [".", "config.json", "model.safetensors"])
def test_a_model_that_the_service_user_may_not_read(model: Path, anybody: str, blocked: str) -> None:
    (model / blocked).chmod(0o700)
    findings = list(checks.model_files(Settings(model_path=str(model), user=anybody)))
    assert [item.cause for item in findings] == ["model-unreadable"]
    assert str((model / blocked).resolve()) in findings[0].what


def test_a_file_that_the_index_names_is_missing(model: Path, anybody: str) -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    (model / "model-1.safetensors").write_bytes(b"x")
    findings = list(checks.model_files(Settings(model_path=str(model), user=anybody, model_id="smol")))
    assert [item.cause for item in findings] == ["model-missing"]
    assert "model-2.safetensors" in findings[0].what


def test_a_model_that_is_not_there(tmp_path: Path, anybody: str) -> None:
    assert found(checks.model_files, model_path=str(tmp_path / "none"), user=anybody) == ["model-missing"]


def test_an_empty_weight_file(model: Path, anybody: str) -> None:
    (model / "model.safetensors").write_bytes(b"")
    assert found(checks.model_files, model_path=str(model), user=anybody) == ["model-damaged"]


def test_a_taken_port_names_its_holder() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (finding,) = checks.port_taken(Settings(address="127.0.0.1", port=port))
    assert finding.cause == "port-taken" and finding.transient
    assert f"(pid {os.getpid()})" in finding.what
    assert found(checks.port_taken, address="127.0.0.1", port=port) == []


def test_what_our_own_engine_holds_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A start that replaces a running engine, or Serve's proxy, finds the port held and the memory used."""
    monkeypatch.setattr(checks, "_meminfo", lambda: {"MemAvailable": 1})
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        values: dict[str, Any] = {"venv": str(tmp_path), "cache": "/none", "ray_logs": "/none/a/b"}
        values |= {"address": "127.0.0.1", "port": port, "engine_bytes": 2}
        me = pwd.getpwuid(os.getuid()).pw_name
        assert found(checks.preflight, user=me, **values) == ["environment-missing"]
        causes = found(checks.preflight, user="no-such-user", **values)
    assert causes == ["environment-missing", "port-taken", "memory-too-small"]


def test_an_address_that_the_node_no_longer_has() -> None:
    assert found(checks.port_taken, address="192.0.2.1", port=1) == ["wrong-address"]


def test_too_little_memory_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_meminfo", lambda: {"MemAvailable": 2 * checks.GIB})
    (finding,) = checks.memory(Settings(engine_bytes=3 * checks.GIB, model_id="smol"))
    assert "smol needs 3.00 GiB here and 2.00 GiB are available" in finding.what
    assert found(checks.memory, engine_bytes=checks.GIB) == []
    assert list(checks.memory(Settings(engine_bytes=3 * checks.GIB), ours=checks.GIB)) == []


def test_resident_memory_of_a_user() -> None:
    me = pwd.getpwuid(os.getuid()).pw_name
    assert checks.resident(me) > 10 << 20, "this test's own process at least"
    assert checks.resident("no-such-user") == 0


def test_a_library_that_the_linker_does_not_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = tmp_path / "lib/python3.13/site-packages"
    for path in ("vllm/_C.abi3.so", "torch/lib/libtorch.so"):
        (packages / path).parent.mkdir(parents=True)
        (packages / path).write_bytes(b"")

    def ldd(*_: Any, **__: Any) -> subprocess.CompletedProcess[str]:
        text = (
            "\tlibnuma.so.1 => not found\n\tlibtorch.so => not found\n\tlibc.so.6 => /lib/libc.so.6 (0x0)\n"
        )
        return subprocess.CompletedProcess([], 0, text, "")

    monkeypatch.setattr(subprocess, "run", ldd)
    findings = list(checks.missing_libraries(Settings(venv=str(tmp_path))))
    assert [item.evidence for item in findings] == ["libnuma.so.1 => not found"], "torch's own is no defect"
    assert "libnuma1" in findings[0].action


def test_no_environment(tmp_path: Path) -> None:
    assert found(checks.missing_libraries, venv=str(tmp_path)) == ["environment-missing"]


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "FREE_DISK_MINIMUM", 1 << 60)
    assert found(checks.disk, cache=str(tmp_path), ray_logs="/nowhere/a/b") == ["disk-full"]


@pytest.mark.parametrize("index", ["{", "[]", "{}", '{"weight_map": 1}'])
def test_an_index_that_is_none(model: Path, anybody: str, index: str) -> None:
    (model / "model.safetensors.index.json").write_text(index)
    (finding,) = checks.model_files(Settings(model_path=str(model), user=anybody))
    assert finding.cause == "model-damaged"
    assert "model.safetensors.index.json is no index of weights" in finding.what


@pytest.mark.parametrize(("status", "causes"), [(0, []), (1, ["container-missing"])])
def test_an_engine_in_a_container_wants_its_image_and_no_environment(
    monkeypatch: pytest.MonkeyPatch, status: int, causes: list[str]
) -> None:
    settings = {"container_image": "registry/vllm@sha256:00", "venv": "/nowhere"}
    asked: list[list[str]] = []

    def podman(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, status)

    monkeypatch.setattr(subprocess, "run", podman)
    assert found(checks.container_image, **settings) == causes
    assert asked == [["podman", "image", "exists", "registry/vllm@sha256:00"]]
    assert found(checks.missing_libraries, **settings) == []
    assert found(checks.container_image) == []


def test_a_node_without_podman_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    (finding,) = checks.container_image(Settings(container_image="registry/vllm@sha256:00"))
    assert finding.what.endswith("is not on this node, and neither is Podman.")


def test_programs_of_neuron_chips_are_asked_of_the_roles_own_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "NEURON_PLAN", tmp_path / "programs.json")
    monkeypatch.setattr(checks, "NEURON_NODE", tmp_path / "node.py")
    settings = Settings(model_id="made/up")
    assert list(checks.neuron_programs(settings)) == [], "a node without the role"
    (tmp_path / "programs.json").write_text("{}")
    (tmp_path / "node.py").write_text("")
    assert list(checks.neuron_programs(settings)) == []
    (tmp_path / "node.py").write_text("raise SystemExit('error: bucket 512 is missing. Compile first: this')")
    (found,) = checks.neuron_programs(settings)
    assert found.cause == "neuron-programs-missing"
    assert found.what == "made/up is not compiled: bucket 512 is missing."
    assert found.action == "Compile first: this"
