"""What a build says while it runs and why it failed: read from the output of cmake, ninja and GCC."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

_STEP = re.compile(r"^\[(\d+)/(\d+)\] (.*)")
_CMAKE = re.compile(r"^CMake Error(?: at (?P<place>\S+:\d+))?")
_COMPILER = re.compile(r"^(?P<place>\S+?:\d+(?::\d+)?): (?:fatal )?error: (?P<what>.*)")
_ASSEMBLER = re.compile(r"^(?P<place>\S+:\d+): Error: (?P<what>.*)")
_NINJA = re.compile(r"^ninja: error: (?P<what>.*)")  # its closing line is "ninja: build stopped"
_LINKER = re.compile(r"undefined reference to .*|^collect2: .*error.*|^\S*ld: (?:cannot|error).*")
_PYTHON = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception)\b.*")
_KILLED = re.compile(
    r"(?:Killed signal terminated program|internal compiler error: Killed|Killed\b.*cc1plus)"
)


@dataclass
class Status:
    """Where a build is; the file that another process reads."""

    state: str = "running"  # or "done", "failed"
    phase: str = "starting"
    done: int = 0
    total: int = 0
    began: float = 0.0  # of the build
    phase_began: float = 0.0
    first: int = 0  # steps done when the phase was first seen: a resumed build begins in the middle
    message: str = ""  # the result, or why it failed

    def text(self, now: float | None = None) -> str:
        """One line for a person."""
        at = time.time() if now is None else now
        spent = f"{round((at - self.began) / 60)} min so far"
        if self.state != "running":
            return self.message.splitlines()[0] if self.message else self.state
        if not self.total:
            return f"{self.phase}, {spent}"
        line = f"{self.phase}: {self.done} of {self.total} files, {spent}"
        steps = self.done - self.first
        if steps > 2 and self.done < self.total:
            left = (at - self.phase_began) / steps * (self.total - self.done)
            line += f", about {max(1, round(left / 60))} min left"
        return line

    def read_line(self, line: str, now: float | None = None) -> bool:
        """Take what one line of output says; whether it said something."""
        step = _STEP.match(line)
        if step is None:
            return False
        done, total = int(step[1]), int(step[2])
        if total != self.total or done < self.done:  # another ninja
            self.phase_began = time.time() if now is None else now
            self.first = done
        self.done, self.total = done, total
        self.phase = "compiling"
        return True

    def write(self, path: Path) -> None:
        partial = path.with_suffix(".new")
        partial.write_text(json.dumps(asdict(self)))
        partial.replace(path)


def read_status(path: Path) -> Status | None:
    try:
        return Status(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def first_error(lines: Iterable[str], jobs: int) -> str:
    """The first thing that went wrong in a build's output, with file and line where it has them."""
    text = [line.rstrip() for line in lines]
    failed = ""  # the file that ninja named
    for number, line in enumerate(text):
        if line.startswith("FAILED: "):
            failed = failed or line.removeprefix("FAILED: ").split(" ")[-1].removeprefix("[code=1] ")
        if _KILLED.search(line):
            where = f" while it compiled {failed}" if failed else ""
            return (
                f"the compiler was killed{where}: too little memory for {jobs} at once. Set vllm_build_jobs"
                f" to {max(1, jobs - 1)}, or bake on an instance with more memory"
            )
        for pattern in (_COMPILER, _ASSEMBLER):
            if found := pattern.match(line):
                return f"{found['place']}: {found['what']}"
        if found := _NINJA.match(line):
            return f"ninja: {found['what']}"
        if _LINKER.search(line):
            return f"{failed + ': ' if failed else ''}{line.strip()}"
        if found := _CMAKE.match(line):
            said = [after.strip() for after in text[number + 1 : number + 30] if after.strip()]
            raised = [after for after in said if _PYTHON.match(after)]  # by a Python that cmake asked
            return f"{found['place'] or 'cmake'}: {' '.join([*said[:1], *raised[:1]])}"
    python = [line for line in text if _PYTHON.match(line)]
    shown = python[-1:] or [line for line in text if line.strip()][-1:]
    return shown[0] if shown else "it ended without a word"
