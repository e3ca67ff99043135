"""Where engines run, from a fake /sys of each kind of node, through the module that reads a real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fake_sys
import pytest
from program import load

from ingot import sizing, topology
from ingot.filters import FILTERS
from ingot.topology import BIND, RESERVED, TopologyError, plan

GIB = sizing.GIB


MODULE = load(Path(__file__).parents[2] / "plugins/modules/cpu_facts.py")


def node(root: Path, architecture: str = "x86_64", **kind: Any) -> dict[str, Any]:
    facts: dict[str, Any] = MODULE.read(fake_sys.make(root, **kind), "system.slice")
    return facts | {"architecture": architecture}


def threads(made: topology.Plan) -> list[str]:
    return [topology.format_list(engine.threads) for engine in made.engines]


# --- the kernel's lists -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "0", "0-3", "0,2-4,9", "0-95,192-287"])
def test_lists_of_cpus_survive_being_read_and_written(text: str) -> None:
    assert topology.format_list(topology.parse_list(text)) == text


@pytest.mark.parametrize("text", ["0-", "a", "3-1", "0;1", "-1"])
def test_what_is_no_list_of_cpus_is_refused(text: str) -> None:
    with pytest.raises(TopologyError, match="is no list of CPUs"):
        topology.parse_list(text)


# --- one NUMA node ------------------------------------------------------------------------------------------


def test_where_vllm_chooses_right_by_itself_nothing_is_set(tmp_path: Path) -> None:
    """Its variables are part of the compile cache's key: needless ones would cost the cache."""
    made = plan(node(tmp_path, cores=8, smt=2))
    assert made.environment == {}
    assert threads(made) == ["8-14"], "the second thread of each core, less the core of the scheduler"
    assert made.engines[0].reserved == 1


def test_on_arm_every_core_has_a_thread_but_the_reserved(tmp_path: Path) -> None:
    made = plan(node(tmp_path, "aarch64", cores=32))
    assert (threads(made), dict(made.environment)) == (["0-30"], {})


def test_a_large_graviton_leaves_two_cores_as_sizing_does(tmp_path: Path) -> None:
    """96 cores of one socket: m8g.24xlarge."""
    made = plan(node(tmp_path, "aarch64", cores=96))
    reserved = sizing.engine_cpus(96)[1]
    assert made.engines[0].reserved == reserved == 2
    assert threads(made) == ["0-93"]
    assert made.environment == {RESERVED: "2"}, "vLLM's own selection, with more left free"


@pytest.mark.parametrize(("cores", "smt"), [(1, 1), (1, 2)])
def test_the_only_core_is_the_engines(tmp_path: Path, cores: int, smt: int) -> None:
    made = plan(node(tmp_path, cores=cores, smt=smt))
    assert (threads(made), made.engines[0].reserved, dict(made.environment)) == ([str(smt - 1)], 0, {})


def test_two_cores_are_both_the_engines(tmp_path: Path) -> None:
    """Half of the engine would be a high price for a scheduler that spins (docs/bench-cpu.md)."""
    made = plan(node(tmp_path, cores=2))
    assert (threads(made), made.engines[0].reserved) == (["0-1"], 0)
    assert made.environment == {RESERVED: "0"}, "vLLM's own selection, with nothing left free"
    assert plan(node(tmp_path, cores=2), reserved=1).environment == {}
    assert plan({**node(tmp_path, cores=2), "cpu_quota": 2.0}).engines[0].threads == (0,)


def test_a_kernel_without_numa_is_one_node(tmp_path: Path) -> None:
    made = plan(node(tmp_path, "aarch64", cores=4, numa=False))
    assert (threads(made), dict(made.environment)) == (["0-2"], {})


def test_the_reserve_can_be_said(tmp_path: Path) -> None:
    made = plan(node(tmp_path, "aarch64", cores=8), reserved=3)
    assert (threads(made), dict(made.environment)) == (["0-4"], {RESERVED: "3"})


# --- several ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("smt", [1, 2])
@pytest.mark.parametrize("nodes", [2, 4, 8])
def test_each_numa_node_gets_an_engine_of_its_own(tmp_path: Path, nodes: int, smt: int) -> None:
    facts = node(tmp_path, nodes=nodes, cores=8, smt=smt)
    made = plan(facts)
    assert [engine.node for engine in made.engines] == list(range(nodes))
    known = topology.parse(facts)
    for engine in made.engines:
        assert set(engine.threads) <= known.nodes[engine.node].cpus
        assert len(engine.threads) == 7, "one thread for each physical core, less one"
    everyone = [cpu for engine in made.engines for cpu in engine.threads]
    assert len(everyone) == len(set(everyone)), "no CPU has two engines"
    assert made.environment == {BIND: "|".join(threads(made))}
    assert made.memory_bytes == nodes * 64 * GIB
    assert made.notes == ()


