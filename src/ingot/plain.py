"""Data from Ansible in Python's own containers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def plain(data: Any) -> Any:
    """The same data: Ansible's lazy containers show their content only to Python code."""
    if isinstance(data, Mapping):
        return {key: plain(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [plain(value) for value in data]
    return data
