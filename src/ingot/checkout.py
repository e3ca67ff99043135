"""Where the checkout is: Ingot runs from it, beside its playbooks, roles and data."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
