"""The daemon's own part: its log, and what it refuses before it serves."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from ingot.rehearsal import daemon


def test_a_log_line_is_json() -> None:
    try:
        raise ValueError("a\nb")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "said %s", ("so",), sys.exc_info())
    line = daemon.JsonFormatter().format(record)
    entry = json.loads(line)
    assert "\n" not in line
    assert (entry["level"], entry["logger"], entry["message"]) == ("error", "x", "said so")
    assert "ValueError" in entry["exception"]


def test_a_wrong_setting_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INGOT_LOCAL_MEMORY_SCALE", "much")
    assert daemon.main() == 2
    error = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert error["level"] == "error"
    assert "INGOT_LOCAL_MEMORY_SCALE" in error["message"]
