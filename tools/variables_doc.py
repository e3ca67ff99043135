"""Write docs/variables.md from the files that hold the variables, so that the page cannot drift.

tools/variables_doc.py           write the page
tools/variables_doc.py --check   change nothing; exit 1 when the page is stale
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from repo_checks import load, roles
from steps import ROOT

PAGE = ROOT / "docs/variables.md"
PLAYBOOKS = "inventories/aws/group_vars/all.yml"
TEMPLATE = "packer/x86.pkr.hcl"
QUOTE = '"'

HEAD = """\
# Variables

<!-- Made by tools/variables_doc.py (`make readmes`) from the files it names. Do not edit. -->

Three kinds: what the playbooks read (set it in your inventory, or with `-e`), what the Packer template reads
(`-var`, or a `.pkrvars.hcl` file), and what the roles read (set it as the first; for a bake in the inventory
of `-var inventory=DIR`, or in `playbook_extra_vars`). A name that looks like one of these and is none is
refused with the nearest. Packer refuses every name that it does not know, also in `playbook_extra_vars`,
unless your inventory reads it.
"""


def cell(text: str) -> str:
    """Text that stays within its table cell."""
    return " ".join(text.split()).replace("|", "\\|")


def table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def playbook_rows(text: str) -> Iterator[tuple[str, str, str]]:
    """Name, default and meaning of each variable; comments above or behind it say what it means."""
    above: list[str] = []
    for line in text.splitlines():
        if match := re.match(r"(\w+): (.*)$", line):
            value, _, behind = match[2].partition(" # ")
            yield (
                f"`{match[1]}`",
                f"`{cell(value).strip(QUOTE) or QUOTE * 2}`",
                cell(behind or " ".join(above)),
            )
            above = [] if behind else above  # a comment may speak for the lines that follow it, too
        elif line.startswith("# ") and not line.startswith("# ---"):
            above.append(line[2:])
        elif not line.strip():
            above = []


def packer_rows(text: str) -> Iterator[tuple[str, str, str]]:
    """The same for the template's ``variable`` blocks."""
    for name, body in re.findall(r'^variable "(\w+)" \{\n(.*?)^\}', text, re.MULTILINE | re.DOTALL):
        described = re.search(r'description\s*=\s*"((?:[^"\\]|\\.)*)"', body)
        default = re.search(r"default\s*=\s*(.+)", body)
        meaning = described[1].replace('\\"', '"').replace("$${", "${") if described else ""
        yield f"`{name}`", f"`{default[1]}`" if default else "*required*", cell(meaning)


def role_rows(root: Path) -> Iterator[tuple[str, str]]:
    """Each role with what it is for and where its variables are."""
    for role in roles(root):
        about = load(role / "meta/main.yml").get("galaxy_info", {}).get("description", "")
        yield f"[`{role.name}`](../roles/{role.name}/README.md)", cell(about)


def page(root: Path = ROOT) -> str:
    """The whole page."""
    head = ("variable", "default", "meaning")
    return "\n".join(
        [
            HEAD,
            "## Playbooks\n",
            f"From [`{PLAYBOOKS}`](../{PLAYBOOKS}). A static inventory (`inventories/example`) has no need of"
            " `launch_…`, `ingot_ssh_key` and `ingot_connect`.\n",
            table(head, playbook_rows((root / PLAYBOOKS).read_text())),
            "`destroy_confirm` belongs to the command line alone: with the cluster's name in it,"
            " `destroy.yml` does not ask.\n",
            "## Packer\n",
            f"From [`{TEMPLATE}`](../{TEMPLATE}).\n",
            table(head, packer_rows((root / TEMPLATE).read_text())),
            "## Roles\n",
            "Each role's page has its table.\n",
            table(("role", "what it is for"), role_rows(root)),
        ]
    )


def keep(path: Path, text: Callable[[], str], argv: Sequence[str] | None) -> int:
    """Write a page that is made, or say with ``--check`` whether it is as it would be made."""
    parser = argparse.ArgumentParser(description=f"Write {path.relative_to(ROOT)}.")
    parser.add_argument("--check", action="store_true", help="change nothing; 1 when the page is stale")
    if not parser.parse_args(argv).check:
        path.write_text(text())
        return 0
    if path.exists() and path.read_text() == text():
        return 0
    print(f"{path.relative_to(ROOT)} is stale: run `make readmes`")
    return 1


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page, or check it."""
    return keep(PAGE, page, argv)


if __name__ == "__main__":
    sys.exit(main())
