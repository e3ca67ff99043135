"""What the doctor says of EFA, from the bus upwards; each fault planted."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_systemd import System

from ingot.doctor import collect, network
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


EFA = """\
ip-10-0-0-7:81:81 [0] NCCL INFO Bootstrap : Using ens32:10.0.0.7<0>
ip-10-0-0-7:81:81 [0] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.20.0
ip-10-0-0-7:81:81 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa-direct (found 32 nics)
ip-10-0-0-7:81:99 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/Libfabric/0/GDRDMA
"""


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (EFA, ""),
        ("", ""),
        ("INFO vllm started\n", ""),
        (
            "a:1:1 [0] NCCL INFO NET/Plugin: No plugin found (libnccl-net.so)\n"
            "a:1:1 [0] NCCL INFO Using network Socket\n",
            "a:1:1 [0] NCCL INFO Using network Socket",
        ),
        (
            "a:1:9 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0\n",
            "a:1:9 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0",
        ),
        (
            EFA.replace("provider is efa", "provider is tcp"),
            "ip-10-0-0-7:81:81 [0] NCCL INFO NET/OFI Selected provider is tcp, fabric is efa-direct"
            " (found 32 nics)",
        ),
    ],
    ids=["efa", "empty", "silent", "no plugin", "a channel", "another provider"],
)
def test_a_fall_back_is_seen_in_the_log(log: str, line: str) -> None:
    assert network.fell_back(log.splitlines()) == line


@pytest.mark.parametrize(("across", "causes"), [("efa", ["efa-not-used"] * 2), ("tcp", []), ("nothing", [])])
def test_an_engine_that_fell_back_is_found_in_the_journal_and_in_rays_logs(
    place: Path, system: System, across: str, causes: list[str]
) -> None:
    (place / "nccl.json").write_text(json.dumps(TWO | {"across": across}))
    system.units["vllm.service"] = {"ActiveState": "active", "InvocationID": "a1"}
    system.journal = [EFA.splitlines()[0], "a:1:1 [0] NCCL INFO Using network Socket"]
    log = "a:1:9 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0\n"
    (place / f"worker-aa-01000000-{os.getpid()}.out").write_text(log)
    (place / "worker-bb-01000000-999999999.out").write_text(log)  # of one that ended long ago
    settings = Settings(units=("vllm.service",), ray_logs=str(place))
    found = list(network.unused(collect._network_logs(settings)))
    assert [finding.cause for finding in found] == causes
    assert all("via NET/Socket" in item.evidence or "network Socket" in item.evidence for item in found)
