"""The programs that roles put on machines, as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError


def texts(patterns: Iterable[str], root: str) -> dict[str, str]:
    """The text of every file below ``root`` that a pattern matches, by its name from there.

    Raises:
        AnsibleFilterError: a pattern matches nothing, so a program would be lacking on the machine.
    """
    found: dict[str, str] = {}
    for pattern in patterns:
        paths = sorted(path for path in Path(root).glob(pattern) if path.is_file())
        if not paths:
            raise AnsibleFilterError(f"no file matches {pattern} below {root}: this checkout is not whole")
        found |= {str(path.relative_to(root)): path.read_text(encoding="utf-8") for path in paths}
    return found


FILTERS: dict[str, Callable[..., Any]] = {"ingot_texts": texts}
