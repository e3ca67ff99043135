"""playbooks/vars/wiring.yml: what the role cpu_tuning decides reaches the roles that start engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import role_templates  # noqa: F401  (makes the filters known)
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

ROOT = Path(__file__).parents[2]
GIB = 1 << 30
ALLOCATOR = {"LD_PRELOAD": "/usr/lib/ingot/preload/libtcmalloc_minimal.so.4"}
THREADS = {"VLLM_CPU_OMP_THREADS_BIND": "0-93|96-189"}
TUNED = {
    "engine_environment": ALLOCATOR,
    "thread_environment": THREADS,
    "engines": 2,
    "memory_bytes": 100 * GIB,
}


def wired(name: str, mode: str, tuned: dict[str, Any] | None = TUNED) -> Any:
    """A variable of the wiring, as the worker of a cluster of two sees it."""
    loader = DataLoader()
    own = {} if tuned is None else {"cpu_tuning_result": tuned}
    facts: dict[str, Any] = {
        "memtotal_mb": 200 * 1024,
        "processor_nproc": 64,
        "default_ipv4": {"address": "10.0.0.1"},
    }
    hosts = {
        host: own | {"ansible_facts": facts | {"memtotal_mb": facts["memtotal_mb"] + number}}
        for number, host in enumerate(("head", "worker"))
    }
    values: dict[str, Any] = {
        **loader.load_from_file(str(ROOT / "playbooks/vars/wiring.yml"), trusted_as_template=True),
        **hosts["worker"],
        "groups": {"ray_head": ["head"], "ray_worker": ["worker"]},
        "hostvars": hosts,
        "inventory_hostname": "worker",
        "serving_mode": mode,
    }
    return Templar(loader=loader, variables=values).template(trust_as_template("{{ " + name + " }}"))


def test_plain_units_get_allocator_and_threads_of_their_node() -> None:
    assert wired("serving_tuning_environment", "vllm") == ALLOCATOR | THREADS
    assert wired("serving_engines", "vllm") == 2
    assert wired("cpu_tuning_engines_most", "vllm") == 0


def test_replicas_get_the_allocator_by_the_application_and_threads_by_their_node() -> None:
    assert wired("serving_tuning_environment", "ray_serve") == ALLOCATOR
    assert wired("ray_engine_environment", "ray_serve") == THREADS
    assert wired("cpu_tuning_engines_most", "ray_serve") == 1


def test_memory_of_idle_numa_nodes_does_not_count() -> None:
    assert wired("serving_host_memory_bytes", "ray_serve") == 100 * GIB


@pytest.mark.parametrize("mode", ["ray_serve", "vllm"])
def test_an_image_without_the_role_is_wired_as_well(mode: str) -> None:
    assert wired("serving_tuning_environment", mode, None) == {}
    assert wired("ray_engine_environment", mode, None) == {}
    assert wired("serving_engines", mode, None) == 1
    assert wired("serving_host_memory_bytes", mode, None) == 200 * GIB
