"""Fixtures of the tests of refusals."""

from __future__ import annotations

import pytest
from refusals import CATALOG

from ingot import models


@pytest.fixture
def catalog() -> models.Catalog:
    return models.parse_catalog(CATALOG)
