"""All of Ingot's filters: the one file that Ansible loads, so that what it needs is checked in one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError

try:
    from ingot.filters import FILTERS
except ImportError as error:  # an ansible-playbook from outside the project's environment
    raise AnsibleFilterError(
        "Ingot's own Python package is not importable by this ansible-playbook: run it from the project's"
        " virtual environment (.venv/bin/ansible-playbook; `uv sync` makes it)"
    ) from error


class FilterModule:
    """Where Ansible looks for a file's filters."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return FILTERS
