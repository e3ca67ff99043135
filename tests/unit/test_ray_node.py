"""The launcher of Ray's units: what it refuses, what it waits for, and that it becomes Ray otherwise."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from program import load

SOURCE = Path(__file__).parents[2] / "roles/ray/files/ray_node.py"


class RefusedTokenError(Exception):
    """Stands for ray.exceptions.AuthenticationError."""


class Gcs:
    """The head's control service, as far as the launcher asks it."""

    accepts = True
    lock: bytes | None = None
    nodes: tuple[tuple[str, int], ...] = ()

    def __init__(self, address: str) -> None:
        if not Gcs.accepts:
            raise RefusedTokenError(address)

    def internal_kv_get(self, key: bytes, namespace: bytes, timeout: float) -> bytes | None:
        return Gcs.lock

    def internal_kv_put(
        self, key: bytes, value: bytes, overwrite: bool, namespace: bytes, timeout: float
    ) -> int:
        Gcs.lock = value
        return 1

    def get_all_node_info(self, timeout: float) -> dict[int, Any]:
        return {
            number: SimpleNamespace(node_manager_address=address, state=state)
            for number, (address, state) in enumerate(Gcs.nodes)
        }


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(Gcs, "accepts", True)
    monkeypatch.setattr(Gcs, "lock", None)
    monkeypatch.setattr(Gcs, "nodes", ())
    modules: dict[str, dict[str, Any]] = {
        "ray": {},
        "ray._raylet": {"GcsClient": Gcs},
        "ray.exceptions": {"AuthenticationError": RefusedTokenError},
        "ray.core": {},
        "ray.core.generated": {},
        "ray.core.generated.gcs_pb2": {"GcsNodeInfo": SimpleNamespace(ALIVE=0)},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    module = load(SOURCE)
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    return module


@pytest.fixture
def head() -> Any:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / ".ingot-lock"
    path.write_text("aaa\n")
    return path


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    seen: list[list[str]] = []

    def become(file: str, argv: list[str]) -> None:
        seen.append(argv)
        raise SystemExit(0)

    monkeypatch.setattr(os, "execvp", become)
    return seen


def run(node: ModuleType, *arguments: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["ray_node.py", *arguments])
        try:
            node.main()
        except SystemExit as end:
            return int(end.code or 0)
    return 0


def test_a_worker_with_the_head_s_lock_becomes_ray(
    node: ModuleType, head: str, lock: Path, executed: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Gcs, "lock", b"aaa")
    assert run(node, "worker", "--lock", str(lock), "--head", head, "--", "ray", "start", "--block") == 0
    assert executed == [["ray", "start", "--block"]]


def test_another_lock_is_refused_for_good_with_both_values(
    node: ModuleType,
    head: str,
    lock: Path,
    executed: list[list[str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Gcs, "lock", b"bbb")
    assert run(node, "worker", "--lock", str(lock), "--head", head, "--", "ray") == node.EX_CONFIG
    line = capsys.readouterr().err
    assert line.startswith("ingot: refused: the environment of this node was made from lock aaa")
    assert "from bbb" in line
    assert not executed


def test_a_wrong_token_is_refused_for_good(
    node: ModuleType,
    head: str,
    lock: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Gcs, "accepts", False)
    assert run(node, "worker", "--lock", str(lock), "--head", head, "--", "ray") == node.EX_CONFIG
    assert "does not accept this node's Ray token" in capsys.readouterr().err


def test_a_head_that_is_away_is_tried_again_later(
    node: ModuleType, lock: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "WAIT", 0)
    monkeypatch.setattr(node.wait_for_port, "__defaults__", (0, ""))
    assert run(node, "worker", "--lock", str(lock), "--head", "127.0.0.1:1", "--", "ray") == node.EX_TEMPFAIL
    assert "ingot: the head 127.0.0.1:1 does not answer" in capsys.readouterr().err


def test_an_environment_without_a_lock_is_refused(
    node: ModuleType, tmp_path: Path, executed: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(node, "head", "--lock", str(tmp_path / "none"), "--", "ray") == node.EX_CONFIG
    assert "cannot be read (No such file or directory)" in capsys.readouterr().err
    assert not executed


def test_publish_then_compare(node: ModuleType, head: str, lock: Path, executed: list[list[str]]) -> None:
    assert run(node, "publish", "--lock", str(lock), "--head", head) == 0
    assert Gcs.lock == b"aaa"
    assert run(node, "worker", "--lock", str(lock), "--head", head, "--", "ray") == 0
    assert executed


def test_joined_waits_for_this_node_alive(
    node: ModuleType, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Gcs, "nodes", (("10.0.0.1", 1), ("10.0.0.1", 0)))
    assert run(node, "joined", "--head", head, "--address", "10.0.0.1") == 0
    monkeypatch.setattr(node.joined, "__defaults__", (0, ""))
    assert run(node, "joined", "--head", head, "--address", "10.0.0.2") == node.EX_TEMPFAIL


def test_nobody_waits_for_a_main_process_that_has_ended(
    node: ModuleType, head: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own last line says why; another one after it would be taken for the cause."""
    monkeypatch.setenv("MAINPID", "999999999")
    assert run(node, "joined", "--head", head, "--address", "10.0.0.2") == node.EX_TEMPFAIL
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("step", ["publish", "joined"])
def test_nobody_waits_for_the_port_of_a_main_process_that_has_ended(
    node: ModuleType,
    step: str,
    lock: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A head that refused its processor never opens the port."""
    monkeypatch.setenv("MAINPID", "999999999")
    monkeypatch.setattr(node.time, "sleep", lambda _: pytest.fail("it waits"))
    arguments = ("--lock", str(lock), "--head", "127.0.0.1:1", "--address", "127.0.0.1")
    assert run(node, step, *arguments) == node.EX_TEMPFAIL
    assert capsys.readouterr().err == ""


def test_a_refusal_beside_the_main_process_comes_after_its_end(
    node: ModuleType, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        monkeypatch.setenv("MAINPID", str(process.pid))
        monkeypatch.setattr(node, "connect", lambda _: node.refuse("the token", "the other"))

        def end() -> None:
            process.kill()
            process.wait()

        ended = threading.Timer(0.5, end)
        ended.start()
        assert run(node, "joined", "--head", head, "--address", "10.0.0.1") == node.EX_CONFIG
        assert not Path("/proc", str(process.pid)).exists(), "it failed while the main process was running"
        ended.join()


def test_sessions_of_the_past_go_and_the_last_one_stays(
    node: ModuleType, tmp_path: Path, lock: Path, executed: list[list[str]]
) -> None:
    for day in (1, 2, 3):
        (tmp_path / f"session_2026-11-0{day}_x").mkdir()
    (tmp_path / "session_latest").symlink_to(tmp_path / "session_2026-11-03_x")
    run(node, "head", "--lock", str(lock), "--", "ray", "start", "--temp-dir", str(tmp_path))
    left = sorted(path.name for path in tmp_path.glob("session_*"))
    assert left == ["session_2026-11-03_x", "session_latest"]
