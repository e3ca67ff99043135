"""What a check or a log line tells a person."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True)
class Finding:
    """One problem: what is wrong, where it was seen, and what to do about it."""

    cause: str  # stable id, for tests and runbooks
    what: str
    action: str
    rank: int  # the lower, the nearer to the root of the trouble
    node: str = ""
    unit: str = ""
    source: str = ""  # journal, or the file
    evidence: str = ""  # the very line
    transient: bool = False  # trying again later may help

    def at(self, **place: str) -> Finding:
        """The same finding, with the place where it was seen."""
        return replace(self, **place)  # type: ignore[arg-type]

    def text(self) -> str:
        """Three lines for a person."""
        where = ", ".join(part for part in (self.node, self.unit, self.source) if part)
        lines = [self.what + (f"  [{where}]" if where else "")]
        if self.evidence:
            lines.append(f"    seen: {self.evidence}")
        lines.append(f"    do:   {self.action}")
        return "\n".join(lines)


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """Root causes first; each cause once for each unit."""
    seen: dict[tuple[str, str, str], Finding] = {}
    for finding in sorted(findings, key=lambda item: item.rank):
        seen.setdefault((finding.cause, finding.unit, finding.what), finding)
    return list(seen.values())


def as_json(findings: Iterable[Finding]) -> str:
    """For Ansible and for machines."""
    return json.dumps([asdict(finding) for finding in findings], indent=2)
