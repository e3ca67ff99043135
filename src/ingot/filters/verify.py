"""Faces of ingot.verify and ingot.preflight.verify for playbooks/verify.yml."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ingot import report
from ingot.plain import plain
from ingot.preflight import verify as preflight
from ingot.verify import judge, page, sbom
from ingot.verify.canary import environment
from ingot.verify.contents import Contents, changes
from ingot.verify.contents import of as of_contents
from ingot.verify.contents import row as size_row
from ingot.verify.rows import FAILED

FOUND = ".found.json"
REPORT = "report.json"


def seen(directory: str) -> dict[str, Any]:
    """What was found at each moment, a file of the directory for each."""
    return {
        path.name.removesuffix(FOUND): json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(Path(directory).glob(f"*{FOUND}"))
    }


def report_on(
    directory: str,
    image_id: str,
    tags: Mapping[str, str],
    volume_gib: int,
    finished: str,
    against: str,
    ended: str,
) -> dict[str, Any]:
    """All that there is to say of an image: ``ingot.verify.page.Report`` as data.

    ``against``: the AMI to compare it with, whose report lies beside the directory of this one, or empty.
    """
    found = seen(directory)
    contents = of_contents(image_id, volume_gib, found["fresh"]) if "fresh" in found else None
    before = earlier(Path(directory).parent / against) if against else None
    rows = judge.rows(found, plain(tags), ended)
    if contents:
        rows.append(size_row(before, contents))
    made = page.Report(
        image_id=image_id,
        tags=plain(tags),
        finished=finished,
        rows=tuple(rows),
        boots=page.boots(found),
        contents=contents,
        before=before,
        changes=tuple(changes(before, contents)) if before and contents else (),
    )
    return made.model_dump(mode="json")


def early(directory: str, tags: Mapping[str, str]) -> list[str]:
    """A line for each check that failed by what was found so far; that more is to be looked at is none."""
    rows = [row.model_dump() for row in judge.rows(seen(directory), plain(tags)) if row.name != judge.STEPS]
    return failures(rows)


def earlier(directory: Path) -> Contents | None:
    """What the report of another image says that it holds; None where there is no report."""
    path = directory / REPORT
    if not path.exists():
        return None
    return page.Report.model_validate_json(path.read_text(encoding="utf-8")).contents


def as_page(report: Mapping[str, Any]) -> str:
    """The report as one page of HTML."""
    return page.html(page.Report.model_validate(plain(report)))


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
    "ingot_verify_early": early,
    "ingot_verify_report": report_on,
    "ingot_verify_page": as_page,
    "ingot_verify_failures": failures,
    "ingot_canary_environment": environment,
    "ingot_verify_sbom": bill,
    "ingot_verify_table": table,
    "ingot_verify_reason": reason,
}
