"""What tools/ci.py says of its steps: how long they will take, what came of them, and the report of all."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from ci_runner import Check, Outcome
from steps import ROOT, cache_dir, seconds

REPORT = ROOT / "docs/test-full-report.md"


def git(*arguments: str) -> str:
    """What git says of the checkout; nothing where it is none."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def commit() -> str:
    """What is checked out, and whether anything but the report was changed since."""
    name = git("describe", "--always", "--abbrev=12").strip()
    but_the_report = (".", f":(exclude){REPORT.relative_to(ROOT)}")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", *but_the_report)
    return f"{name}-dirty" if changed else name


def committed_times() -> dict[str, float]:
    """Seconds by step that passed, as the last committed report has them."""
    return times(git("show", f"HEAD:{REPORT.relative_to(ROOT)}"))


def times(report: str) -> dict[str, float]:
    """Seconds by step that passed, of a report's text."""
    return {name: duration for name, (duration, _) in passed(report).items()}


def passed(report: str) -> dict[str, tuple[float, str]]:
    """Seconds and remark of each step that passed, of a report's text."""
    row = re.compile(r"^\| (.+?) \| passed(?: \(([^|]*)\))? \| (?:(\d+) min )?([\d.]+) s \|$", re.MULTILINE)
    return {
        name: (60 * int(minutes or 0) + float(rest), remark)
        for name, remark, minutes, rest in row.findall(report)
    }


def taken(chosen: Sequence[Check], report: str, at: str) -> list[Outcome]:
    """The steps that need not run again, by the report of a run that was stopped.

    Those that passed, where it ran on the commit ``at`` with nothing changed; without what a step that has
    not passed needs in the region.
    """
    if at.endswith("-dirty") or f"- Commit: `{at}`\n" not in report:
        return []
    done = passed(report)
    needed = {check.needs for check in chosen if check.name not in done}
    return [
        Outcome(check, "passed", *done[check.name])
        for check in chosen
        if check.name in done and check.name not in needed
    ]


def estimate(chosen: Sequence[Check], known: Mapping[str, float]) -> str:
    """How long the steps will take, before they are begun."""
    total = sum(known.get(check.name, 0) for check in chosen)
    told = f"{len(chosen)} steps, which took {seconds(total)} in the last committed report"
    if new := [f"{check.name} (at most {check.limit:g} min)" for check in chosen if check.name not in known]:
        told += f"; not in it: {', '.join(new)}"
    return told


def totals(outcomes: Sequence[Outcome]) -> str:
    """The closing line, in the form that CI systems read."""
    count = dict.fromkeys(("passed", "failed", "left out", "interrupted", "skipped", "not run"), 0)
    for outcome in outcomes:
        count[outcome.status] += 1
    always = ("passed", "failed")
    return ", ".join(f"{many} {status}" for status, many in count.items() if many or status in always)


def all_well(outcomes: Sequence[Outcome]) -> bool:
    return all(outcome.status in ("passed", "left out") for outcome in outcomes)


def table(outcomes: Sequence[Outcome]) -> str:
    """Result and time of each step."""
    width = max(len(outcome.check.name) for outcome in outcomes)
    rows = (
        f"{o.check.name:<{width}}  {o.status:<11}  {seconds(o.duration):>12}  {o.remark}".rstrip()
        for o in outcomes
    )
    return "\n".join(rows)


class Report:
    """docs/test-full-report.md; until the last step in the cache, so that an end by force leaves something.

    Not in the checkout: images that the steps bake are tagged with its commit, and whether it was changed.
    """

    def __init__(self, chosen: Sequence[Check]) -> None:
        self.chosen = chosen
        self.so_far = cache_dir() / REPORT.name
        self.commit = commit()

    def taken(self) -> list[Outcome]:
        """What a run that was stopped need not do again."""
        report = self.so_far.read_text() if self.so_far.exists() else ""
        return taken(self.chosen, report, self.commit)

    def unfinished(self, outcomes: Sequence[Outcome]) -> None:
        """Write what there is so far."""
        done = {outcome.check.name for outcome in outcomes}
        rest = [Outcome(check, "not run") for check in self.chosen if check.name not in done]
        self.so_far.write_text(self._text([*outcomes, *rest], "**interrupted**, or still running: "))

    def finished(self, outcomes: Sequence[Outcome], *, interrupted: bool) -> None:
        """Write what came of all."""
        REPORT.write_text(self._text(outcomes, "**interrupted**: " if interrupted else ""))
        if all_well(outcomes):
            self.so_far.unlink(missing_ok=True)

    def _text(self, outcomes: Sequence[Outcome], how: str) -> str:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
        took = seconds(sum(outcome.duration for outcome in outcomes))
        rows = "\n".join(
            f"| {o.check.name} | {o.status}{f' ({o.remark})' if o.remark else ''} | {seconds(o.duration)} |"
            for o in outcomes
        )
        return (
            "# Last run of `make test-full`\n\n"
            "Written by `make test-full`; committed before an issue is called resolved.\n\n"
            f"- Date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC\n"
            f"- Commit: `{self.commit}`\n"
            f"- Machine: {os.cpu_count()} cores, {memory:.0f} GiB\n"
            f"- Result: {how}{totals(outcomes)} in {took}\n\n"
            f"| Step | Result | Time |\n|---|---|---|\n{rows}\n"
        )
