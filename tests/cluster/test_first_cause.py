"""What does not start is explained by its first cause: by site.yml, and by `ingot doctor` on the node.

Each defect is planted on a cluster that is stopped, as after a boot. The playbook must name node and
cause, and leave no unit behind that is restarted again and again.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from live_cluster import LiveCluster

MODELS = "/opt/ingot/models/HuggingFaceTB"
LIBRARY = "/usr/lib/x86_64-linux-gnu/libnuma.so.1.0.0"
TOKEN = "/etc/ingot/credentials/ray-token"
DROPIN = "/etc/systemd/system/ray-head.service.d/90-planted.conf"


@contextmanager
def done(cluster: LiveCluster, node: Any, do: str, undo: str) -> Iterator[Any]:
    """A command was run on the node, and is undone at the end."""
    cluster.root(node, do)
    try:
        yield node
    finally:
        cluster.root(node, undo)


def library_missing(cluster: LiveCluster) -> AbstractContextManager[Any]:
    kept = "/root/kept"
    node = cluster.workers[0]
    return done(cluster, node, f"mv {LIBRARY} {kept} && ldconfig", f"mv {kept} {LIBRARY} && ldconfig")


def model_unreadable(cluster: LiveCluster) -> AbstractContextManager[Any]:
    return done(cluster, cluster.workers[1], f"chmod 0700 {MODELS}", f"chmod 0755 {MODELS}")


@contextmanager
def memory_too_small(cluster: LiveCluster) -> Iterator[Any]:
    node = cluster.workers[0]
    # Writes to each page of what is free, but for the last GiB.
    program = """
import re, time
from pathlib import Path
free = int(re.search(r"MemAvailable: +([0-9]+)", Path("/proc/meminfo").read_text())[1]) << 10
hog = bytearray(b"x") * (free - (1 << 30))
Path("/run/hog").touch()
time.sleep(900)
"""
    gone = "rm -f /run/hog"
    with done(cluster, node, gone, gone), stranger(cluster, node, program, "test -e /run/hog"):
        yield node


@contextmanager
def port_taken(cluster: LiveCluster) -> Iterator[Any]:
    node = cluster.workers[1]
    program = """
from http.server import HTTPServer, SimpleHTTPRequestHandler
HTTPServer(("0.0.0.0", 8000), SimpleHTTPRequestHandler).serve_forever()
"""
    with stranger(cluster, node, program, "ss -Hltn sport = :8000 | grep -q LISTEN"):
        yield node


@contextmanager
def wrong_token(cluster: LiveCluster) -> Iterator[Any]:
    """The head runs with a token of its own, which site.yml does not know of."""
    plant = (
        f"install -m 0600 /dev/null {TOKEN}.other && echo token-of-another-cluster-0123 > {TOKEN}.other && "
        f"mkdir -p $(dirname {DROPIN}) && "
        f"printf '[Service]\\nLoadCredential=\\nLoadCredential=ray-token:{TOKEN}.other\\n' > {DROPIN} && "
        "systemctl daemon-reload"
    )
    with done(cluster, cluster.heads[0], plant, f"rm -r {TOKEN}.other {DROPIN} && systemctl daemon-reload"):
        yield cluster.workers[0]


@contextmanager
def stranger(cluster: LiveCluster, node: Any, program: str, ready: str) -> Iterator[None]:
    """A Python program that is not ours runs on the node, from the moment that ``ready`` succeeds there."""
    cluster.root(node, f"systemd-run --unit stranger python3 -c {shlex.quote(program)}")
    try:
        cluster.root(node, f"timeout 60 sh -c 'until {ready}; do sleep 0.2; done'")
        yield
    finally:
        cluster.root(node, "systemctl stop stranger; systemctl reset-failed stranger", may_fail=True)


# By name: how to plant it, and the words that tell a person what it is.
PLANTS: dict[str, tuple[Callable[[LiveCluster], AbstractContextManager[Any]], str]] = {
    "library missing": (library_missing, "libnuma.so.1"),
    "model unreadable": (model_unreadable, f"may not read {MODELS}"),
    "memory too small": (memory_too_small, "GiB are available"),
    "port taken": (port_taken, "8000"),
    "wrong token": (wrong_token, "does not accept this node's Ray token"),
}


@pytest.mark.parametrize("name", PLANTS)
def test_playbook_and_doctor_name_the_first_cause(cluster: LiveCluster, name: str) -> None:
    plant, cause = PLANTS[name]
    cluster.stop()
    with plant(cluster) as node:
        ran = cluster.site()
        print(f"{name}: site.yml ended after {ran.seconds:.0f} s")
        assert ran.status != 0
        flat = " ".join(ran.output.split())
        assert cause in flat
        host = node["InstanceId"]
        assert host in ran.output, "the node is not named"

        doctor = cluster.root(node, "ingot doctor", may_fail=True)
        assert cause in " ".join(doctor.split()), doctor

        for other in cluster.nodes:
            restarts = cluster.root(
                other, "systemctl show --value -p NRestarts ray-head ray-worker ingot-serve vllm"
            )
            assert set(restarts.split()) <= {"0"}, f"units were restarted: {restarts}"
