"""What the role neuron finds out on a node: chips, their files and their health; each defect planted."""

from __future__ import annotations

import grp
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ingot_neuron import chips, monitor, tools
from program import load

from ingot.checkout import ROOT
from ingot.driver import RefusedError, machine

node = load(ROOT / "roles/neuron/files/neuron_node.py")
SAID = ROOT / "tests/fixtures/neuron"
LISTED = (SAID / "neuron-ls.json").read_text()
REPORT = (SAID / "neuron-monitor.json").read_text()
GROUP = grp.getgrgid(os.getgid()).gr_name

# --- neuron-ls ----------------------------------------------------------------------------------------------


def test_chips_are_read_in_their_order_with_cores_and_memory() -> None:
    found = chips.listed(LISTED)
    assert [chip.index for chip in found] == list(range(6))
    assert {(chip.cores, chip.memory, chip.commands) for chip in found} == {(2, 32 << 30, ())}


def test_what_later_releases_print_as_well_does_not_matter() -> None:
    (chip,) = chips.listed((SAID / "neuron-ls-newer.json").read_text())
    assert (chip.cores, chip.memory) == (2, 32 << 30)
    assert chips.used([chip]) == ["chip 0 is used by python3 -m vllm.entrypoints"]


@pytest.mark.parametrize("text", ["", "no devices found\n", "{}x", '[{"neuron_device": 0}]', '["a"]', "7"])
def test_anything_else_is_refused_and_shown(text: str) -> None:
    with pytest.raises(RefusedError, match="neuron-ls printed no list of chips") as refused:
        chips.listed(text)
    assert repr(text.strip()) in str(refused.value)


def test_no_chip_at_all_is_an_empty_list() -> None:
    assert chips.listed("[]") == []


# --- the PCI bus, /dev --------------------------------------------------------------------------------------


def pci(sys: Path, address: str, vendor: str, device: str) -> None:
    place = sys / "bus/pci/devices" / address
    place.mkdir(parents=True)
    (place / "vendor").write_text(f"{vendor}\n")
    (place / "device").write_text(f"{device}\n")


def test_chips_are_found_on_the_bus_by_vendor_and_device(tmp_path: Path) -> None:
    pci(tmp_path, "0000:00:1f.0", "0x1d0f", "0x7264")
    pci(tmp_path, "0000:00:1e.0", "0x1d0f", "0x7264")
    pci(tmp_path, "0000:00:05.0", "0x1d0f", "0xec20")  # ENA, of the same vendor
    pci(tmp_path, "0000:00:06.0", "0x10de", "0x7264")
    assert chips.on_bus(tmp_path) == ["Inferentia2", "Inferentia2"]
    assert chips.on_bus(tmp_path / "none") == []


def test_a_chip_is_reached_by_its_group_and_nobody_else(tmp_path: Path) -> None:
    one = [chips.Chip(0, 2, 32 << 30, ())]
    assert "chip 0 has no" in chips.file_problems(one, os.getgid(), tmp_path)[0]
    path = tmp_path / "neuron0"
    path.touch()
    path.chmod(0o660)
    assert chips.file_problems(one, os.getgid(), tmp_path) == []
    path.chmod(0o666)  # as the vendor's own rule has it
    assert "is open to every user (-rw-rw-rw-)" in chips.file_problems(one, os.getgid(), tmp_path)[0]
    path.chmod(0o660)
    assert f"and {os.getgid() + 1} is wanted" in chips.file_problems(one, os.getgid() + 1, tmp_path)[0]


# --- neuron-monitor -----------------------------------------------------------------------------------------


def changed(change: Callable[[dict[str, Any]], Any]) -> str:
    report = json.loads(REPORT)
    change(report)
    return json.dumps(report)


def test_a_report_without_errors_is_healthy_and_corrected_ones_are_none() -> None:
    assert monitor.problems(REPORT, 6) == []


def _ecc(counter: str) -> Callable[[dict[str, Any]], Any]:
    return lambda report: report["system_data"]["neuron_hw_counters"]["neuron_devices"][3].update(
        {counter: 2}
    )


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_ecc("mem_ecc_uncorrected"), "chip 3 has 2 errors in its memory that ECC could not correct"),
        (_ecc("sram_ecc_uncorrected"), "chip 3 has 2 errors in its SRAM"),
        (
            lambda report: report["neuron_hardware_info"].update(error="driver not running"),
            "neuron-monitor has no data of the hardware: driver not running",
        ),
        (
            lambda report: report["system_data"]["neuron_hw_counters"].update(error="timeout"),
            "neuron-monitor has no data of ECC: timeout",
        ),
        (
            lambda report: report["neuron_hardware_info"].update(neuron_device_count=5),
            "neuron-monitor counts 5 chips, and neuron-ls lists 6",
        ),
    ],
)
def test_what_keeps_a_chip_from_being_used_is_named(
    change: Callable[[dict[str, Any]], Any], problem: str
) -> None:
    (found,) = monitor.problems(changed(change), 6)
    assert problem in found


@pytest.mark.parametrize("text", ["", "neuron-monitor: no driver\n", "[]", "{}"])
def test_what_is_no_report_is_refused_and_shown(text: str) -> None:
    with pytest.raises(RefusedError, match="neuron-monitor printed no report"):
        monitor.problems(text, 1)


# --- the tools themselves -----------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Path:
    made = tmp_path / "bin"
    made.mkdir()
    return made


