"""What engine.py and source.py share. Standard library only: it runs before the environment that it makes."""

from __future__ import annotations


class RefusedError(Exception):
    """What was asked for cannot be done; the message is for a person."""