def test_the_192_cores_of_graviton4_are_two_engines(tmp_path: Path) -> None:
    made = plan(node(tmp_path, "aarch64", nodes=2, cores=96, memory=192 * GIB))
    assert made.environment == {BIND: "0-93|96-189"}


def test_what_serves_one_engine_only_leaves_a_node_idle_and_says_so(tmp_path: Path) -> None:
    made = plan(node(tmp_path, "aarch64", nodes=2, cores=96, memory=192 * GIB), most=1)
    assert threads(made) == ["0-93"]
    assert made.memory_bytes == 192 * GIB, "vLLM binds memory to the engine's node, so only that counts"
    assert made.notes[0].startswith("NUMA node 1 (96 cores) has no engine and is idle")


def test_a_node_without_memory_or_without_cpus_gets_none(tmp_path: Path) -> None:
    facts = node(tmp_path, "aarch64", nodes=3, cores=4)
    facts["nodes"][1]["memory_bytes"] = 0
    facts["nodes"][2]["cpus"] = ""
    facts["allowed_cpus"] = "0-7"
    assert [engine.node for engine in plan(facts).engines] == [0]


def test_more_engines_than_nodes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="2 engines are asked for, and 1 NUMA node"):
        plan(node(tmp_path), engines=2)


# --- what is not there, or not allowed ----------------------------------------------------------------------


def test_offline_cores_get_no_thread(tmp_path: Path) -> None:
    made = plan(node(tmp_path, "aarch64", cores=8, offline=[1, 2, 6]))
    assert threads(made) == ["0,3-5"]
    assert made.environment == {}, "vLLM asks for the CPUs that are online, too"
    assert made.notes == ("CPUs 1-2,6 are offline",)


def test_smt_that_was_switched_off_leaves_the_first_threads(tmp_path: Path) -> None:
    made = plan(node(tmp_path, cores=4, smt=2, offline=[4, 5, 6, 7]))
    assert (threads(made), dict(made.environment)) == (["0-2"], {})


def test_a_cpuset_is_honoured(tmp_path: Path) -> None:
    made = plan(node(tmp_path, cores=8, smt=2, allowed="2-5,10-13"))
    assert (threads(made), dict(made.environment)) == (["10-12"], {})


def test_a_cpuset_may_split_a_core(tmp_path: Path) -> None:
    made = plan(node(tmp_path, cores=4, smt=2, allowed="0-3,4"))
    assert threads(made) == ["1-3"], "core 0 is left with CPU 4, which is the last and stays free"


def test_a_cpuset_of_another_node_than_the_first_is_said(tmp_path: Path) -> None:
    """By itself vLLM would look for CPUs on the first node whose memory is allowed, and find none."""
    facts = node(tmp_path, "aarch64", nodes=2, cores=4, allowed="4-7", memory_nodes="0-1")
    assert topology.automatic(topology.parse(facts)) == ()
    made = plan(facts)
    assert (made.engines[0].node, dict(made.environment)) == (1, {BIND: "4-6"})
    assert made.memory_bytes == 64 * GIB


def test_a_quota_cuts_threads_which_vllm_would_not_do(tmp_path: Path) -> None:
    made = plan(node(tmp_path, "aarch64", cores=16, quota=4))
    assert threads(made) == ["0-2"]
    assert made.environment == {RESERVED: "13"}
    assert made.notes == (
        "a control group allows 4 CPUs' worth of time on 16 CPUs, and threads are cut to that",
    )


def test_a_quota_below_one_cpu_still_leaves_a_thread_and_one_engine(tmp_path: Path) -> None:
    made = plan(node(tmp_path, nodes=2, cores=4, quota=0.5))
    assert [len(engine.threads) for engine in made.engines] == [1]


def test_a_quota_is_shared_by_the_engines(tmp_path: Path) -> None:
    made = plan(node(tmp_path, "aarch64", nodes=2, cores=16, quota=8))
    assert threads(made) == ["0-2", "16-18"]


