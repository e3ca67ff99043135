"""A program of a role or a plugin as a module: where it runs it is one file, outside of every package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load(path: Path) -> ModuleType:
    """A new module of the file, also known to what it loads after it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # where dataclasses look for their module
    spec.loader.exec_module(module)
    return module
