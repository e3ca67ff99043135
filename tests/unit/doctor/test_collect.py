"""What the node knows of its failures: units, journal, Ray's logs."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from fake_systemd import FAILED, System

from ingot.doctor import checks, collect
from ingot.doctor.settings import Settings


@pytest.mark.parametrize("mode", ["vllm", "ray_serve"])
def test_a_node_without_its_engine_is_asked_for_port_and_memory(
    mode: str, system: System, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(checks, "_meminfo", lambda: {"MemAvailable": 1})
    with socket.create_server(("127.0.0.1", 0)) as server:
        settings = Settings(
            mode=mode,
            user="no-such-user",
            venv=str(tmp_path),
            cache="/none",
            ray_logs=str(tmp_path / "a/b"),
            address="127.0.0.1",
            port=server.getsockname()[1],
            engine_bytes=2,
        )
        causes = [finding.cause for finding in collect.diagnose(settings)]
    assert causes == ["environment-missing", "port-taken", "memory-too-small"]


def test_only_dead_workers_and_fresh_logs_are_read(tmp_path: Path) -> None:
    defect = "ImportError: libnuma.so.1: cannot open shared object file: No such file or directory\n"
    dead = tmp_path / "worker-aa-01000000-999999999.err"
    alive = tmp_path / f"worker-bb-01000000-{os.getpid()}.err"
    old = tmp_path / "worker-cc-01000000-999999998.err"
    for path in (dead, alive, old):
        path.write_text("loading\n" + defect)
    os.utime(old, (0, 0))
    findings = list(collect.ray_findings(Settings(ray_logs=str(tmp_path), node="n2")))
    assert [(item.cause, item.node, item.source) for item in findings] == [
        ("missing-library", "n2", str(dead))
    ]


def test_a_failed_unit_is_explained_by_its_journal(system: System) -> None:
    system.units["vllm.service"] = FAILED
    system.journal = [
        "Traceback",
        "PermissionError: [Errno 13] Permission denied: '/opt/ingot/models/m/config.json'",
    ]
    findings = list(collect.unit_findings(Settings(units=("vllm.service",), node="n1")))
    assert [(item.cause, item.node, item.unit) for item in findings] == [
        ("model-unreadable", "n1", "vllm.service")
    ]


def test_a_failed_unit_without_a_known_cause_still_says_so(system: System) -> None:
    system.units["vllm.service"] = FAILED
    (finding,) = collect.unit_findings(Settings(units=("vllm.service",)))
    assert finding.cause == "unit-failed"
    assert "after 5 restarts" in finding.what
    assert "journalctl -u vllm.service" in finding.action


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        ({"ActiveState": "active", "NRestarts": "3"}, None),
        ({"ActiveState": "activating", "SubState": "start", "NRestarts": "0"}, None),
        ({"ActiveState": "activating", "SubState": "auto-restart", "NRestarts": "1"}, "unit-failed"),
        ({"ActiveState": "inactive", "SubState": "dead"}, "unit-stopped"),
        ({"ActiveState": "inactive", "LoadState": "not-found"}, "unit-missing"),
    ],
)
def test_unit_states(system: System, state: dict[str, str], cause: str | None) -> None:
    system.units["ray-head.service"] = state
    findings = list(collect.unit_findings(Settings(units=("ray-head.service",))))
    assert [item.cause for item in findings] == ([cause] if cause else [])
