"""A start through `ingot launch`: refused in one line, or with its credentials."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ingot.doctor import launch
from ingot.doctor.__main__ import main
from ingot.doctor.causes import match
from ingot.doctor.finding import Finding
from ingot.doctor.settings import Settings


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    seen: dict[str, Any] = {}

    def become(file: str, argv: list[str], environment: dict[str, str]) -> None:
        seen.update(file=file, argv=argv, environment=environment)
        raise SystemExit(0)

    monkeypatch.setattr(os, "execvpe", become)
    yield seen


def test_launch_hands_over_a_credential_by_environment_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executed: dict[str, Any]
) -> None:
    (tmp_path / "api-key").write_text("sk-canary\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    with pytest.raises(SystemExit):
        launch.launch(Settings(), ["vllm", "serve"], credentials=["VLLM_API_KEY=api-key"], check="processor")
    assert executed["environment"]["VLLM_API_KEY"] == "sk-canary"
    assert executed["argv"] == ["vllm", "serve"]


def test_the_command_line_of_a_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executed: dict[str, Any]
) -> None:
    (tmp_path / "api-key").write_text("sk-canary")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    with pytest.raises(SystemExit):
        main(
            [
                "launch",
                "--check",
                "processor",
                "--credential",
                "K=api-key",
                "--",
                "python",
                "-m",
                "vllm",
                "--config",
                "x",
            ]
        )
    assert executed["argv"] == ["python", "-m", "vllm", "--config", "x"]
    assert executed["environment"]["K"] == "sk-canary"


def test_launch_without_a_credential_directory_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    with pytest.raises(SystemExit, match="refused: credential api-key was not handed over"):
        launch.launch(Settings(), ["x"], credentials=["K=api-key"], check="processor")


def test_a_credential_that_systemd_did_not_hand_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    with pytest.raises(SystemExit, match=r"refused: credential api-key cannot be read \(No such file"):
        launch.launch(Settings(), ["x"], credentials=["K=api-key"], check="processor")


def test_a_program_that_is_not_there_is_refused_for_good(capsys: pytest.CaptureFixture[str]) -> None:
    assert launch.launch(Settings(), ["/opt/none/python"], check="processor") == launch.EX_CONFIG
    finding = match(capsys.readouterr().err)
    assert finding and finding.cause == "refused"
    assert "/opt/none/python cannot be run (No such file or directory)" in finding.what


def test_what_comes_free_a_moment_later_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, executed: dict[str, Any]
) -> None:
    """The memory of the engine that this one replaces."""
    defect = Finding("memory-too-small", "m needs 4.88 GiB here.", "Stop something.", 13, transient=True)
    seen = iter([[defect], [defect], []])
    monkeypatch.setattr(launch, "preflight", lambda _: next(seen))
    with pytest.raises(SystemExit):
        launch.launch(Settings(), ["vllm"])
    assert executed["argv"] == ["vllm"]


@pytest.mark.parametrize(("transient", "status"), [(True, launch.EX_TEMPFAIL), (False, launch.EX_CONFIG)])
def test_launch_refuses_in_one_line_that_the_doctor_reads_again(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    executed: dict[str, Any],
    transient: bool,
    status: int,
) -> None:
    defect = Finding("port-taken", "Port 8000 is taken by x (pid 1).", "Stop it.", 12, transient=transient)
    monkeypatch.setattr(launch, "preflight", lambda _: [defect])
    monkeypatch.setattr(launch, "PATIENCE_SECONDS", 0.6)
    assert launch.launch(Settings(), ["vllm"]) == status
    assert not executed
    line = capsys.readouterr().err
    finding = match(line)
    assert finding is not None
    assert (finding.cause, finding.what, finding.action) == (
        "refused",
        "Port 8000 is taken by x (pid 1)",
        "Stop it.",
    )
