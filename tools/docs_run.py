"""Runs the commands of README.md and docs/ from the documents themselves.

A block of commands is fenced as ``console``; a command follows ``$ `` (continued after a trailing backslash),
and the lines below it are what it prints. Those lines must appear in the output in their order; ``...`` is
anything, within a line or as a whole line. A comment above the block says where it runs; without one it
runs inside the local region, where the AWS API is the local EC2's and ``inventories/aws`` is read as
``inventories/rehearsal``, the one difference that there is:

    <!-- run: host -->             on the machine itself, outside the region
    <!-- run: step(NAME) -->       not here: the step NAME of tools/ci.py runs that very command
    <!-- run: skip(REASON) -->     not at all; the reason is listed in the report

One document is one session: directory and exported variables carry over from command to command (those of the
region not to the host).
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from steps import ROOT, ToolError, fail, seconds

FENCE = re.compile(r"^(\s*)(```+)\s*(\S*)\s*$")
MARKER = re.compile(r"^<!--\s*run:\s*(\w+)(?:\((.*)\))?\s*-->$")
KINDS = ("aws", "host", "step", "skip")
LIMIT = 20 * 60.0  # seconds for one command: a bake on a busy machine takes most of it
# Commands in a shell's own language would look like commands that are run, and be none.
REFUSED_LANGUAGES = ("sh", "bash", "shell", "zsh")


@dataclass(frozen=True)
class Command:
    """One command of a document and what it is said to print."""

    document: Path
    line: int
    text: str
    expected: tuple[str, ...]
    kind: str  # one of KINDS
    note: str = ""  # the step's name, or the reason for a skip

    @property
    def place(self) -> str:
        name = self.document.relative_to(ROOT) if self.document.is_relative_to(ROOT) else self.document
        return f"{name}:{self.line}"


def documents() -> list[Path]:
    """The pages, then README.md, which removes the cluster at its end."""
    return [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]


def marker(line: str, place: str) -> tuple[str, str]:
    """The kind and note of a marker line."""
    match = MARKER.match(line)
    if match is None:
        raise ToolError(f"{place}: unreadable marker {line!r}; see tools/docs_run.py for the forms")
    kind, note = match[1], (match[2] or "").strip()
    if kind not in KINDS:
        raise ToolError(f"{place}: a block runs as one of {', '.join(KINDS)}, not {kind!r}")
    if kind in ("step", "skip") and not note:
        raise ToolError(f"{place}: '{kind}' needs {'a step' if kind == 'step' else 'a reason'} in brackets")
    return kind, note


def parse(document: Path) -> list[Command]:
    """The commands of a document, in order."""
    commands: list[Command] = []
    kind, note = "aws", ""
    fence = language = ""
    block: list[tuple[int, str]] = []
    for number, line in enumerate(document.read_text().splitlines(), start=1):
        place = f"{document}:{number}"
        match = FENCE.match(line)
        if fence:
            if match and match[2] == fence and not match[3]:
                if language == "console":
                    commands += commands_of(document, block, kind, note)
                fence, kind, note, block = "", "aws", "", []
            else:
                block.append((number, line))
        elif match:
            fence, language = match[2], match[3]
            if language == "console" and match[1]:
                raise ToolError(f"{place}: an indented console block would not be run; move it to the margin")
            if language in REFUSED_LANGUAGES:
                raise ToolError(f"{place}: write commands as ```console with '$ ' so that they are run")
        elif line.startswith("<!-- run:"):
            kind, note = marker(line, place)
        elif line.strip():
            kind, note = "aws", ""  # a marker speaks for the block right below it only
    if fence:
        raise ToolError(f"{document}: a block is not closed")
    return commands


def commands_of(document: Path, block: Sequence[tuple[int, str]], kind: str, note: str) -> Iterator[Command]:
    """Split a console block at its prompts."""
    groups: list[tuple[int, list[str], list[str]]] = []
    for number, line in block:
        if line.startswith("$ "):
            groups.append((number, [line[2:]], []))
        elif not groups:
            raise ToolError(f"{document}:{number}: a console block begins with '$ '")
        elif not groups[-1][2] and groups[-1][1][-1].endswith("\\"):
            groups[-1][1].append(line)
        else:
            groups[-1][2].append(line)
    for number, text, expected in groups:
        yield Command(document, number, "\n".join(text), tuple(expected), kind, note)


def missing_line(expected: Sequence[str], output: str) -> str | None:
    """The first expected line that does not appear, in order, in the output."""
    lines = iter(output.splitlines())
    for line in expected:
        wanted = line.strip()
        if wanted in ("", "...", "…"):
            continue
        parts = (re.escape(part) for part in re.split(r"\.\.\.|…", wanted))
        pattern = re.compile(r".*?".join(parts))
        if not any(pattern.search(candidate) for candidate in lines):
            return line
    return None


# What bash does with a command: go on where the one before it ended, and leave that to the next.
SCRIPT = """\
set -eo pipefail
[ ! -f "$1.env" ] || source "$1.env"
[ ! -f "$1.cwd" ] || cd "$(cat "$1.cwd")"
eval "$2"
pwd > "$1.cwd"
export -p | grep -Ev '^declare -x (PWD|OLDPWD|SHLVL)=' > "$1.env"
"""


class Session:
    """What one document's commands leave to the next: the directory and the exported variables."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def argv(self, command: Command) -> list[str]:
        """The process that a command becomes."""
        state = str(self.directory / command.kind)
        if command.kind != "aws":
            return ["bash", "-c", SCRIPT, "docs", state, command.text]
        text = command.text.replace("inventories/aws", "inventories/rehearsal")
        return [
            str(ROOT / ".venv/bin/ingot"),
            "local",
            "run",
            "--",
            "bash",
            "-c",
            SCRIPT,
            "docs",
            state,
            text,
        ]

    def run(self, command: Command) -> tuple[int, str]:
        """Run one command; its status, and what it printed, which is shown as it comes."""
        process = subprocess.Popen(
            self.argv(command),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
        assert process.stdout is not None
        signal.signal(signal.SIGALRM, lambda *_: os.killpg(process.pid, signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, LIMIT)
        lines = []
        try:
            for line in process.stdout:
                print(f"    {line}", end="", flush=True)
                lines.append(line)
            return process.wait(), "".join(lines)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()


def run_document(document: Path, skipped: list[Command]) -> tuple[int, list[str]]:
    """Run a document up to its first failure: how many commands passed, and what failed."""
    passed = 0
    with tempfile.TemporaryDirectory(prefix="ingot-docs-") as directory:
        session = Session(Path(directory))
        for command in parse(document):
            if command.kind in ("step", "skip"):
                skipped.append(command)
                continue
            print(f"{command.place} $ {command.text}", flush=True)
            started = time.monotonic()
            status, output = session.run(command)
            print(f"    ({seconds(time.monotonic() - started)})", flush=True)
            if status != 0:
                return passed, [f"{command.place}: exit status {status} from: {command.text}"]
            missing = missing_line(command.expected, output)
            if missing is not None:
                return passed, [f"{command.place}: did not print {missing.strip()!r}: {command.text}"]
            passed += 1
    return passed, []


def main(argv: Sequence[str] | None = None) -> int:
    """Run the documents; the closing line has the totals."""
    parser = argparse.ArgumentParser(description="Run the commands of the documents.")
    parser.add_argument("documents", nargs="*", type=Path, help="only these (default: all)")
    chosen = [path.absolute() for path in parser.parse_args(argv).documents] or documents()
    passed, failures, skipped = 0, list[str](), list[Command]()
    try:
        for document in chosen:
            count, failed = run_document(document, skipped)
            passed += count
            failures += failed
    except ToolError as problem:
        return fail(problem)
    for command in skipped:
        why = f"the step '{command.note}' runs it" if command.kind == "step" else command.note
        print(f"not run here: {command.place} $ {command.text}  ({why})")
    for failure in failures:
        print(failure)
    print(f"{passed} passed, {len(failures)} failed, {len(skipped)} skipped")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
