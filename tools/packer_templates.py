"""Write the Packer templates of all images from one text, packer/x86.pkr.hcl.

Packer loads the one file that it is given, so each template has to stand by itself, variables, checks and
all. What differs between images is in packer/images.yml; the templates differ in their name only.

tools/packer_templates.py           write them
tools/packer_templates.py --check   change nothing; exit 1 when one is stale
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from repo_checks import load
from steps import ROOT

SOURCE = "x86"
HEAD = """\
# Bakes the image `{name}` of images.yml. Made from {source}.pkr.hcl by `make readmes`: change that one.
# Packer parses this file alone, so it shares nothing with other templates but data files.
"""


def text_of(name: str, source: str) -> str:
    """The template of the image ``name``: the source's text under a head of its own."""
    _, found, body = source.partition("\n\n")
    if not found or not re.search(rf"\b{SOURCE}\b", body):
        raise ValueError(f"packer/{SOURCE}.pkr.hcl does not begin with a comment and name the image {SOURCE}")
    return HEAD.format(name=name, source=SOURCE) + "\n" + re.sub(rf"\b{SOURCE}\b", name, body)


def stale(root: Path) -> dict[Path, tuple[str, str]]:
    """Templates that are not as they should be: the text that is there (empty: none), and the right one."""
    packer = root / "packer"
    source = (packer / f"{SOURCE}.pkr.hcl").read_text()
    found = {}
    for name in load(packer / "images.yml")["images"]:
        path = packer / f"{name}.pkr.hcl"
        present = path.read_text() if path.exists() else ""
        wanted = source if name == SOURCE else text_of(name, source)
        if present != wanted:
            found[path] = (present, wanted)
    return found


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Write the templates, or check them."""
    parser = argparse.ArgumentParser(description="Write the Packer templates from one text.")
    parser.add_argument("--check", action="store_true", help="change nothing; 1 when a template is stale")
    check = parser.parse_args(argv).check
    differing = stale(root)
    for path, (present, wanted) in differing.items():
        name = path.relative_to(root)
        if not check:
            path.write_text(wanted)
            print(f"wrote {name}")
            continue
        print(f"{name} is not packer/{SOURCE}.pkr.hcl with its own name: change that, then `make readmes`")
        lines = present.split("\n"), wanted.split("\n")
        print("\n".join(difflib.unified_diff(*lines, "now", "wanted", lineterm="")))
    return 1 if check and differing else 0


if __name__ == "__main__":
    sys.exit(main())
