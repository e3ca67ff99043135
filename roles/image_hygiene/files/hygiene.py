#!/usr/bin/python3
"""Clean an image of what its clones must not inherit, and verify that it is clean.

    hygiene.py clean --stage now [--dry-run]   on the builder, while it is being baked
    hygiene.py clean --stage poweroff          on the builder, as the last thing of its shutdown
    hygiene.py verify --mode bake              on the builder: what must be gone before it is shut down
    hygiene.py verify --mode tree --root DIR   on a tree that nobody has booted: everything
    hygiene.py verify --mode live              on a booted clone: what a boot does not make anew

Both walk the same rules (hygiene.yml of this role, as JSON). Standard library only: it stays on the image.
Exit status: 0 clean, 1 something was found (verify) or could not be removed (clean), 2 wrong call or rules.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path

RULES = Path("/usr/share/ingot/hygiene.json")
MANIFEST = "usr/share/ingot/image.json"
FIXES = ("remove", "truncate", "drop-lines", "refuse")
STAGES = ("now", "poweroff")
LIVE = (True, False, "older")
#: Larger files are data, not notes; secrets are looked for in what a person or tool would write.
LARGEST_TEXT = 8 << 20


class RuleError(Exception):
    """The rules are wrong; the message names the rule and what is wrong with it."""


@dataclass(frozen=True)
class Rule:
    id: str
    why: str
    fix: str
    paths: tuple[str, ...]
    spared: tuple[str, ...] = ()
    content: re.Pattern[bytes] | None = None
    required: bool = False
    stage: str = "now"
    live: bool | str = True


@dataclass(frozen=True)
class Finding:
    rule: str
    path: str
    what: str
    why: str


@dataclass
class Report:
    findings: list[Finding] = field(default_factory=list)
    fixed: list[Finding] = field(default_factory=list)


def parse_rule(raw: dict[str, object]) -> Rule:
    """A rule as it is in the data file.

    Raises:
        RuleError: a field is unknown, missing or wrong.
    """
    name = raw.get("id", "without an id")
    unknown = set(raw) - {"id", "why", "paths", "except", "fix", "content", "required", "stage", "live"}
    missing = {"id", "why", "paths", "fix"} - set(raw)
    if unknown or missing:
        raise RuleError(f"rule {name}: unknown {sorted(unknown)}, missing {sorted(missing)}")
    stage = str(raw.get("stage", "now"))
    live = raw.get("live", "older" if stage == "poweroff" else True)
    fix = str(raw["fix"])
    if fix not in FIXES or stage not in STAGES or not (isinstance(live, bool) or live in LIVE):
        raise RuleError(f"rule {name}: fix {fix}, stage {stage}, live {live}")
    if fix in ("drop-lines", "refuse") and "content" not in raw:
        raise RuleError(f"rule {name}: fix {fix} needs content")
    if fix == "refuse" and stage != "now":
        raise RuleError(f"rule {name}: a refusal at poweroff would be heard by nobody")
    if not isinstance(raw["paths"], list) or not isinstance(raw.get("except", []), list):
        raise RuleError(f"rule {name}: paths and except must be lists")
    try:
        content = re.compile(str(raw["content"]).encode(), re.MULTILINE) if "content" in raw else None
    except re.error as error:
        raise RuleError(f"rule {name}: content: {error}") from error
    return Rule(
        id=str(raw["id"]),
        why=str(raw["why"]),
        fix=fix,
        paths=tuple(map(str, raw["paths"])),
        spared=tuple(map(str, raw.get("except", []))),  # type: ignore[call-overload]
        content=content,
        required=bool(raw.get("required", False)),
        stage=stage,
        live=live if isinstance(live, bool) else "older",
    )


def load_rules(path: Path) -> list[Rule]:
    """Read the rules, in order.

    Raises:
        RuleError: they cannot be read or one is wrong.
    """
    try:
        return [parse_rule(raw) for raw in json.loads(path.read_text(encoding="utf-8"))["rules"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RuleError(f"{path} cannot be read: {error!r}") from error


class Tree:
    """A root directory. Links are never followed, and other file systems mounted in it are not part of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.device = root.lstat().st_dev

    def inside(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def outside(self, path: Path) -> str:
        return "/" + str(path.relative_to(self.root))

    def glob(self, pattern: str, spared: tuple[str, ...] = ()) -> Iterator[Path]:
        """Paths that match and are not spared.

        ``**`` matches any number of directories, and at the end of a pattern everything below.
        """
        yield from self._match(self.root, pattern.strip("/").split("/"), spared)

    def _match(self, directory: Path, parts: list[str], spared: tuple[str, ...]) -> Iterator[Path]:
        anywhere = parts[0] == "**"
        rest = parts[1:]
        for entry in self._entries(directory, spared):
            if anywhere and self._is_directory(entry):
                yield from self._match(entry, parts, spared)
            name, below = (rest[0], rest[1:]) if anywhere and rest else ("*" if anywhere else parts[0], rest)
            if not fnmatch.fnmatchcase(entry.name, name):
                continue
            if not below:
                yield entry
            elif self._is_directory(entry):
                yield from self._match(entry, below, spared)

    def _entries(self, directory: Path, spared: tuple[str, ...]) -> list[Path]:
        try:
            entries = sorted(Path(entry) for entry in os.scandir(directory))
        except OSError:  # gone, or no directory
            return []
        return [entry for entry in entries if not any(_covers(glob, self.outside(entry)) for glob in spared)]

    def _is_directory(self, path: Path) -> bool:
        """Whether it is a directory of this file system. (On an overlay, files may show another device.)"""
        try:
            status = path.lstat()
        except OSError:
            return False
        return stat.S_ISDIR(status.st_mode) and status.st_dev == self.device


def _text(path: Path) -> bytes:
    """What is in a regular file of a size that a person would write; empty for anything else."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_TEXT:
            return b""
        return path.read_bytes()
    except OSError:
        return b""


def _mask(secret: bytes) -> str:
    """Enough to recognise it, too little to use it."""
    shown = secret[:6].decode("utf-8", "replace")
    return f"{shown}… ({len(secret)} characters)"


def _line(text: bytes, position: int) -> int:
    return text.count(b"\n", 0, position) + 1


def find(rule: Rule, tree: Tree) -> Iterator[tuple[Path, str]]:
    """What violates the rule: each path, and what is wrong with it."""
    seen: set[Path] = set()
    for pattern in rule.paths:
        matched = False
        for path in tree.glob(pattern, rule.spared):
            matched = True
            if path not in seen and (what := _wrong(rule, path)):
                yield path, what
            seen.add(path)
        if rule.required and not matched:
            yield tree.inside(pattern), "missing"


def _covers(pattern: str, name: str) -> bool:
    """Whether an ``except`` glob spares this path: all below ``DIR/**``, otherwise component by component."""
    if pattern.endswith("/**"):
        top = pattern[:-3].split("/")
        parts = name.split("/")[: len(top)]
    else:
        top, parts = pattern.split("/"), name.split("/")
    return len(parts) == len(top) and all(map(fnmatch.fnmatchcase, parts, top))


def _wrong(rule: Rule, path: Path) -> str:
    """What is wrong with the path in the eyes of the rule, or nothing."""
    if rule.fix == "truncate":
        status = path.lstat()
        return f"{status.st_size} bytes" if stat.S_ISREG(status.st_mode) and status.st_size else ""
    if rule.content is None:
        return "exists"
    text = _text(path)
    found = rule.content.search(text)
    if not found:
        return ""
    return f"line {_line(text, found.start())}: {_mask(found.group(0))}"


def fix(rule: Rule, path: Path) -> None:
    """Make the path agree with the rule."""
    if rule.fix == "remove":
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    elif rule.fix == "truncate":
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o444))
    elif rule.fix == "drop-lines":
        assert rule.content is not None
        kept = [line for line in path.read_bytes().splitlines(keepends=True) if not rule.content.search(line)]
        path.write_bytes(b"".join(kept))


def clean(rules: list[Rule], tree: Tree, stage: str, dry_run: bool) -> Report:
    """Fix what can be fixed of one stage. Goes on when one thing cannot be: the rest still can."""
    report = Report()
    for rule in rules:
        if rule.stage != stage or rule.fix == "refuse":
            continue
        for path, what in list(find(rule, tree)):
            finding = Finding(rule.id, tree.outside(path), what, rule.why)
            try:
                if not dry_run:
                    fix(rule, path)
            except OSError as error:
                report.findings.append(replace(finding, what=f"cannot be cleaned: {error}"))
            else:
                report.fixed.append(finding)
    return report


def verify(rules: list[Rule], tree: Tree, mode: str) -> Report:
    """Everything that violates the rules of a mode."""
    report = Report()
    created = 0.0
    if mode == "live":
        try:
            manifest = json.loads(tree.inside(MANIFEST).read_text(encoding="utf-8"))
            created = datetime.fromisoformat(manifest["created"]).timestamp()
        except (OSError, ValueError, KeyError, TypeError) as error:
            report.findings.append(
                Finding(
                    "no-manifest", f"/{MANIFEST}", f"unreadable: {error!r}", "it says when the image was made"
                )
            )
    for rule in rules:
        if (mode == "bake" and rule.stage != "now") or (mode == "live" and rule.live is False):
            continue
        for path, what in find(rule, tree):
            if mode == "live" and rule.live == "older" and not _older(path, created):
                continue
            report.findings.append(Finding(rule.id, tree.outside(path), what, rule.why))
    return report


def _older(path: Path, moment: float) -> bool:
    try:
        return path.lstat().st_mtime < moment
    except OSError:
        return False


def show(report: Report, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(report), indent=1))
        return
    for finding in report.fixed:
        print(f"cleaned {finding.path} ({finding.rule})")
    for finding in report.findings:
        print(f"{finding.rule}: {finding.path}: {finding.what}. {finding.why}")
    if not report.findings:
        print(f"clean ({len(report.fixed)} things removed)" if report.fixed else "clean")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, default=Path("/"), help="tree to look at (default: this system)")
    parser.add_argument("--rules", type=Path, default=RULES)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    actions = parser.add_subparsers(dest="action", required=True)
    cleaning = actions.add_parser("clean", help="remove what must not stay")
    cleaning.add_argument("--stage", choices=STAGES, required=True)
    cleaning.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    verifying = actions.add_parser("verify", help="say what is there and must not be")
    verifying.add_argument("--mode", choices=("bake", "tree", "live"), required=True)
    # So that the options common to both may stand after the action too.
    for action in (cleaning, verifying):
        action.add_argument("--root", type=Path, default=argparse.SUPPRESS)
        action.add_argument("--rules", type=Path, default=argparse.SUPPRESS)
        action.add_argument("--json", action="store_true", default=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not options.root.is_dir():
        parser.error(f"{options.root} is no directory")
    if options.root == Path("/") and os.geteuid() != 0:
        parser.error("only root sees all of a system: use sudo")
    try:
        rules = load_rules(options.rules)
    except RuleError as error:
        print(error, file=sys.stderr)
        return 2
    tree = Tree(options.root)
    if options.action == "clean":
        report = clean(rules, tree, options.stage, options.dry_run)
    else:
        report = verify(rules, tree, options.mode)
    show(report, options.json)
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
