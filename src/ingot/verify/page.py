"""The report on an image: one page that a person reads, and the same as JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ingot.table import Strict
from ingot.verify.contents import Change, Contents, mib
from ingot.verify.rows import FAILED, LEFT_OUT, PASSED, Row

UNITS = {"min": 60.0, "s": 1.0, "ms": 0.001}


class Report(Strict):
    """All that is known of an image when its verdict is come to.

    ``boots``: seconds by phase of the boot, by the moment at which the clone was looked at. ``before``: the
    image that it was compared with, or None.
    """

    image_id: str
    tags: dict[str, str]
    finished: str
    rows: tuple[Row, ...]
    boots: dict[str, dict[str, float]]
    contents: Contents | None
    before: Contents | None
    changes: tuple[Change, ...]

    @property
    def publishable(self) -> bool:
        return bool(self.rows) and not any(row.verdict == FAILED for row in self.rows)

    @property
    def largest(self) -> list[tuple[str, int]]:
        """The directories that take most, the first first."""
        sizes = self.contents.sizes if self.contents else {}
        return sorted(sizes.items(), key=lambda item: -item[1])[:12]


def boot_phases(said: str) -> dict[str, float]:
    """Seconds by phase, of what ``systemd-analyze time`` says; empty where it says nothing of them."""
    found = {}
    for time, phase in re.findall(r"((?:[\d.]+(?:min|ms|s) ?)+)\((\w+)\)", said):
        parts = re.findall(r"([\d.]+)(min|ms|s)", time)
        found[phase] = round(sum(float(number) * UNITS[unit] for number, unit in parts), 3)
    return found


def boots(found: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Phases of each boot of the clone that was looked at."""
    seen = {
        moment: boot_phases(found[moment]["evidence"]["system"]["boot"])
        for moment in ("fresh", "second")
        if moment in found
    }
    return {moment: phases for moment, phases in seen.items() if phases}


def html(report: Report) -> str:
    """The page. Nothing is loaded from elsewhere, and nothing in it runs."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["mib"] = mib
    by_kind = [(what, list(group)) for what, group in groupby(report.changes, key=lambda change: change.what)]
    words = {"FAILED": FAILED, "LEFT_OUT": LEFT_OUT, "PASSED": PASSED}
    return environment.get_template("page.html.j2").render(report=report, changes=by_kind, **words)
