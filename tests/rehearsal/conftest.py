"""Tests of real machines: they need root and the host packages, and take regions under names of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from local_region import LocalRegion


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.geteuid() != 0:
        for item in items:
            item.add_marker(pytest.mark.skip(reason="machines need root"))


@pytest.fixture(scope="session")
def region(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegion]:
    """A region that is up, shared by all tests of machines; purged at the end."""
    with LocalRegion.fresh("machtest", tmp_path_factory.mktemp("machtest")) as region:
        region.control.up()
        yield region
