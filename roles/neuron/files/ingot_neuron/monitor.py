"""What a report of neuron-monitor says against the chips."""

from __future__ import annotations

import json
from typing import Any

from ingot.driver import RefusedError

# Of the group neuron_hw_counters: what a chip could not correct. Corrected ones are its own business.
FATAL = {"mem_ecc_uncorrected": "memory", "sram_ecc_uncorrected": "SRAM"}


def problems(text: str, chips: int) -> list[str]:
    """Data that could not be collected, chips that are missing, memory that cannot be trusted.

    Raises:
        RefusedError: it is no report.
    """
    try:
        report = json.loads(text)
        hardware = report["neuron_hardware_info"]
        counters = (report.get("system_data") or {}).get("neuron_hw_counters") or {}
        return [
            *_errors(hardware, "of the hardware"),
            *_errors(counters, "of ECC"),
            *_count(hardware, chips),
            *_ecc(counters.get("neuron_devices") or []),
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RefusedError(f"neuron-monitor printed no report ({error!r}): {text.strip()[:200]!r}") from error


def _errors(part: dict[str, Any], what: str) -> list[str]:
    return [f"neuron-monitor has no data {what}: {part['error']}"] if part.get("error") else []


def _count(hardware: dict[str, Any], chips: int) -> list[str]:
    there = int(hardware.get("neuron_device_count") or 0)
    return [] if there == chips else [f"neuron-monitor counts {there} chips, and neuron-ls lists {chips}"]


def _ecc(devices: list[dict[str, Any]]) -> list[str]:
    return [
        f"chip {device['neuron_device_index']} has {device[counter]} errors in its {where} that ECC could not"
        " correct: what it computes cannot be trusted, replace the instance"
        for device in devices
        for counter, where in FATAL.items()
        if device.get(counter)
    ]
