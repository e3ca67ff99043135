"""`ingot` on a node: its settings, its answers, and that it needs nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fake_systemd import FAILED, System

from ingot.doctor import checks, settings
from ingot.doctor.__main__ import main


def test_settings_of_an_unconfigured_node_and_unknown_keys(tmp_path: Path) -> None:
    assert settings.load(tmp_path / "none").units == ()
    (tmp_path / "s.json").write_text('{"units": ["vllm.service"], "mode": "vllm"}')
    assert settings.load(tmp_path / "s.json").units == ("vllm.service",)
    (tmp_path / "s.json").write_text('{"unit": []}')
    with pytest.raises(SystemExit, match="unknown keys: unit"):
        settings.load(tmp_path / "s.json")


def test_doctor_as_json_and_exit_status(
    tmp_path: Path, system: System, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    system.units["vllm.service"] = FAILED
    config = tmp_path / "serving.json"
    config.write_text(json.dumps({"mode": "vllm", "units": ["vllm.service"], "venv": str(tmp_path)}))
    monkeypatch.setattr(settings, "PATH", config)
    monkeypatch.setattr(settings.load, "__defaults__", (config,))
    assert main(["doctor", "--json"]) == 1
    causes = [item["cause"] for item in json.loads(capsys.readouterr().out)]
    assert causes == ["environment-missing", "unit-failed"]


def test_it_runs_with_nothing_but_the_standard_library(tmp_path: Path) -> None:
    """As on a node: copied alone, system interpreter, no site-packages."""
    source = Path(checks.__file__).parent
    target = tmp_path / "ingot" / "doctor"
    target.mkdir(parents=True)
    (tmp_path / "ingot" / "__init__.py").write_text("")
    for path in source.glob("*.py"):
        (target / path.name).write_bytes(path.read_bytes())
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            f"import sys; sys.path.insert(0, {str(tmp_path)!r});"
            "from ingot.doctor.__main__ import parser; print(parser().prog)",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "ingot"), done.stderr
