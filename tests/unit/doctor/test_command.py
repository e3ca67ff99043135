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
from ingot.doctor.causes import match


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


def said_by(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line with which a command ends that finds its surroundings wrong."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    # Python prints a text and ends with 1.
    return str(end.value.code) if isinstance(end.value.code, str) else capsys.readouterr().err


@pytest.mark.parametrize("command", [("doctor",), ("preflight",), ("launch", "--", "true")])
@pytest.mark.parametrize(
    ("text", "said"),
    [('{"mode": ', "Expecting value"), ("[]", "no object in it"), ('{"unit": []}', "unknown keys: unit")],
)
def test_settings_that_are_broken_are_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
    text: str,
    said: str,
) -> None:
    path = tmp_path / "serving.json"
    path.write_text(text)
    monkeypatch.setattr(settings.load, "__defaults__", (path,))
    answer = said_by(capsys, *command)
    assert str(path) in answer and said in answer


def test_settings_that_may_not_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="cannot be read \\(Is a directory\\)"):
        settings.load(tmp_path)


@pytest.mark.parametrize(("content", "said"), [(None, "No such file"), ("{", "Expecting property name")])
def test_an_application_that_cannot_be_read_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: str | None,
    said: str,
) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    config = tmp_path / "serve.json"
    if content is not None:
        config.write_text(content)
    line = said_by(capsys, "serve", "--config", str(config))
    finding = match(line)
    assert finding and finding.cause == "refused", line
    assert str(config) in line and said in line


def test_a_token_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "none"))
    line = said_by(capsys, "serve", "--config", str(tmp_path / "serve.json"))
    assert f"the Ray token {tmp_path / 'none'} cannot be read (No such file or directory)" in line


@pytest.mark.parametrize("command", [("doctor",), ("wait", "x.service", "--url", "http://127.0.0.1:1")])
def test_a_machine_without_systemd_is_no_node(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
) -> None:
    path = tmp_path / "serving.json"
    path.write_text('{"units": ["vllm.service"]}')
    monkeypatch.setattr(settings.load, "__defaults__", (path,))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "there is no systemctl here" in said_by(capsys, *command)


def test_a_url_that_is_none_ends_the_wait(system: System, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wait", "vllm.service", "--url", "garbage"]) == 1
    assert "--url garbage: unknown url type" in capsys.readouterr().err


def test_a_launch_of_nothing_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing to run" in said_by(capsys, "launch")


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