def tool(place: Path, name: str, body: str) -> None:
    (place / name).write_text(f"#!/bin/sh\n{body}\n")
    (place / name).chmod(0o755)


def test_a_tool_that_is_not_there_is_named_with_its_package(place: Path) -> None:
    for ask in (tools.listed, tools.reported):
        with pytest.raises(RefusedError, match="the package aws-neuronx-tools is not installed"):
            ask(place)


def test_a_tool_that_hangs_is_a_finding(place: Path) -> None:
    tool(place, "neuron-ls", "exec sleep 60")
    tool(place, "neuron-monitor", "exec sleep 60")
    for ask in (tools.listed, tools.reported):
        with pytest.raises(RefusedError, match="the driver hangs"):
            ask(place, 0.2)


def test_a_tool_that_fails_is_quoted(place: Path) -> None:
    tool(place, "neuron-ls", "echo 'driver is not loaded' >&2; exit 1")
    tool(place, "neuron-monitor", "echo 'no devices' >&2; exit 1")
    with pytest.raises(RefusedError, match="neuron-ls: driver is not loaded"):
        tools.listed(place)
    with pytest.raises(RefusedError, match="neuron-monitor ended without a report: no devices"):
        tools.reported(place)


def test_the_first_report_is_enough(place: Path) -> None:
    tool(place, "neuron-ls", f"cat {SAID}/neuron-ls.json")
    tool(place, "neuron-monitor", f"cat {SAID}/neuron-monitor.json; exec sleep 60")
    assert chips.listed(tools.listed(place))
    assert monitor.problems(tools.reported(place), 6) == []


# --- the program --------------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "set.json"
    path.write_text(
        json.dumps(
            {
                "set": "sdk",
                "group": GROUP,
                "driver": "2.26.10.0",
                "dkms": "aws-neuronx",
                "module": "neuron",
                "packages": {"aws-neuronx-dkms": "2.26.10.0"},
                "unproved": "nothing ran",
            }
        )
    )
    return str(path)


@pytest.fixture
def healthy(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Six chips of which all is well, but that the bus is empty, as in a rehearsal."""
    monkeypatch.setattr(tools, "listed", lambda: LISTED)
    monkeypatch.setattr(tools, "reported", lambda: REPORT)
    monkeypatch.setattr(chips, "on_bus", list)
    monkeypatch.setattr(chips, "file_problems", lambda *_: [])
    return monkeypatch


def test_a_healthy_node_says_nothing(healthy: pytest.MonkeyPatch, config: str) -> None:
    assert node.main(["health", config, "--free"]) == 0
    healthy.setattr(chips, "on_bus", lambda: ["Inferentia2"] * 6)
    assert node.main(["health", config]) == 0


def test_everything_that_is_wrong_is_said_at_once(
    healthy: pytest.MonkeyPatch, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    healthy.setattr(tools, "listed", (SAID / "neuron-ls-newer.json").read_text)
    healthy.setattr(chips, "on_bus", lambda: ["Inferentia2"] * 6)
    assert node.main(["health", config]) == 1
    said = capsys.readouterr().err
    assert "the PCI bus has 6 chips, and neuron-ls lists 1" in said
    assert "neuron-monitor counts 6 chips, and neuron-ls lists 1" in said
    assert "is used by" not in said, "an engine that serves may"
    assert node.main(["health", config, "--free"]) == 1
    assert "chip 0 is used by python3 -m vllm.entrypoints" in capsys.readouterr().err


def test_chips_that_the_driver_does_not_see_are_told_from_none(
    healthy: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert node.main(["chips"]) == 0
    assert json.loads(capsys.readouterr().out)[0] == {
        "index": 0,
        "cores": 2,
        "memory": 32 << 30,
        "commands": [],
    }
    healthy.setattr(tools, "listed", lambda: "[]")
    assert node.main(["chips"]) == 1
    assert "there is no Neuron chip: launch a type that has one" in capsys.readouterr().err
    healthy.setattr(chips, "on_bus", lambda: ["Inferentia2"])
    assert node.main(["chips"]) == 1
    assert "the PCI bus has Inferentia2: the module is not loaded" in capsys.readouterr().err


def test_a_set_that_is_not_whole_is_named(
    place: Path, config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = "6.14.0-1018-aws"
    monkeypatch.setenv("PATH", str(place), prepend=os.pathsep)
    monkeypatch.setattr(machine, "kernels", lambda: [kernel])
    monkeypatch.setattr(machine, "packages", lambda: {"aws-neuronx-dkms": ("2.26.10.0", "hi")})
    tool(place, "dkms", f"echo 'aws-neuronx/2.26.10.0, {kernel}, x86_64: installed'")
    tool(place, "modinfo", f'case "$4" in version) echo 2.26.10.0;; vermagic) echo "{kernel} SMP";; esac')
    assert node.main(["check", config]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["set"], facts["unproved"]) == ("sdk", "nothing ran"), "the manifest keeps what is unproved"
    tool(place, "modinfo", "exit 1")
    monkeypatch.setattr(machine, "packages", lambda: {"aws-neuronx-dkms": ("2.29.0.0", "ii")})
    assert node.main(["check", config]) == 1
    said = capsys.readouterr().err
    assert f"kernel {kernel} has no module neuron: booted, it would have no Neuron chip" in said
    assert "package aws-neuronx-dkms is 2.29.0.0, and the set has 2.26.10.0" in said
