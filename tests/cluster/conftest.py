"""Tests that break and mend the cluster that `ingot rehearse` left in the local region (INGOT_LOCAL_NAME)."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from live_cluster import LiveCluster
from local_region import LocalRegion

from ingot.rehearse import Cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    """The cluster, which is put in order again at the end, for what runs after these tests."""
    known = Cluster.of_inventory()
    key = known.key_file.with_name("ssh-key")
    name = os.environ.get("INGOT_LOCAL_NAME", "default")
    live = LiveCluster(LocalRegion(name, tmp_path_factory.mktemp("cluster"), key=key), known)
    assert live.heads and live.workers, f"no cluster in the region {name}: run `ingot rehearse` there first"
    yield live
    if "Paris" not in live.ask() or live.findings():
        live.stop()  # what ran beside a planted defect may have kept it
        assert live.site().status == 0, "the cluster could not be put in order again"
