"""What clients ask for besides text."""

from __future__ import annotations

import json

from live_cluster import LiveCluster


def test_log_probabilities_are_answered_and_the_engine_lives_on(cluster: LiveCluster) -> None:
    """On an image without a compiler, what counts their ranks once ended the engine."""
    said = cluster.complete("The capital of France is", 2, logprobs=3)
    (choice,) = json.loads(said)["choices"]
    assert len(choice["logprobs"]["top_logprobs"]) == 2
    assert "Paris" in cluster.ask()
