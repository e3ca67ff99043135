"""Faces of ingot.verify and ingot.preflight.verify for playbooks/verify.yml."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ingot import report
from ingot.plain import plain
from ingot.preflight import verify as preflight
from ingot.verify import judge, sbom
from ingot.verify.canary import environment
from ingot.verify.rows import FAILED

FOUND = ".found.json"


def verdict(directory: str, tags: Mapping[str, str], ended: str) -> list[dict[str, str]]:
    """The rows of the verdict on what was found, a file of the directory for each moment."""
    found = {
        path.name.removesuffix(FOUND): json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(Path(directory).glob(f"*{FOUND}"))
    }
    return [row.model_dump() for row in judge.rows(found, plain(tags), ended)]


def bill(directory: str, image_id: str, catalog: Mapping[str, Any]) -> str:
    """The image's bill of materials, by what was found on the clone; empty where nothing was."""
    path = Path(directory) / f"fresh{FOUND}"
    if not path.exists():
        return ""
    inside = json.loads(path.read_text(encoding="utf-8"))["evidence"]["inside"]
    models = catalog.get("models", catalog)
    licences = {name: str(models[name]["licence"]) for name in models}
    return sbom.document(image_id, inside, licences) if inside["manifest"] else ""


def table(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """The verdict as a person reads it."""
    return report.table(
        ("check", "verdict", "seen"), [(row["name"], row["verdict"], row["evidence"][:160]) for row in rows]
    )


def reason(said: str) -> str:
    """Why a playbook failed, by what it said: the plugin `reason` says it at the end."""
    before, marker, after = said.partition("Why it ended")
    return " ".join((marker + after if marker else "\n".join(before.splitlines()[-15:])).split())


def failures(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """A line for each row that failed."""
    return [
        f"{row['name']}: {row['evidence']} (wanted: {row['limit']})"
        for row in rows
        if row["verdict"] == FAILED
    ]


FILTERS: dict[str, Callable[..., Any]] = {
    "ingot_verify_variable_refusals": preflight.variable_refusals,
    "ingot_verify_refusals": preflight.refusals,
    "ingot_verify_type": preflight.instance_type,
    "ingot_verify_volume": preflight.least_volume,
    "ingot_verify_rows": verdict,
    "ingot_verify_failures": failures,
    "ingot_canary_environment": environment,
    "ingot_verify_sbom": bill,
    "ingot_verify_table": table,
    "ingot_verify_reason": reason,
}
