"""Where things are. Standard library only: tools/bootstrap.py uses it before there is a venv."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

GIB = 1 << 30
STATE_ROOT = Path("/var/lib/ingot-local")


def cache_of(environ: Mapping[str, str] = os.environ) -> Path:
    """Where downloads and builds are kept between runs, outside the checkout (``INGOT_CACHE``)."""
    home = Path(environ.get("HOME") or Path.home())
    default = Path(environ.get("XDG_CACHE_HOME") or home / ".cache") / "ingot"
    return Path(environ.get("INGOT_CACHE") or default).absolute()
