"""What the tools share: places, the pins, and printing what is done and how long it took.

Only the standard library is used here and in bootstrap.py: they run before the project's venv exists.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))  # not installed yet when bootstrap.py runs

from ingot.rehearsal.places import cache_of  # noqa: E402  (found through the line above)

LEFT_OUT = 77
"""Exit status of a step of tools/ci.py that found nothing to do here; its remark says why."""


class ToolError(Exception):
    """Something a person has to mend; the message says what, and what to do. Printed without a traceback."""


def cache_dir() -> Path:
    """Where downloads and builds live, outside the checkout (``INGOT_CACHE``)."""
    return cache_of(os.environ)


def versions(path: Path = ROOT / "files/versions.yml") -> dict[str, str]:
    """The pins of files/versions.yml: a flat mapping, so that no YAML library is needed to read it."""
    pins: dict[str, str] = {}
    for line in path.read_text().splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = re.fullmatch(r"""(\w+):\s+["']?([^"'\s#]+)["']?\s*(?:#.*)?""", line)
        if match is None:
            raise ToolError(f"{path}: this file holds 'name: version' lines only, but one reads {line!r}")
        pins[match[1]] = match[2]
    return pins


def version_tuple(text: str) -> tuple[int, ...]:
    """``v1.15.0-dev`` as ``(1, 15, 0)``: what comes after the numbers does not count."""
    match = re.match(r"[^\d]*(\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def seconds(duration: float) -> str:
    """A duration as a person would say it."""
    minutes, rest = divmod(round(duration), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{duration:.1f} s"


class Step:
    """One step that is being done; ``note`` what came of it, to be printed at its end."""

    def __init__(self) -> None:
        self.note = "done"


@contextmanager
def step(title: str) -> Iterator[Step]:
    """Print what is being done, then what came of it and how long it took."""
    print(f"==> {title}", flush=True)
    started = time.monotonic()
    state = Step()
    yield state
    print(f"    {state.note} ({seconds(time.monotonic() - started)})", flush=True)


def run(
    argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path = ROOT, quiet: bool = True
) -> str:
    """Run a command that must succeed and return its output; ``quiet`` shows that only when it fails."""
    result = subprocess.run(
        [str(part) for part in argv],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.STDOUT if quiet else None,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        tail = "\n".join((result.stdout or "").splitlines()[-30:])
        command = " ".join(str(part) for part in argv)
        raise ToolError(f"exit status {result.returncode} from: {command}\n{tail}".rstrip())
    return result.stdout or ""


def tracked(*patterns: str) -> list[str]:
    """Files that git knows or would add, by pathspec."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return sorted({name for name in listed.split("\0") if name and (ROOT / name).is_file()})


def remark(text: str) -> None:
    """Say what a step came to, and leave it for the report of tools/ci.py."""
    print(f"    {text}", flush=True)
    if path := os.environ.get("INGOT_STEP_REMARK"):
        Path(path).write_text(text)


def fail(problem: ToolError) -> int:
    """Say what went wrong, where a person looks for it."""
    print(f"failed: {problem}", file=sys.stderr, flush=True)
    return 1
