"""What systemd's units read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PLAIN = re.compile(r"[\w@%+=:,./|-]*", re.ASCII)


def environment_lines(variables: Mapping[str, Any]) -> str:
    """The lines of a file for EnvironmentFile=, in which every value arrives as it was given."""
    return "".join(f"{_name(name)}={_quoted(str(variables[name]))}\n" for name in sorted(variables, key=str))


def _name(name: object) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise AnsibleFilterError(f"{name!r} cannot name an environment variable: letters, digits and _ only")
    return name


def _quoted(value: str) -> str:
    """Within double quotes systemd takes all as it is, except these four, and them behind a backslash."""
    if PLAIN.fullmatch(value):
        return value
    return '"' + re.sub(r'(["\\$`])', r"\\\1", value) + '"'


FILTERS: dict[str, Callable[..., Any]] = {"ingot_environment_lines": environment_lines}
