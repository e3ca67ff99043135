#!/usr/bin/python
# Copyright: Ingot contributors
# Apache-2.0
"""Put a program of several files into its directory, in one run instead of one for each file."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: place_files
short_description: Text files below one directory, with these contents
description:
  - What C(copy) does in a loop costs a few connections and processes for each file; here it is one for all.
    A file is replaced as a whole, and only if its content, mode or owner differs. Directories are made where
    they are lacking. Files that are not named stay as they are.
  - All belong to the user that this runs as. Files have mode 0644, directories 0755, whatever the umask is.
options:
  root:
    description: The directory.
    type: path
    required: true
  files:
    description: The content of each file, by its name below O(root).
    type: dict
    required: true
author: Ingot
"""

EXAMPLES = r"""
- name: Install its programs
  place_files:
    root: /usr/lib/ingot/thing
    files:
      main.py: "{{ lookup('ansible.builtin.file', 'main.py', rstrip=false) }}"
      package/__init__.py: ""
"""

RETURN = r"""
changed_files:
  description: Names of the files that were written.
  type: list
  returned: always
"""

PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
FILE_MODE = 0o644
DIRECTORY_MODE = 0o755


class RefusedError(Exception):
    """What was asked for is refused; the message says what."""


def is_ours(path: Path, mode: int) -> bool:
    """Whether it has the mode, and the owner and group of this process."""
    status = path.stat()
    return (status.st_mode & 0o7777, status.st_uid, status.st_gid) == (mode, os.geteuid(), os.getegid())


def make_ours(path: Path, mode: int) -> None:
    os.chown(path, os.geteuid(), os.getegid())
    path.chmod(mode)


def read(path: Path) -> str | None:
    """The text of a file that is there. Links are not followed: they would be replaced."""
    return (
        path.read_text(encoding="utf-8", errors="replace")
        if path.is_file() and not path.is_symlink()
        else None
    )


def directories(root: Path, names: list[str]) -> list[Path]:
    """The root, what lies between it and the files, and what it lacks above it; parents first."""
    below = {root / parent for name in names for parent in Path(name).parents}
    return sorted(below | {root} | {parent for parent in root.parents if not parent.exists()})


def write(path: Path, content: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(content, encoding="utf-8")
    make_ours(partial, FILE_MODE)
    partial.replace(path)


def place(root: Path, files: dict[str, str], *, check_mode: bool) -> dict[str, Any]:
    """What the module does; its result.

    Raises:
        RefusedError: a name leaves the directory.
    """
    for name in files:
        if not all(PART.fullmatch(part) for part in name.split("/")):
            raise RefusedError(f"{name!r} is refused: it would leave {root}, or is no plain name")
    changed = False
    for directory in directories(root, list(files)):
        if not (directory.is_dir() and is_ours(directory, DIRECTORY_MODE)):
            changed = True
            if not check_mode:
                directory.mkdir(parents=True, exist_ok=True)
                make_ours(directory, DIRECTORY_MODE)
    written, diff = [], []
    for name, content in sorted(files.items()):
        path = root / name
        before = read(path)
        if before == content and is_ours(path, FILE_MODE):
            continue
        written.append(name)
        diff.append(
            {
                "before": before or "",
                "after": content,
                "before_header": str(path),
                "after_header": str(path),
            }
        )
        if not check_mode:
            write(path, content)
    return {"changed": changed or bool(written), "changed_files": written, "diff": diff}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "files": {"type": "dict", "required": True},
        },
        supports_check_mode=True,
    )
    root = Path(module.params["root"])
    try:
        module.exit_json(**place(root, module.params["files"], check_mode=module.check_mode))
    except RefusedError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{root}: {error}")


if __name__ == "__main__":
    main()
