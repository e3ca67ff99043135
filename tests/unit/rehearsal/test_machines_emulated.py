"""A host that cannot emulate refuses a machine for arm64 before anything of it is made."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from ingot.rehearsal import machines
from ingot.rehearsal.config import Settings
from ingot.rehearsal.emulation import Emulation
from ingot.rehearsal.machines import NspawnHost
from ingot.rehearsal.model import Machine, MachineState, NoCapacity
from ingot.rehearsal.network import Network


class CannotEmulate:
    def check(self) -> str:
        return "no emulation: this kernel has no binfmt_misc"


def test_a_host_that_cannot_emulate_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "RegionGroups", lambda _: None)
    monkeypatch.setattr(machines, "foreign", lambda architecture: architecture == "arm64")
    settings = Settings(cache=tmp_path / "cache", state_root=tmp_path / "state")
    host = NspawnHost(settings, cast(Network, object()), cast(Emulation, CannotEmulate()))
    machine = Machine(
        instance_id="i-1",
        layers=(),
        architecture="arm64",
        instance_type="c7g.large",
        private_ip="172.31.0.5",
        prefix_length=20,
        mac="02:00:00:00:00:05",
        hostname="ip-172-31-0-5",
        vcpus=2,
        memory_bytes=1 << 20,
    )
    with pytest.raises(NoCapacity, match="no binfmt_misc"):
        host.launch(machine)
    assert host.state("i-1") is MachineState.TERMINATED
    assert list(tmp_path.rglob("i-1")) == []
    host._closing.set()
