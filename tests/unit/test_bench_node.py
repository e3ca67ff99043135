"""The node that benches measure on: made as `ingot rehearse` makes one, and removed however a bench ends."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest

import bench_node
from ingot.rehearse import Rehearsal
from ingot.rehearse_target import RehearsalError
from steps import ToolError


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is run on this machine instead of being run."""
    ran: list[str] = []

    def run(argv: list[str], **_: object) -> SimpleNamespace:
        ran.append(" ".join(map(str, argv)).partition("/ingot ")[2])
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    for name in ("INGOT_LOCAL_NAME", "INGOT_CLUSTER"):
        monkeypatch.setenv(name, "restored")
    return ran


def test_it_is_rehearsed_with_a_compiler_alone_in_a_region_of_its_own(
    commands: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Rehearsal] = []

    def prepare(self: Rehearsal) -> None:
        made.append(self)

    monkeypatch.setattr(Rehearsal, "prepare", prepare)
    with bench_node.prepared("x86", bench_node.ALONE):
        assert commands == []
    assert made[0].control.settings.name == made[0].cluster.name == bench_node.NAME
    assert made[0].target.baked["vllm_compiler"] is True
    assert made[0].target.inventory()["launch_workers"] == 0
    assert commands == ["local down --purge"]


def test_what_fails_on_the_way_is_said_and_leaves_nothing(
    commands: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Rehearsal) -> None:
        raise RehearsalError("`packer build` failed (status 1)")

    monkeypatch.setattr(Rehearsal, "prepare", fails)
    with pytest.raises(ToolError, match="packer build"), bench_node.prepared("x86", {}):
        pytest.fail("it went on")
    assert commands == ["local down --purge"]


def test_a_bench_that_fails_leaves_nothing(commands: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rehearsal, "prepare", lambda _: None)
    with pytest.raises(OSError, match="full"), bench_node.prepared("x86", {}):
        raise OSError("full")
    assert commands == ["local down --purge"]
