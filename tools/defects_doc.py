"""Write docs/defects.md from the tests that plant defects, so that no row of it is without a test.

tools/defects_doc.py           write the page
tools/defects_doc.py --check   change nothing; exit 1 when the page is stale

A test says what it plants by ``@pytest.mark.planted(AREA, check=..., defect=...)``, and is parametrised by
one name: ``check`` is what has to name the defect, ``defect`` what was planted (without it, the name). Either
is a text, in which {} is the name, or a function of it.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from steps import ROOT, ToolError
from variables_doc import cell, keep, table

PAGE = ROOT / "docs/defects.md"
TESTS = ROOT / "tests/unit"
MARK = "planted"

HEAD = """\
# Planted defects

<!-- Made by tools/defects_doc.py (`make readmes`) from the tests that it names. Do not edit. -->

Each row is a test that puts one thing wrong, into an image's tree, an engine, what was found on a clone, or a
set that is to be released, and asks that the check of this name fails. {count} of them.
"""


@dataclass
class Collected:
    """A plugin of pytest that keeps what it has found."""

    items: list[pytest.Item] = field(default_factory=list)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.items = [item for item in items if item.get_closest_marker(MARK)]


def collect() -> list[pytest.Item]:
    """The tests that plant something. Only files with the mark are read.

    Raises:
        ToolError: pytest cannot read them.
    """
    files = [str(path) for path in sorted(TESTS.rglob("test_*.py")) if f"mark.{MARK}(" in path.read_text()]
    found, said = Collected(), io.StringIO()
    with contextlib.redirect_stdout(said):
        status = pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *files], plugins=[found])
    if status != pytest.ExitCode.OK:
        raise ToolError(f"pytest cannot collect the tests that plant defects:\n{said.getvalue()}")
    return found.items


def told(how: str | Callable[[str], str], name: str) -> str:
    return how.format(name) if isinstance(how, str) else how(name)


def row(item: pytest.Item) -> tuple[str, tuple[str, str, str]]:
    """Area; check, defect and test."""
    mark = item.get_closest_marker(MARK)
    assert mark is not None
    assert isinstance(item, pytest.Function)
    (name,) = (str(value) for value in item.callspec.params.values())
    check, defect = (told(mark.kwargs.get(word, "{}"), name) for word in ("check", "defect"))
    test = item.path.relative_to(ROOT)
    return mark.args[0], (f"`{check}`", cell(defect), f"[{test.name}](../{test})")


def page() -> str:
    """The whole page."""
    rows = [row(item) for item in collect()]
    parts = [HEAD.format(count=len(rows))]
    for area in dict.fromkeys(area for area, _ in rows):
        parts += [f"## {area[0].upper()}{area[1:]}\n"]
        parts += [table(("check", "planted", "test"), (cells for of, cells in rows if of == area))]
    return "\n".join(parts)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page, or check it."""
    return keep(PAGE, page, argv)


if __name__ == "__main__":
    sys.exit(main())