def test_a_memory_limit_counts(tmp_path: Path) -> None:
    assert plan(node(tmp_path, memory_limit=8 * GIB)).memory_bytes == 8 * GIB


def test_no_cpu_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r"no CPU is left: 0,1,2,3 are online.*allows 8-9"):
        plan(node(tmp_path, allowed="8-9"))


def test_cpus_and_memory_of_different_nodes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="no NUMA node has both a CPU and memory"):
        plan(node(tmp_path, nodes=2, allowed="0-3", memory_nodes="1"))


# --- a person's own lists -----------------------------------------------------------------------------------


def test_own_lists_are_taken_as_they_are(tmp_path: Path) -> None:
    made = plan(node(tmp_path, "aarch64", nodes=2, cores=4), bind="0-2|5-7")
    assert dict(made.environment) == {BIND: "0-2|5-7"}
    assert [(engine.node, engine.reserved) for engine in made.engines] == [(0, 1), (1, 1)]


@pytest.mark.parametrize(
    ("bind", "said"),
    [
        ("0-3|8", r"cannot use: 8 \(not there, or not allowed\)\. It may use 0-3,5-7"),
        ("0-4", r"cannot use: 4 \(offline\)"),
        ("0-2|2-3", "gives CPU 2 to two engines"),
        ("0-1|", "has an empty list"),
        ("0-3,5", "lies on NUMA nodes 0-1"),
        ("0-2 bar 5-6", "is no list of CPUs"),
    ],
)
def test_own_lists_that_gnu_openmp_would_ignore_are_refused(tmp_path: Path, bind: str, said: str) -> None:
    """Of CPUs that it may not use it says nothing: the threads run anywhere, all of them."""
    with pytest.raises(TopologyError, match=said):
        plan(node(tmp_path, "aarch64", nodes=2, cores=4, offline=[4]), bind=bind)


def test_own_lists_for_more_engines_than_can_be_served_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="lists for 2 engines, and what serves runs 1"):
        plan(node(tmp_path, "aarch64", nodes=2), bind="0-2|4-6", most=1)


def test_auto_and_nobind_are_vllms_own(tmp_path: Path) -> None:
    facts = node(tmp_path, "aarch64", cores=96)
    assert plan(facts, bind="auto").environment == {}
    assert plan(facts, bind="auto", reserved=4).environment == {RESERVED: "4"}
    assert plan(facts, bind="nobind").environment == {BIND: "nobind"}


@pytest.mark.parametrize("bind", ["auto", "nobind"])
def test_they_place_one_engine_only(tmp_path: Path, bind: str) -> None:
    with pytest.raises(TopologyError, match="places one engine only, and this node runs 2"):
        plan(node(tmp_path, nodes=2), bind=bind)


# --- the module and the filter ------------------------------------------------------------------------------


def test_without_control_groups_the_first_process_says_what_is_allowed(tmp_path: Path) -> None:
    fake_sys.make(tmp_path, cores=4)
    for file in (tmp_path / "sys/fs/cgroup/system.slice").iterdir():
        file.unlink()
    fake_sys.write(tmp_path / "proc/1/status", "Cpus_allowed_list:\t0-1\nMems_allowed_list:\t0")
    facts = MODULE.read(tmp_path, "system.slice")
    assert (facts["allowed_cpus"], facts["allowed_memory_nodes"], facts["cpu_quota"]) == ("0-1", "0", None)


def test_the_narrowest_quota_of_all_parents_counts(tmp_path: Path) -> None:
    fake_sys.make(tmp_path, quota=3)
    fake_sys.write(tmp_path / "sys/fs/cgroup/system.slice/cpu.max", "150000 100000")
    assert MODULE.read(tmp_path, "system.slice")["cpu_quota"] == 1.5


def test_this_very_machine_can_be_read_and_planned() -> None:
    made = plan(MODULE.read(Path("/"), "system.slice"))
    assert made.engines[0].threads


def test_the_filter_gives_plain_values_and_hands_a_refusal_back(tmp_path: Path) -> None:
    cpu_plan = FILTERS["ingot_cpu_plan"]
    facts = node(tmp_path, "aarch64", cores=4)
    assert cpu_plan(facts) == {
        "refused": "",
        "engines": [{"numa_node": 0, "threads": "0-2", "reserved": 1}],
        "environment": {},
        "memory_bytes": 64 * GIB,
        "notes": [],
    }
    assert cpu_plan(facts, engines=2)["refused"].startswith("2 engines are asked for")
