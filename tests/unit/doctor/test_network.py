"""What the doctor says of EFA, from the bus upwards; each fault planted."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ingot.doctor import network
from ingot.doctor.settings import Settings

TWO = {"instance_type": "p4d.24xlarge", "engine_nodes": 2, "across": "efa", "interfaces": 4}
FOUR = [f"rdmap{bus}s27" for bus in (16, 32, 144, 160)]
ALL = {"interfaces": 4, "driven": FOUR, "domains": [f"{name}-rdm" for name in FOUR]}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(network, "EXPECTED", tmp_path / "nccl.json")
    monkeypatch.setattr(network, "ASK", (sys.executable, "-I", str(tmp_path / "efa_node.py"), "ask"))
    return tmp_path


def found(place: Path, expected: dict[str, Any], answer: dict[str, Any]) -> list[str]:
    (place / "nccl.json").write_text(json.dumps(expected))
    (place / "efa_node.py").write_text(f"print({json.dumps(answer)!r})")
    return [finding.cause for finding in network.efa(Settings())]


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({}, []),
        ({"interfaces": 0, "driven": [], "domains": []}, ["efa-not-attached"]),
        ({"driven": [], "domains": []}, ["efa-not-driven"]),
        ({"driven": FOUR[:3], "domains": ALL["domains"][:3]}, ["efa-not-driven"]),  # type: ignore[index]
        ({"domains": []}, ["efa-not-usable"]),
    ],
    ids=["all there", "none attached", "no module", "one not driven", "no provider"],
)
def test_the_lowest_fault_is_named(place: Path, change: dict[str, Any], cause: list[str]) -> None:
    assert found(place, TWO, ALL | change) == cause


def test_it_says_what_it_costs_and_what_to_do(place: Path) -> None:
    found(place, TWO, ALL)
    (place / "efa_node.py").write_text(f"print({json.dumps(ALL | {'interfaces': 0})!r})")
    (finding,) = network.efa(Settings())
    assert "No interface of EFA is attached; p4d.24xlarge may have 4" in finding.what
    assert "NCCL sends by TCP instead" in finding.what
    assert "security group that allows all traffic from itself and to itself" in finding.action


@pytest.mark.parametrize("expected", [TWO | {"engine_nodes": 1}, TWO | {"interfaces": 0}, {}])
def test_where_efa_is_not_needed_nothing_is_missed(place: Path, expected: dict[str, Any]) -> None:
    assert found(place, expected, {"interfaces": 0, "driven": [], "domains": []}) == []


def test_a_node_without_the_role_is_not_asked(place: Path) -> None:
    assert list(network.efa(Settings())) == []


def test_a_program_that_ends_badly_is_no_traceback(place: Path) -> None:
    (place / "nccl.json").write_text(json.dumps(TWO))
    (finding,) = network.efa(Settings())
    assert finding.cause == "efa-not-asked"
    assert "efa_node.py" in finding.what
