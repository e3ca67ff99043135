"""Faces of ingot.gate for playbooks/gate.yml and playbooks/gate_reference.yml."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ingot import formats, models
from ingot.gate import judge, limits, reference
from ingot.gate.measured import Measured
from ingot.models import Model
from ingot.preflight import gate as preflight
from ingot.table import check

PROGRAM = "what ask.py found"
REPORT = "Report it: ask.py and the judge are of one checkout"


def _model(entry: Mapping[str, Any]) -> Model:
    return check(entry, Model, "the model's entry", models.MEND)


def path(entry: Mapping[str, Any], root: str) -> str:
    """Where the reference of a model of the catalogue lies, in the model store at ``root``."""
    return f"{root}/{reference.FOLDER}/{reference.key(_model(entry))}.json"


def key(entry: Mapping[str, Any]) -> str:
    """The name of a model's reference."""
    return reference.key(_model(entry))


def rows(found: str, known: str, entry: Mapping[str, Any]) -> list[dict[str, str]]:
    """The verdict on one engine: ``found`` is what ask.py said, ``known`` what lies in the model store."""
    model = _model(entry)
    said = reference.parse(json.loads(known), reference.key(model))
    measured = check(json.loads(found), Measured, PROGRAM, REPORT)
    names = model.quantization or (formats.UNQUANTISED[model.dtype],)
    return [row.model_dump() for row in judge.rows(measured, said, limits.load(), names)]


FILTERS: dict[str, Callable[..., Any]] = {
    "ingot_gate_path": path,
    "ingot_gate_key": key,
    "ingot_gate_refusals": preflight.refusals,
    "ingot_gate_rows": rows,
}
