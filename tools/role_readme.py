#!/usr/bin/env python3
"""Write the table of variables in each role's README from its ``meta/argument_specs.yml``.

What is between the two markers belongs to this tool, the rest of the page to its author:

    tools/role_readme.py               rewrite every role's block
    tools/role_readme.py base kernel   only these
    tools/role_readme.py --check       change nothing; exit 1 and name the pages that are stale
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

BEGIN = "<!-- begin: made by tools/role_readme.py from meta/argument_specs.yml -->"
END = "<!-- end: made by tools/role_readme.py -->"
ROLES = Path(__file__).resolve().parent.parent / "roles"

Option = Mapping[str, Any]


class ReadmeError(Exception):
    """A page cannot be made; the message names the file and what it lacks."""


def _text(value: object) -> str:
    """A description (text or list of paragraphs) as one table cell."""
    paragraphs = value if isinstance(value, list) else [value]
    return " ".join(" ".join(str(part).split()) for part in paragraphs if part).replace("|", "\\|")


def _default(option: Option) -> str:
    if option.get("required"):
        return "*required*"
    if "default" not in option:
        return ""
    value = option["default"]
    if isinstance(value, list | dict) and value and len(json.dumps(value)) > 60:
        return "see `defaults/main.yml`"
    shown = value if isinstance(value, str) and value else json.dumps(value)
    # A pipe ends the cell even inside backticks, and a line break ends the table.
    return "`" + " ".join(shown.split()).replace("|", "\\|") + "`"


def _type(option: Option) -> str:
    kind = str(option.get("type", "str"))
    if kind == "list" and "elements" in option:
        kind = f"list of {option['elements']}"
    if choices := option.get("choices"):
        kind += ": " + ", ".join(f"`{choice}`" if choice else "empty" for choice in choices)
    return kind


def _rows(options: Mapping[str, Option], prefix: str = "") -> Iterator[str]:
    """One row an option, the keys of a dictionary right below it."""
    for name, option in options.items():
        description = _text(option.get("description", ""))
        if not description:
            raise ReadmeError(f"option {prefix}{name} has no description")
        yield f"| `{prefix}{name}` | {_type(option)} | {_default(option)} | {description} |"
        if nested := option.get("options"):
            yield from _rows(nested, prefix=f"{prefix}{name}{'[]' if option['type'] == 'list' else ''}.")


def block(specs: Mapping[str, Any]) -> str:
    """The generated part of a README, without its markers.

    Every entry point of a role takes the same options, so one table stands for all of them.
    """
    entry_points = specs["argument_specs"]
    lines = ["| entry point | what it does |", "|---|---|"]
    for name, entry in entry_points.items():
        lines.append(f"| `{name}` | {_text(entry['short_description'])} |")
    options = entry_points["main"].get("options", {})
    if not options:
        return "\n".join([*lines, "", "The role has no variables."])
    header = ["", "| variable | type | default | meaning |", "|---|---|---|---|"]
    return "\n".join([*lines, *header, *_rows(options)])


def render(role: Path) -> str:
    """The whole README of a role as it should be."""
    specs_path, readme = role / "meta/argument_specs.yml", role / "README.md"
    if not specs_path.is_file():
        raise ReadmeError(f"{specs_path}: missing; every role describes its variables there")
    if not readme.is_file():
        raise ReadmeError(f"{readme}: missing; write one with the lines\n{BEGIN}\n{END}")
    page = readme.read_text(encoding="utf-8")
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise ReadmeError(f"{readme}: must hold these two lines once each, in this order:\n{BEGIN}\n{END}")
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    try:
        made = block(yaml.safe_load(specs_path.read_text(encoding="utf-8")))
    except (KeyError, ReadmeError) as error:
        raise ReadmeError(f"{specs_path}: {error}") from error
    return f"{before}{BEGIN}\n{made}\n{END}{after}"


def main(argv: Sequence[str] | None = None, roles: Path = ROLES) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, fail where a page is stale")
    parser.add_argument("role", nargs="*", help="names of roles (default: all)")
    arguments = parser.parse_args(argv)
    names = arguments.role or sorted(path.name for path in roles.iterdir() if path.is_dir())
    status = 0
    for name in names:
        readme = roles / name / "README.md"
        try:
            wanted = render(roles / name)
        except ReadmeError as error:
            print(error, file=sys.stderr)
            status = 1
            continue
        present = readme.read_text(encoding="utf-8")
        if present == wanted:
            continue
        if arguments.check:
            print(f"{readme} is stale; run: tools/role_readme.py {name}", file=sys.stderr)
            diff = difflib.unified_diff(
                present.splitlines(), wanted.splitlines(), "now", "wanted", lineterm=""
            )
            print("\n".join(diff), file=sys.stderr)
            status = 1
        else:
            readme.write_text(wanted, encoding="utf-8")
            print(f"wrote {readme}")
    return status


if __name__ == "__main__":
    sys.exit(main())
