"""What a node says of itself, and what of that is refused."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import CATALOG, MODEL, names

from ingot import sizing
from ingot.checkout import ROOT
from ingot.preflight import node as node_checks

PROBE = f"""machine x86_64
cores 4
python 3.13.5
memory {8 * sizing.GIB}
disk {20 * sizing.GIB}
path /opt/ingot/models/{MODEL}
path /opt/ingot/venvs/vllm
port 8000 python3 vllm.service
port 6379 gcs_server ray-head.service
"""
PORTS = {"8000": "serving", "8080": "gateway", "6379": "ray"}
VARIABLES = {
    "serving_mode": "ray_serve",
    "serving_model_id": MODEL,
    "group_names": ["ray_head", "x86"],
    "model_store_catalog": CATALOG,
}


def node(probe: str, **variables: Any) -> list[str]:
    return names(node_checks.refusals(probe, "a", {**VARIABLES, **variables}, PORTS, (3, 8), "2.19.14"))


def test_a_good_node_is_let_through_also_when_its_own_units_hold_the_ports() -> None:
    assert node(PROBE) == []


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda text: text.replace("machine x86_64", "machine aarch64"), "architecture-differs"),
        (lambda text: text.replace("python 3.13.5", "python "), "no-python"),
        (lambda text: text.replace("python 3.13.5", "python 3.7.3"), "python-too-old"),
        (
            lambda text: text.replace(f"memory {8 * sizing.GIB}", f"memory {2 * sizing.GIB}"),
            "model-does-not-fit",
        ),
        (lambda text: text.replace(f"disk {20 * sizing.GIB}", f"disk {sizing.GIB // 2}"), "disk-too-small"),
        (lambda text: text + "port 8080 nginx nginx.service\n", "port-taken"),
        (lambda text: text + "port 8080 python3 session-1.scope\nport 22 sshd ssh.service\n", "port-taken"),
    ],
)
def test_a_bad_node_is_refused(change: Callable[[str], str], name: str) -> None:
    assert node(change(PROBE)) == [name]


@pytest.mark.parametrize(
    ("kind", "probe", "name"),
    [
        ("m7i.xlarge", PROBE + "efa 0\n", ["no-efa"]),
        ("g6.8xlarge", PROBE + "efa 0\n", ["efa-not-attached"]),
        ("g6.8xlarge", PROBE, ["efa-not-attached"]),
        ("g6.8xlarge", PROBE + "efa 1\n", []),
    ],
)
def test_an_engine_over_several_nodes_needs_efa_on_each(kind: str, probe: str, name: list[str]) -> None:
    """Also on a GPU's node; that its image is for CPUs is another matter."""

    def refused(nodes: int) -> list[str]:
        found = node(probe, ec2_instance_type=kind, nccl_efa_engine_nodes=nodes)
        return [one for one in found if "efa" in one]

    assert refused(2) == name
    assert refused(1) == []


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        ("0::/system.slice/haproxy.service\n", "haproxy.service"),
        (
            "9:name=systemd:/\n4:memory:/\n0::/system.slice/system-x.slice/haproxy.service\n",
            "haproxy.service",
        ),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", "session-3.scope"),
        ("0::/\n", ""),
    ],
)
def test_the_probe_names_who_listens(tmp_path: Path, cgroup: str, unit: str) -> None:
    stub = tmp_path / "bin/ss"
    stub.parent.mkdir()
    listener = 'LISTEN 0 128 0.0.0.0:8080 0.0.0.0:* users:(("haproxy",pid=812,fd=7),("haproxy",pid=812,fd=8))'
    stub.write_text(
        f"#!/bin/sh\n[ \"$3\" = 'sport = :8080' ] || [ \"$2\" = 'sport = :8080' ] && echo '{listener}'\n"
    )
    stub.chmod(0o755)
    (tmp_path / "proc/812").mkdir(parents=True)
    (tmp_path / "proc/812/cgroup").write_text(cgroup)
    script = (ROOT / "playbooks/files/probe.sh").read_text()
    said = subprocess.run(
        ["sh", "-c", f"PORTS='8000 8080'\nPATHS='/etc /none'\n{script}"],
        env={**os.environ, "PATH": f"{stub.parent}:{os.environ['PATH']}", "PROC": str(tmp_path / "proc")},
        capture_output=True,
        text=True,
        check=True,
    )
    answer = node_checks.parse_probe(said.stdout)
    assert answer["ports"] == [{"port": "8080", "process": "haproxy", "unit": unit}]
    assert answer["paths"] == ["/etc"]
    assert answer["machine"] in ("x86_64", "aarch64")
    assert int(answer["memory"]) > 1 << 20
    assert int(answer["disk"]) > 1 << 20
    assert answer["python"]


def test_weights_and_venv_that_are_not_there_yet_need_room() -> None:
    bare = PROBE.replace(f"path /opt/ingot/models/{MODEL}\n", "").replace("path /opt/ingot/venvs/vllm\n", "")
    assert node(bare) == []
    assert node(bare.replace(f"disk {20 * sizing.GIB}", f"disk {4 * sizing.GIB}")) == ["disk-too-small"]


@pytest.mark.parametrize(
    ("found", "name"), [("", "no-python"), ("3.6.8", "python-too-old"), ("2.7.18", "python-too-old")]
)
def test_a_python_that_ansible_cannot_use_is_refused(found: str, name: str) -> None:
    assert names(node_checks.check_python("a", found, (3, 8), "2.19.14")) == [name]


def test_a_newer_python_is_let_through() -> None:
    assert node_checks.check_python("a", "3.13.5", (3, 8), "2.19.14") == []


def test_a_node_whose_accelerator_the_image_would_leave_idle_is_refused() -> None:
    """Somebody may have launched it without launch.yml."""
    assert node(PROBE, ec2_instance_type="g5.xlarge") == ["accelerator-unused"]
    assert node(PROBE, ec2_instance_type="m7i.large") == []


def test_a_node_of_an_image_for_another_core_is_refused() -> None:
    """Somebody may have launched it without launch.yml."""
    probe = PROBE.replace("machine x86_64", "machine aarch64")

    def of(kind: str) -> list[str]:
        groups = ["ray_head", "graviton", "graviton4"]
        return node(probe, group_names=groups, ec2_instance_type=kind)

    assert of("c7g.2xlarge") == ["wrong-core"]
    assert of("c8g.2xlarge") == []
