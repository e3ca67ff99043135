"""Where the engines of a node run: NUMA nodes, cores, SMT, and what the control group leaves of them.

Pure functions over what ``plugins/modules/cpu_facts.py`` reads on the node. They decide how many engines a
node gets and which CPUs their OpenMP threads are bound to, and say only what vLLM would not do by itself:
its binding variables are part of its compile cache's key (``compile_factors`` in vllm/envs.py), so a variable
that repeats vLLM's own choice would cost the cache of an image and change nothing else.

How vLLM chooses was read in 0.32.0, vllm/utils/ompmultiprocessing.py and vllm/v1/worker/cpu_worker.py: one
NUMA node for each rank, one thread for each physical core on x86 (its highest CPU) and for each CPU on Arm,
the last ones left to the scheduler, memory bound to the node of the first thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ingot import sizing

BIND = "VLLM_CPU_OMP_THREADS_BIND"
RESERVED = "VLLM_CPU_NUM_OF_RESERVED_CPU"
COMPUTED = "computed"

#: Architectures on which vLLM binds to one CPU of each physical core; it uses every CPU on the others.
SMT_ARCHITECTURES = frozenset({"x86_64", "i686"})

#: What vLLM keeps free of an engine by itself: a core for the scheduler, which spins while requests run.
VLLM_RESERVED = 1


class TopologyError(ValueError):
    """What is asked for does not go with the node. The message says what to do."""


@dataclass(frozen=True)
class NumaNode:
    """What may be used of a NUMA node: its physical cores, each with its CPUs in ascending order."""

    id: int
    cores: tuple[tuple[int, ...], ...]
    memory_bytes: int

    @property
    def cpus(self) -> frozenset[int]:
        return frozenset(cpu for core in self.cores for cpu in core)


@dataclass(frozen=True)
class Topology:
    """What a process of the node may use."""

    architecture: str
    nodes: tuple[NumaNode, ...]
    memory_nodes: tuple[int, ...]
    memory_bytes: int
    quota: float | None = None  # CPUs' worth of time, where a control group limits that
    offline: tuple[int, ...] = ()

    @property
    def cpus(self) -> frozenset[int]:
        return frozenset().union(*(node.cpus for node in self.nodes))

    def selected(self, node: NumaNode) -> tuple[int, ...]:
        """The CPUs of a node that get a thread, in the order in which vLLM takes them."""
        if self.architecture in SMT_ARCHITECTURES:
            return tuple(sorted(core[-1] for core in node.cores))
        return tuple(sorted(node.cpus))


@dataclass(frozen=True)
class Engine:
    """One engine: the NUMA node that it stays on, and the CPUs of its threads."""

    node: int
    threads: tuple[int, ...]
    reserved: int


@dataclass(frozen=True)
class Plan:
    """What a node runs, and what has to be said to vLLM for it."""

    engines: tuple[Engine, ...]
    environment: Mapping[str, str]
    memory_bytes: int  # that the engines can use: vLLM binds each to its node's memory
    notes: tuple[str, ...] = ()


# --- lists of CPUs ------------------------------------------------------------------------------------------


def parse_list(text: str) -> tuple[int, ...]:
    """Read the kernel's list format, such as ``0-3,8``.

    Raises:
        TopologyError: it is not one.
    """
    found: set[int] = set()
    for part in text.strip().split(","):
        if not part.strip():
            continue
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or (dash and int(last) < int(first)):
            raise TopologyError(f"{text.strip()!r} is no list of CPUs: write it like 0-3,8")
        found.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(found))


def format_list(cpus: Iterable[int]) -> str:
    """Write the kernel's list format."""
    parts: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if parts and parts[-1][1] == cpu - 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


# --- the node -----------------------------------------------------------------------------------------------


def parse(facts: Mapping[str, Any]) -> Topology:
    """Make a topology of what the module ``cpu_facts`` read.

    Raises:
        TopologyError: nothing is left that could run an engine.
    """
    present = parse_list(facts["present"])
    online = parse_list(facts["online"])
    usable = set(online) & set(parse_list(facts["allowed_cpus"]))
    if not usable:
        raise TopologyError(
            f"no CPU is left: {facts['online'] or 'none'} are online, and the control group allows"
            f" {facts['allowed_cpus'] or 'none'}. Correct AllowedCPUs= of the slice, or bring CPUs online"
        )
    cores = _cores(facts["cores"], usable)
    # A kernel without NUMA has no such directory; lscpu then says node 0, and so does vLLM.
    described = facts["nodes"] or [
        {"id": 0, "cpus": facts["online"], "memory_bytes": facts["memory_bytes"]},
    ]
    nodes = []
    for node in sorted(described, key=lambda node: int(node["id"])):
        own = set(parse_list(node["cpus"]))
        nodes.append(
            NumaNode(
                int(node["id"]),
                tuple(kept for core in cores if (kept := tuple(cpu for cpu in core if cpu in own))),
                int(node["memory_bytes"]),
            )
        )
    memory_nodes = parse_list(facts["allowed_memory_nodes"]) if facts["nodes"] else (0,)
    limits = [int(facts["memory_bytes"]), facts.get("memory_limit_bytes")]
    quota = facts.get("cpu_quota")
    return Topology(
        architecture=facts["architecture"],
        nodes=tuple(nodes),
        memory_nodes=memory_nodes,
        memory_bytes=min(limit for limit in limits if limit),
        quota=None if quota is None else float(quota),
        offline=tuple(sorted(set(present) - set(online))),
    )


