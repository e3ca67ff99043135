"""What neuron-monitor reports, for Prometheus: chips, ECC errors, cores in use, memory, failed executions.

The vendor's own script wants a library that the system's Python lacks, and a port that is vLLM's by default.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import IO, Any

from ingot.driver import RefusedError
from ingot_neuron.tools import PLACE

STALE = 60.0  # seconds without a report after which its figures say nothing any more
METRICS = {
    "neuron_chips": ("gauge", "Chips that neuron-monitor counts."),
    "neuron_ecc_errors_total": (
        "counter",
        "Errors in a chip's memory or SRAM, by whether ECC corrected them.",
    ),
    "neuron_core_utilization_ratio": (
        "gauge",
        "Share of time that a core computed, by the process that has it.",
    ),
    "neuron_runtime_memory_bytes": (
        "gauge",
        "Memory that a process's runtime uses, on the host and on the chips.",
    ),
    "neuron_execution_errors_total": ("counter", "Failed executions of a process since it started, by kind."),
    "neuron_report_age_seconds": ("gauge", "Time since neuron-monitor last reported."),
}
Sample = tuple[str, dict[str, str], float]


def samples(report: dict[str, Any]) -> Iterator[Sample]:
    """All figures of one report; what a release leaves out is left out here."""
    hardware = report.get("neuron_hardware_info") or {}
    if "neuron_device_count" in hardware:
        yield "neuron_chips", {}, float(hardware["neuron_device_count"])
    counters = (report.get("system_data") or {}).get("neuron_hw_counters") or {}
    for chip in counters.get("neuron_devices") or []:
        for where in ("mem", "sram"):
            for kind in ("corrected", "uncorrected"):
                value = chip.get(f"{where}_ecc_{kind}")
                if value is not None:
                    labels = {"chip": str(chip["neuron_device_index"]), "where": where, "kind": kind}
                    yield "neuron_ecc_errors_total", labels, float(value)
    for process in report.get("neuron_runtime_data") or []:
        yield from _process(str(process.get("pid", "")), process.get("report") or {})


def _process(pid: str, report: dict[str, Any]) -> Iterator[Sample]:
    cores = (report.get("neuroncore_counters") or {}).get("neuroncores_in_use") or {}
    for core, counters in cores.items():
        used = float(counters["neuroncore_utilization"]) / 100
        yield "neuron_core_utilization_ratio", {"core": str(core), "pid": pid}, used
    memory = (report.get("memory_used") or {}).get("neuron_runtime_used_bytes") or {}
    for where in ("host", "neuron_device"):
        if where in memory:
            yield "neuron_runtime_memory_bytes", {"where": where, "pid": pid}, float(memory[where])
    for kind, count in ((report.get("execution_stats") or {}).get("error_summary") or {}).items():
        yield "neuron_execution_errors_total", {"kind": str(kind), "pid": pid}, float(count)


def text(found: list[Sample], age: float) -> str:
    """In Prometheus's format. Figures that are older than they may be are not shown, but their age is."""
    shown = [*(found if age <= STALE else []), ("neuron_report_age_seconds", {}, age)]
    lines = []
    for name, (kind, help_text) in METRICS.items():
        mine = [(labels, value) for other, labels, value in shown if other == name]
        if not mine:
            continue
        lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
        for labels, value in mine:
            inner = ",".join(f'{label}="{word}"' for label, word in labels.items())
            lines.append(f"{name}{{{inner}}} {value:g}" if inner else f"{name} {value:g}")
    return "\n".join(lines) + "\n"


class Exporter:
    """The newest report, kept by a thread that reads neuron-monitor."""

    def __init__(self) -> None:
        self.found: list[Sample] = []
        self.at = time.monotonic()

    def read(self, stream: IO[str]) -> None:
        """Take reports, one a line, until there are no more. What is none is passed over: the age tells."""
        for line in stream:
            try:
                self.found = list(samples(json.loads(line)))
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
            self.at = time.monotonic()

    def page(self) -> str:
        return text(self.found, time.monotonic() - self.at)


def serve(address: str, port: int) -> None:
    """Export until neuron-monitor ends.

    Raises:
        RefusedError: it ended, or is not there.
    """
    exporter = Exporter()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Not each question is worth a line."""

        def do_GET(self) -> None:
            page = exporter.page().encode() if self.path == "/metrics" else b""
            self.send_response(200 if page else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

    try:
        monitor = subprocess.Popen([PLACE / "neuron-monitor"], stdout=subprocess.PIPE, text=True)
    except FileNotFoundError as error:
        raise RefusedError(
            f"there is no {PLACE / 'neuron-monitor'}: aws-neuronx-tools is not installed"
        ) from error
    with monitor, ThreadingHTTPServer((address, port), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert monitor.stdout
        try:
            exporter.read(monitor.stdout)
        finally:
            monitor.kill()
            server.shutdown()
    raise RefusedError("neuron-monitor ended")
