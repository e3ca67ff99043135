"""Fixtures of the tests of the doctor."""

from __future__ import annotations

import pytest
from fake_systemd import System

from ingot.doctor import collect


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> System:
    fake = System()
    monkeypatch.setattr(collect, "_run", fake.run)
    return fake