def _cores(siblings: Iterable[str], usable: set[int]) -> list[tuple[int, ...]]:
    """The physical cores, by the CPUs of each that may be used; a CPU without an entry is its own core."""
    cores = {tuple(cpu for cpu in parse_list(text) if cpu in usable) for text in siblings}
    cores.discard(())
    known = {cpu for core in cores for cpu in core}
    return sorted([*cores, *((cpu,) for cpu in usable - known)])


def automatic(topology: Topology, reserved: int = VLLM_RESERVED) -> tuple[int, ...]:
    """The CPUs that vLLM binds the threads of a single engine to when nothing is set but the reserve."""
    first = topology.memory_nodes[0] if topology.memory_nodes else 0
    node = next((node for node in topology.nodes if node.id == first), None)
    selected = topology.selected(node) if node else ()
    return selected[:-reserved] if 0 < reserved < len(selected) else selected


# --- the plan -----------------------------------------------------------------------------------------------


def plan(
    facts: Mapping[str, Any],
    *,
    engines: int = 0,
    most: int = 0,
    reserved: int = 0,
    bind: str = COMPUTED,
) -> Plan:
    """Decide how many engines a node runs, and where.

    An engine reads its weights once for each token, so memory bandwidth is what it lives on, and vLLM binds
    its memory to one NUMA node: a node without an engine is idle. So each gets one, unless fewer are wanted.

    Args:
        facts: what the module ``cpu_facts`` returned.
        engines: how many; 0 is one for each NUMA node.
        most: as many as what serves can run, 0 any number.
        reserved: cores that each engine leaves free; 0 is what ``ingot.sizing`` says.
        bind: ``computed``; ``auto`` or ``nobind``, which vLLM is told as it is; or lists of CPUs such as
            ``0-3|4-7``, one for each engine, which are checked.

    Raises:
        TopologyError: it does not go with the node.
    """
    topology = parse(facts)
    able = [node for node in topology.nodes if node.cores and node.id in topology.memory_nodes]
    able = [node for node in able if node.memory_bytes > 0]
    if not able:
        raise TopologyError(
            f"no NUMA node has both a CPU and memory that may be used (CPUs {format_list(topology.cpus)},"
            f" memory of nodes {format_list(topology.memory_nodes)}). Correct AllowedCPUs= and"
            " AllowedMemoryNodes= of the slice"
        )
    if bind not in (COMPUTED, "auto", "nobind"):
        return _given(topology, able, bind, most)
    if engines > len(able):
        raise TopologyError(
            f"{engines} engines are asked for, and {len(able)} NUMA node(s) can run one: two on one node"
            f" would share its memory bandwidth. Set cpu_tuning_engines to at most {len(able)}, or 0 for one"
            " on each"
        )
    count = engines or len(able)
    if most:
        count = min(count, most)
    if topology.quota is not None:
        count = min(count, max(1, int(topology.quota)))
    # The largest first, so that a single engine gets the most; in vLLM's order where they are equal.
    chosen = sorted(able, key=lambda node: -len(node.cores))[:count]
    chosen.sort(key=lambda node: node.id)
    placed = tuple(_engine(topology, node, reserved, count) for node in chosen)
    if bind != COMPUTED and count > 1:
        raise TopologyError(
            f"{bind!r} places one engine only, and this node runs {count}. Set cpu_tuning_threads_bind to"
            " computed, or cpu_tuning_engines to 1"
        )
    if bind == "auto":
        kept = reserved or VLLM_RESERVED
        placed = (Engine(placed[0].node, automatic(topology, kept), kept),)
        environment = {RESERVED: str(kept)} if kept != VLLM_RESERVED else {}
    elif bind == "nobind":
        placed = (Engine(placed[0].node, tuple(sorted(topology.cpus)), 0),)
        environment = {BIND: bind}
    else:
        environment = _environment(topology, placed)
    return Plan(placed, environment, _memory(topology, chosen), _notes(topology, able, chosen))


