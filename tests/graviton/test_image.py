"""An instance of an image for Graviton, emulated: what was compiled runs, and is right after two boots.

The cluster is the one that `ingot rehearse --image graviton3` (or graviton4) left in the region
(INGOT_LOCAL_NAME), called INGOT_CLUSTER. Of which image it is, its head's tag says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from ingot_vllm import cores
from live_cluster import LiveCluster
from local_region import LocalRegion, eventually

import graviton
from ingot.rehearse import Cluster

PROMPT = "The capital of France is"
BOOTED = 900.0  # seconds from a reboot to an engine that answers, on two emulated cores


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    known = Cluster.of_inventory()
    region = LocalRegion(
        os.environ.get("INGOT_LOCAL_NAME", "default"),
        tmp_path_factory.mktemp("cluster"),
        key=known.key_file.with_name("ssh-key"),
    )
    live = LiveCluster(region, known)
    assert live.heads, f"no cluster {known.name} here: run `ingot rehearse --image graviton3` first"
    yield live


@pytest.fixture(scope="module")
def image(cluster: LiveCluster) -> str:
    """The name of the image, as the instance is tagged."""
    return next(str(tag["Value"]) for tag in cluster.heads[0]["Tags"] if tag["Key"] == "ingot:image")


@pytest.fixture(scope="module")
def manifest(cluster: LiveCluster) -> dict[str, Any]:
    text = cluster.root(cluster.heads[0], "cat /usr/share/ingot/image.json")
    return dict(json.loads(text))


def test_the_image_says_what_was_compiled_and_that_it_was_proved(
    image: str, manifest: dict[str, Any]
) -> None:
    core = cores.find(graviton.IMAGES[image])
    assert manifest["image"] == image
    facts = manifest["facts"]["vllm"]
    compiled = facts["compiled"]
    assert facts["method"] == "source"
    assert (compiled["cpu"], compiled["flag"]) == (core.name, f"-mcpu={core.name}")
    assert compiled["acl"] is False
    assert compiled["files"] > 200
    (extension,) = (facts for name, facts in compiled["libraries"].items() if name.endswith("/_C.abi3.so"))
    assert extension["lacking"] == 0
    assert core.floors
    assert {kind: extension[kind] for kind, least in core.floors.items() if extension[kind] < least} == {}
    assert "nvpl" in facts["blas"]


def test_the_engine_runs_in_its_unit_without_findings(cluster: LiveCluster) -> None:
    head = cluster.heads[0]
    assert cluster.root(head, "systemctl is-active vllm") == "active\n"
    assert cluster.root(head, "systemctl --failed --plain --no-legend") == ""
    assert cluster.findings() == ""


def test_the_allocator_is_in_the_engine_and_in_nothing_else(cluster: LiveCluster) -> None:
    head = cluster.heads[0]
    look = "grep --files-with-matches --no-messages tcmalloc {} | wc -l"
    engine = look.format("$(pgrep --uid ingot | sed 's,.*,/proc/&/maps,')")
    assert int(cluster.root(head, engine)) >= 1
    others = look.format("$(pgrep --uid root | sed 's,.*,/proc/&/maps,')")
    assert int(cluster.root(head, others, may_fail=True)) == 0


def test_the_answer_is_right(cluster: LiveCluster) -> None:
    assert "Paris" in cluster.complete(PROMPT, 4)


@pytest.mark.long
def test_the_answer_is_right_after_two_boots(cluster: LiveCluster) -> None:
    head = cluster.heads[0]
    for _ in range(2):
        boot = cluster.root(head, "cat /proc/sys/kernel/random/boot_id")
        cluster.root(head, "systemctl reboot", may_fail=True)

        def is_another(before: str = boot) -> bool:
            now = cluster.root(head, "cat /proc/sys/kernel/random/boot_id", may_fail=True)
            return bool(now) and now != before

        eventually("another boot", is_another, 300)
        eventually("an answer", lambda: "Paris" in cluster.complete(PROMPT, 4), BOOTED)
    assert cluster.root(head, "systemctl is-active vllm") == "active\n"
