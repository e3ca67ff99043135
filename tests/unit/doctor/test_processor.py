"""An image on a processor that lacks what was compiled in."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ingot.doctor import checks, launch, settings
from ingot.doctor.__main__ import main
from ingot.doctor.causes import match
from ingot.doctor.finding import Finding
from ingot.doctor.settings import Settings

GRAVITON3 = (
    "processor\t: 0\nFeatures\t: fp asimd atomics asimddp sve bf16 i8mm\nCPU implementer\t: 0x41\n"
    "CPU part\t: 0xd40\n\nprocessor\t: 1\nFeatures\t: fp asimd atomics asimddp sve bf16 i8mm\n"
)


def processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpuinfo: str, compiled: Any) -> list[Finding]:
    facts = tmp_path / "vllm.json"
    facts.write_text(json.dumps({"compiled": compiled}))
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr(checks, "CPUINFO", tmp_path / "cpuinfo")
    return list(checks.processor(Settings(facts=str(facts))))


def test_an_image_for_another_core_is_refused_before_it_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    v2 = {"cpu": "neoverse-v2", "cpu_features": ["sve", "sve2", "svebitperm", "bf16"]}
    (finding,) = processor(tmp_path, monkeypatch, GRAVITON3, v2)
    assert finding.cause == "wrong-processor"
    assert "compiled for neoverse-v2, and this processor lacks sve2, svebitperm" in finding.what
    assert finding.evidence.endswith("CPU implementer 0x41, part 0xd40")
    assert not finding.transient
    line = launch.refusal(finding)
    assert line.startswith("ingot: refused: vLLM was compiled for neoverse-v2")
    again = match(line)
    assert again and again.cause == "refused" and "lacks sve2" in again.what


@pytest.mark.parametrize(
    ("cpuinfo", "compiled"),
    [
        (GRAVITON3, {"cpu": "neoverse-v1", "cpu_features": ["sve", "bf16", "i8mm"]}),
        (GRAVITON3, None),
        ("processor : 0\nflags : fpu avx avx2\nmodel name : X\n", {"cpu": "x", "cpu_features": ["avx2"]}),
        ("", {"cpu": "neoverse-v2", "cpu_features": ["sve2"]}),
    ],
    ids=["the same core", "a wheel", "x86", "a /proc that does not say"],
)
def test_a_core_that_has_everything_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpuinfo: str, compiled: Any
) -> None:
    assert processor(tmp_path, monkeypatch, cpuinfo, compiled) == []


def test_one_core_of_another_kind_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = GRAVITON3 + "processor\t: 2\nFeatures\t: fp asimd\n"
    (finding,) = processor(tmp_path, monkeypatch, mixed, {"cpu": "neoverse-v1", "cpu_features": ["sve"]})
    assert "lacks sve" in finding.what


def test_a_node_whose_image_says_nothing_is_not_refused(tmp_path: Path) -> None:
    assert list(checks.processor(Settings(facts=str(tmp_path / "none.json")))) == []


@pytest.mark.parametrize("check", ["processor", "all"])
def test_a_unit_ends_for_good_with_the_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], check: str
) -> None:
    """Ray's units check the processor alone, vllm.service all; neither gets to its program."""
    facts, cpuinfo = tmp_path / "vllm.json", tmp_path / "cpuinfo"
    facts.write_text(json.dumps({"compiled": {"cpu": "neoverse-v2", "cpu_features": ["sve", "sve2"]}}))
    cpuinfo.write_text(GRAVITON3)
    monkeypatch.setattr(checks, "CPUINFO", cpuinfo)
    monkeypatch.setattr(settings, "load", lambda: Settings(facts=str(facts), venv=str(tmp_path)))
    monkeypatch.setattr(os, "execvpe", lambda *_: pytest.fail("it went on"))
    assert main(["launch", "--check", check, "--", "python", "ray_node.py", "--", "ray"]) == launch.EX_CONFIG
    lines = [line for line in capsys.readouterr().err.splitlines() if "compiled for" in line]
    assert len(lines) == 1
    assert lines[0].startswith(
        "ingot: refused: vLLM was compiled for neoverse-v2, and this processor lacks sve2. Do: Launch this"
    )


def test_rays_check_looks_at_nothing_but_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr(settings, "load", lambda: Settings(facts=str(tmp_path / "none"), venv="/none"))
    monkeypatch.setattr(os, "execvpe", lambda _, command, __: became.append(command))
    main(["launch", "--check", "processor", "--", "python", "ray_node.py", "head", "--", "ray", "start"])
    assert became == [["python", "ray_node.py", "head", "--", "ray", "start"]]
    assert capsys.readouterr().err == ""