def _engine(topology: Topology, node: NumaNode, reserved: int, count: int) -> Engine:
    """The threads of the engine on one node."""
    selected = topology.selected(node)
    if topology.quota is not None:
        # Threads that are stopped in turn keep each other waiting at barriers: no more than there is time.
        selected = selected[: max(1, int(topology.quota) // count)]
    # Under a quota the scheduler's spinning would be taken from the threads' time.
    few = topology.quota is None and len(selected) <= sizing.CORES_WITHOUT_RESERVE
    wanted = reserved or (0 if few else max(VLLM_RESERVED, sizing.engine_cpus(len(node.cpus))[1]))
    left = min(wanted, len(selected) - 1)
    return Engine(node.id, selected[: len(selected) - left], left)


def _environment(topology: Topology, engines: Sequence[Engine]) -> dict[str, str]:
    """The least that has to be said to vLLM: nothing, how many to reserve, or the CPUs themselves."""
    if len(engines) == 1:
        threads = engines[0].threads
        if threads == automatic(topology):
            return {}
        reserved = len(automatic(topology, 0)) - len(threads)
        if threads == automatic(topology, reserved):
            return {RESERVED: str(reserved)}
    return {BIND: "|".join(format_list(engine.threads) for engine in engines)}


def _given(topology: Topology, able: Sequence[NumaNode], bind: str, most: int) -> Plan:
    """A person's own lists. GNU OpenMP ignores CPUs that it may not use, and binds to none without a word."""
    lists = [parse_list(part) for part in bind.split("|")]
    if not all(lists):
        raise TopologyError(f"cpu_tuning_threads_bind {bind!r} has an empty list of CPUs")
    if most and len(lists) > most:
        raise TopologyError(
            f"cpu_tuning_threads_bind {bind!r} has lists for {len(lists)} engines, and what serves runs"
            f" {most} on a node"
        )
    taken: set[int] = set()
    for cpus in lists:
        if strange := set(cpus) - topology.cpus:
            why = "offline" if strange & set(topology.offline) else "not there, or not allowed"
            raise TopologyError(
                f"cpu_tuning_threads_bind {bind!r} names CPUs that an engine of this node cannot use:"
                f" {format_list(strange)} ({why}). It may use {format_list(topology.cpus)}"
            )
        if twice := taken & set(cpus):
            raise TopologyError(
                f"cpu_tuning_threads_bind {bind!r} gives CPU {format_list(twice)} to two engines"
            )
        taken |= set(cpus)
    engines = []
    for cpus in lists:
        homes = [node for node in able if node.cpus & set(cpus)]
        if len(homes) != 1:
            raise TopologyError(
                f"cpu_tuning_threads_bind: {format_list(cpus)} lies on NUMA nodes"
                f" {format_list(node.id for node in homes)}, and vLLM binds an engine's memory to one. Give"
                " one list for each node, separated by |"
            )
        engines.append(Engine(homes[0].id, cpus, len(topology.selected(homes[0])) - len(cpus)))
    used = {engine.node for engine in engines}
    chosen = [node for node in able if node.id in used]
    return Plan(
        tuple(replace(engine, reserved=max(0, engine.reserved)) for engine in engines),
        {BIND: bind},
        _memory(topology, chosen),
        _notes(topology, able, chosen),
    )


def _memory(topology: Topology, chosen: Sequence[NumaNode]) -> int:
    if len(chosen) == len(topology.nodes):
        return topology.memory_bytes  # a node's figure leaves out what the kernel took at boot
    return min(topology.memory_bytes, sum(node.memory_bytes for node in chosen))


def _notes(topology: Topology, able: Sequence[NumaNode], chosen: Sequence[NumaNode]) -> tuple[str, ...]:
    """What a person should know, since half a machine may stand idle."""
    notes = [
        f"NUMA node {node.id} ({len(node.cores)} cores) has no engine and is idle: serving_mode vllm runs one"
        " on each node, and two smaller instances cost what one large one does"
        for node in able
        if node not in chosen
    ]
    if topology.quota is not None and topology.quota < len(topology.cpus):
        notes.append(
            f"a control group allows {topology.quota:g} CPUs' worth of time on {len(topology.cpus)} CPUs, and"
            " threads are cut to that"
        )
    if topology.offline:
        notes.append(f"CPUs {format_list(topology.offline)} are offline")
    return tuple(notes)


def as_dict(plan: Plan) -> dict[str, Any]:
    """Plain values, for Ansible."""
    return {
        "engines": [
            {"numa_node": engine.node, "threads": format_list(engine.threads), "reserved": engine.reserved}
            for engine in plan.engines
        ],
        "environment": dict(plan.environment),
        "memory_bytes": plan.memory_bytes,
        "notes": list(plan.notes),
    }
