"""The cluster goes from one serving mode to the other and back, and recovers when its head is killed."""

from __future__ import annotations

import pytest
from live_cluster import LiveCluster
from local_region import eventually

from unchanged import changed_hosts

pytestmark = pytest.mark.long


def test_a_head_that_was_killed_comes_back_with_all_its_replicas(cluster: LiveCluster) -> None:
    assert "Paris" in cluster.ask()
    head = cluster.heads[0]
    before = cluster.root(head, "systemctl show --value -p InvocationID ray-head")
    cluster.root(head, "systemctl kill --signal=SIGKILL ray-head")

    def another_head() -> bool:
        state = cluster.root(head, "systemctl show --value -p ActiveState -p InvocationID ray-head").split()
        return "active" in state and before.strip() not in state

    eventually("another head", another_head)
    eventually("an answer", lambda: "Paris" in cluster.ask(), timeout=600)
    eventually("no findings on any node", lambda: not cluster.findings(), timeout=600)
    for worker in cluster.workers:
        assert cluster.root(worker, "systemctl is-active ray-worker") == "active\n"


def test_plain_units_instead_of_ray_and_back(cluster: LiveCluster) -> None:
    first = cluster.site("-e", "serving_mode=vllm")
    assert first.status == 0
    assert "answered: The capital of France is Paris." in first.output
    for node in cluster.nodes:
        assert cluster.root(node, "systemctl is-active vllm") == "active\n"
        running = cluster.root(node, "systemctl is-active ray-head ray-worker ingot-serve", may_fail=True)
        assert "active" not in running.split(), "Ray was left running"

    second = cluster.site("-e", "serving_mode=vllm")
    assert second.status == 0
    assert set(changed_hosts(second.output).values()) == {0}

    back = cluster.site()
    assert back.status == 0
    assert "answered: The capital of France is Paris." in back.output
    for node in cluster.nodes:
        assert cluster.root(node, "systemctl is-active vllm", may_fail=True) == "inactive\n"
