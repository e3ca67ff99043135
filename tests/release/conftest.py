"""Tests that release images of the local region (INGOT_LOCAL_NAME), where `ingot rehearse` has baked one."""

from __future__ import annotations

import os

import pytest
from local_region import LocalRegion
from release_account import Account


@pytest.fixture(scope="session")
def account(tmp_path_factory: pytest.TempPathFactory) -> Account:
    directory = tmp_path_factory.mktemp("release")
    region = LocalRegion(os.environ.get("INGOT_LOCAL_NAME", "default"), directory)
    return Account(region, directory / "channels")
