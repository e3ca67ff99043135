"""playbooks/vars/wiring.yml: what the role cpu_tuning decides reaches the roles that start engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import role_templates  # noqa: F401  (makes the filters known)
import yaml
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


def wired(
    name: str, mode: str, tuned: dict[str, Any] | None = TUNED, host: str = "worker", **given: Any
) -> Any:
    """A variable of the wiring, as a node of a cluster of two sees it whose inventory has what is given."""
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
        **hosts[host],
        "gateway_port": 8080,
        "groups": {"ray_head": ["head"], "ray_worker": ["worker"]},
        "hostvars": hosts,
        "inventory_hostname": host,
        "serving_mode": mode,
        **given,
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


def pool_of_two(name: str, host: str) -> Any:
    """The worker serves another model than the head, by a plain unit."""
    loader = DataLoader()
    facts: dict[str, Any] = {"memtotal_mb": 1024, "processor_nproc": 64}
    hosts: dict[str, dict[str, Any]] = {
        "head": {
            "serving_model_id": "a/head",
            "serving_mode": "ray_serve",
            "ansible_facts": facts | {"default_ipv4": {"address": "10.0.0.1"}},
        },
        "worker": {
            "serving_model_id": "made/up",
            "serving_mode": "vllm",
            "ansible_facts": facts | {"processor_nproc": 4, "default_ipv4": {"address": "10.0.0.2"}},
        },
    }
    values = {
        **loader.load_from_file(str(ROOT / "playbooks/vars/wiring.yml"), trusted_as_template=True),
        **hosts[host],
        "__api_key": "sk-canary",
        "gateway_port": 8080,
        "groups": {"ray_head": ["head"], "ray_worker": ["worker"]},
        "hostvars": hosts,
        "inventory_hostname": host,
    }
    return Templar(loader=loader, variables=values).template(trust_as_template("{{ " + name + " }}"))


def test_nodes_of_another_model_are_a_pool_behind_the_same_gateway() -> None:
    assert [one["name"] for one in pool_of_two("gateway_backends", "head")] == ["head"]
    assert pool_of_two("gateway_backend_key", "head") == ""
    assert pool_of_two("gateway_pools", "head") == [
        {
            "name": "made_up",
            "model_id": "made/up",
            "key": "sk-canary",
            "backends": [{"name": "worker", "port": 8000, "address": "10.0.0.2"}],
        }
    ]
    assert pool_of_two("serving_node_count", "head") == 1
    assert pool_of_two("serving_host_cores", "head") == 64, "the other pool's small nodes do not count"
    assert pool_of_two("ray_service_enabled", "worker") is False


def test_one_model_needs_no_pools() -> None:
    assert wired("gateway_pools", "vllm", host="head") == []
    assert len(wired("gateway_backends", "vllm", host="head")) == 2


def test_the_gateway_shows_its_key_to_an_engine_that_asks_for_one() -> None:
    key: dict[str, Any] = {"__api_key": "k"}
    assert wired("gateway_backend_key", "vllm", **key) == "k"
    assert wired("gateway_backend_key", "ray_serve", **key) == ""
    assert wired("gateway_backend_key", "vllm", serving_engine="tensorrt_llm", **key) == ""


def test_every_port_that_a_node_is_asked_about_is_the_one_that_is_set() -> None:
    assert wired("__ports", "vllm") == {"8000": "serving"}
    assert wired("__ports", "ray_serve", host="head") == {"8000": "serving", "8080": "gateway", "6379": "ray"}
    ports: dict[str, Any] = {
        "serving_port": 9000,
        "gateway_port": 9001,
        "ray_gcs_port": 9002,
        "ray_dashboard_port": 9003,
    }
    asked = wired("__ports", "ray_serve", host="head", **ports)
    assert asked == {"9000": "serving", "9001": "gateway", "9002": "ray"}
    assert [backend["port"] for backend in wired("gateway_backends", "vllm", **ports)] == [9000, 9000]
    assert wired("serving_ray_dashboard", "ray_serve", **ports) == "http://127.0.0.1:9003"


def test_the_node_is_asked_about_those_ports_and_no_others() -> None:
    (ask,) = [
        task
        for play in yaml.safe_load((ROOT / "playbooks/site.yml").read_text())
        for task in play["tasks"]
        if "ansible.builtin.raw" in task
    ]
    assert "PORTS=\"{{ __ports.keys() | join(' ') }}\"" in ask["ansible.builtin.raw"]
    assert "vars" not in ask, "what the play itself sets would stand before the wiring"
