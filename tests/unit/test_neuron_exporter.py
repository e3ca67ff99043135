"""Figures of neuron-monitor for Prometheus, from fixtures made by hand in the shape of the vendor's guide."""

from __future__ import annotations

import io
import json
import socket
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from ingot_neuron import exporter
from local_region import eventually
from role_templates import render

from ingot.checkout import ROOT
from ingot.driver import RefusedError

REPORT: dict[str, Any] = json.loads((ROOT / "tests/fixtures/neuron/neuron-monitor.json").read_text())
BUSY = REPORT | {
    "neuron_runtime_data": [
        {
            "pid": 1234,
            "report": {
                "neuroncore_counters": {
                    "neuroncores_in_use": {
                        "0": {"neuroncore_utilization": 42.5},
                        "1": {"neuroncore_utilization": 0},
                    }
                },
                "memory_used": {"neuron_runtime_used_bytes": {"host": 1024, "neuron_device": 4096}},
                "execution_stats": {"error_summary": {"generic": 0, "hardware": 2}},
            },
        }
    ]
}


def page(report: dict[str, Any], age: float = 1.0) -> list[str]:
    return exporter.text(list(exporter.samples(report)), age).splitlines()


def test_an_idle_node_shows_chips_and_ecc() -> None:
    shown = page(REPORT)
    assert "neuron_chips 6" in shown
    assert 'neuron_ecc_errors_total{chip="2",where="mem",kind="corrected"} 4' in shown
    assert 'neuron_ecc_errors_total{chip="2",where="sram",kind="uncorrected"} 0' in shown
    assert not any(line.startswith("neuron_core") for line in shown)


def test_a_process_shows_its_cores_memory_and_errors() -> None:
    shown = page(BUSY)
    assert 'neuron_core_utilization_ratio{core="0",pid="1234"} 0.425' in shown
    assert 'neuron_runtime_memory_bytes{where="neuron_device",pid="1234"} 4096' in shown
    assert 'neuron_execution_errors_total{kind="hardware",pid="1234"} 2' in shown
    assert "# TYPE neuron_execution_errors_total counter" in shown


def test_figures_of_a_monitor_that_hangs_are_not_shown_for_ever() -> None:
    shown = page(BUSY, age=exporter.STALE + 1)
    assert [line for line in shown if line[0] != "#"] == ["neuron_report_age_seconds 61"]


@pytest.mark.parametrize("line", ["", "no driver\n", "[]\n", '{"neuron_runtime_data": 7}\n', "7\n"])
def test_what_is_no_report_is_passed_over(line: str) -> None:
    reader = exporter.Exporter()
    reader.read(io.StringIO(json.dumps(REPORT) + "\n" + line))
    assert "neuron_chips 6" in reader.page().splitlines()


def test_it_serves_while_the_monitor_runs_and_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "PLACE", tmp_path)
    with pytest.raises(RefusedError, match="aws-neuronx-tools is not installed"):
        exporter.serve("127.0.0.1", 0)
    (tmp_path / "neuron-monitor").write_text(
        f"#!/bin/sh\necho '{json.dumps(REPORT)}'\nwhile [ ! -e {tmp_path}/stop ]; do sleep 0.1; done\n"
    )
    (tmp_path / "neuron-monitor").chmod(0o755)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ended: list[str] = []

    def run() -> None:
        try:
            exporter.serve("127.0.0.1", port)
        except RefusedError as error:
            ended.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()

    def shown(path: str = "metrics") -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=5) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            return str(error.code)
        except OSError:
            return ""

    eventually("a page", lambda: "neuron_chips 6" in shown(), 10)
    assert shown("other") == "404"
    (tmp_path / "stop").touch()
    thread.join(10)
    assert ended == ["neuron-monitor ended"]


def test_the_unit_serves_on_a_port_that_is_not_the_engines() -> None:
    unit = render("neuron", "neuron-exporter.service.j2", {"neuron_exporter_address": "10.0.0.1"})
    assert "export --address 10.0.0.1 --port 8008\n" in unit
