"""What the role nccl_efa finds out on a node, each defect planted; and the stub that it is tried with."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from program import load
from role_templates import render

from ingot.checkout import ROOT
from ingot.driver import machine

node = load(ROOT / "roles/nccl_efa/files/efa_node.py")
STUBS = ROOT / "tests/stubs/efa"
SHAPE = {"layers": 30, "kv_heads": 3, "head_dim": 64, "max_model_len": 8192, "weight_bytes": 269060552}
TABLE: dict[str, Any] = yaml.safe_load((ROOT / "files/nccl.yml").read_text())
PACKAGES: dict[str, str] = TABLE["installers"][TABLE["stack"]["efa_installer"]]["packages"]

# --- libraries, modules ---------------------------------------------------------------------------

CACHE = """\
700 libs found in cache `/etc/ld.so.cache'
\tlibnccl-net.so (libc6,x86-64) => /opt/amazon/ofi-nccl/lib/libnccl-net.so
\tlibfabric.so.1 (libc6,x86-64) => /opt/amazon/efa/lib/libfabric.so.1
"""
VERSION = "/opt/amazon/efa/bin/fi_info: 2.4.0amzn5.0\nlibfabric: 2.4.0amzn5.0\nlibfabric api: 2.4\n"


def test_a_whole_set_passes() -> None:
    assert node.library_problems(CACHE, VERSION, "2.4.0amzn5.0") == []


@pytest.mark.parametrize(
    ("cache", "version", "problem"),
    [
        (CACHE.replace("libnccl-net.so ", "libnccl-net-ofi.so "), VERSION, "does not find libnccl-net.so"),
        (CACHE.replace("libfabric.so.1 ", "libfabric.so.2 "), VERSION, "does not find libfabric.so.1"),
        (
            CACHE,
            VERSION.replace("libfabric: 2.4.0amzn5.0", "libfabric: 1.17.0"),
            "fi_info is of libfabric 1.17.0",
        ),
        (CACHE, "", "fi_info is of libfabric (there is none)"),
    ],
)
def test_a_library_that_nccl_would_not_find_is_named(cache: str, version: str, problem: str) -> None:
    (found,) = node.library_problems(cache, version, "2.4.0amzn5.0")
    assert problem in found


def test_another_nccl_in_the_environment_is_named(tmp_path: Path) -> None:
    assert node.nccl_problems(tmp_path, "2.29.7") == [], "before there is one"
    packages = tmp_path / "lib/python3.13/site-packages"
    (packages / "nvidia_nccl_cu13-2.29.7.dist-info").mkdir(parents=True)
    assert node.nccl_problems(tmp_path, "2.29.7") == []
    (found,) = node.nccl_problems(tmp_path, "2.30.4")
    assert "has NCCL 2.29.7, and the set 2.30.4" in found


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ("3.1.0", ""),
        ("3.1.0g", ""),
        ("2.17.2g", "kernel 6.14.0-aws would load the EFA driver 2.17.2g, and the set has 3.1.0"),
        ("", "would load the EFA driver of its own, or none"),
    ],
)
def test_a_kernel_with_another_driver_is_named(
    monkeypatch: pytest.MonkeyPatch, version: str, problem: str
) -> None:
    monkeypatch.setattr(machine, "output", lambda _argv: f"{version}\n")
    found = node.module_problems(["6.14.0-aws"], "3.1.0")
    assert len(found) == bool(problem)
    assert problem in "".join(found)


def test_a_machine_without_a_kernel_is_named() -> None:
    (found,) = node.module_problems([], "3.1.0")
    assert "there is no kernel in" in found


# --- interfaces ---------------------------------------------------------------------------------------------


def pci(sys_root: Path, slot: str, vendor: str, device: str) -> Path:
    place = sys_root / "bus/pci/devices" / slot
    place.mkdir(parents=True)
    (place / "vendor").write_text(f"{vendor}\n")
    (place / "device").write_text(f"{device}\n")
    return place


@pytest.fixture
def sys_root(tmp_path: Path) -> Path:
    """A p4d with two of its interfaces, of which the driver has one; beside them ENA, NVMe and a GPU."""
    pci(tmp_path, "0000:00:05.0", "0x1d0f", "0xec20")
    pci(tmp_path, "0000:00:04.0", "0x1d0f", "0x8061")
    pci(tmp_path, "0000:10:1c.0", "0x10de", "0x20b0")
    for bus in (10, 20):
        pci(tmp_path, f"0000:{bus}:1b.0", "0x1d0f", "0xefa1")
    driver = tmp_path / "bus/pci/drivers/efa"
    driver.mkdir(parents=True)
    (tmp_path / "bus/pci/devices/0000:10:1b.0/driver").symlink_to(driver)
    verbs = tmp_path / "class/infiniband/rdmap16s27"
    verbs.mkdir(parents=True)
    (verbs / "device").symlink_to(tmp_path / "bus/pci/devices/0000:10:1b.0")
    other = tmp_path / "class/infiniband/mlx5_0/device"
    other.mkdir(parents=True)
    return tmp_path


def test_interfaces_are_counted_on_the_bus_and_by_their_driver(sys_root: Path) -> None:
    assert node.interfaces(sys_root) == 2
    assert node.driven(sys_root) == ["rdmap16s27"]


def probe(sys_root: Path) -> list[str]:
    """What playbooks/files/probe.sh says of it, before there is any Python."""
    script = ROOT / "playbooks/files/probe.sh"
    answer = subprocess.run(
        ["sh", str(script)],
        env={"SYS": str(sys_root), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    return [line for line in answer.stdout.splitlines() if line.startswith("efa ")]


def test_the_preflights_probe_counts_alike(sys_root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert probe(sys_root) == ["efa 2"]
    assert probe(tmp_path_factory.mktemp("sys")) == ["efa 0"]


SAID = """\
provider: efa
    fabric: efa-direct
    domain: rdmap16s27-rdm
    version: 204.0
    type: FI_EP_RDM
    protocol: FI_PROTO_EFA
provider: efa
    fabric: efa
    domain: rdmap16s27-rdm
    version: 204.0
provider: tcp
    fabric: 172.31.0.0/20
    domain: ens5
provider: efa
    fabric: efa
    domain: rdmap32s27-rdm
"""


@pytest.mark.parametrize(
    ("said", "domains"),
    [(SAID, ["rdmap16s27-rdm", "rdmap32s27-rdm"]), ("", []), ("fi_getinfo: -61 (No data available)\n", [])],
)
def test_each_interface_counts_once_and_other_providers_do_not(said: str, domains: list[str]) -> None:
    assert node.domains(said) == domains


def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "stack.json"
    wanted = {"stack": TABLE["stack"], "packages": PACKAGES, "driver": "3.1.0", "venv": str(tmp_path)}
    config.write_text(json.dumps(wanted))
    assert node.main(["check", str(config)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: EFA installer 1.49.0: package libfabric1-aws is not installed")
    assert said.count("\n") == 1


# --- what the role writes -----------------------------------------------------------------------------------


def environment(instance_type: str, nodes: int, interfaces: int) -> list[str]:
    """The variables of a unit's drop-in."""
    asked = {"stdout": json.dumps({"interfaces": interfaces, "driven": [], "domains": []})}
    text = render(
        "nccl_efa",
        "nccl.conf.j2",
        {
            "nccl_efa_instance_type": instance_type,
            "nccl_efa_engine_nodes": nodes,
            "nccl_efa_node_address": "10.0.0.7",
            "nccl_efa_node_interface": "ens32",
            "__nccl_efa_asked": asked,
        },
    )
    assert "LimitMEMLOCK=infinity" in text.splitlines()
    return [line.partition("=")[2] for line in text.splitlines() if line.startswith("Environment=")]


def test_on_one_node_the_units_get_no_variable() -> None:
    assert environment("p5.48xlarge", 1, 32) == []
    assert environment("", 1, 0) == []


def test_on_several_they_get_those_of_the_table() -> None:
    assert environment("p5.48xlarge", 2, 32) == [
        "GLOO_SOCKET_IFNAME=ens32",
        "'NCCL_SOCKET_IFNAME=^lo,docker'",
        "VLLM_HOST_IP=10.0.0.7",
    ]


def test_it_wins_over_what_is_computed_for_one_node_and_loses_against_the_users_files() -> None:
    """Drop-ins are read in the order of their names; and files win over variables, wherever they stand."""
    computed = (ROOT / "roles/serving/tasks/settings.yml").read_text()
    ours = (ROOT / "roles/nccl_efa/tasks/network.yml").read_text()
    assert "50-sizing.conf" in computed
    assert "60-nccl.conf" in ours
    loopback = render("serving", "sizing.conf.j2", {"serving_mode": "vllm", "serving_model_shape": SHAPE})
    assert "Environment=VLLM_HOST_IP=127.0.0.1" in loopback.splitlines()
    assert "EnvironmentFile=/etc/ingot/serving.env" in loopback.splitlines()
    assert "EnvironmentFile" not in (ROOT / "roles/nccl_efa/templates/nccl.conf.j2").read_text()


# --- the stub -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive, and what is in it."""
    place = tmp_path_factory.mktemp("stub")
    subprocess.run([sys.executable, str(STUBS / "stub_installer.py"), "DEBIAN13", str(place)], check=True)
    archive = place / "aws-efa-installer-1.49.0.tar.gz"
    subprocess.run(["tar", "--extract", f"--file={archive}", f"--directory={place}"], check=True)
    return place


def test_the_stub_has_the_archives_layout_and_a_sum(stub: Path) -> None:
    archive = stub / "aws-efa-installer-1.49.0.tar.gz"
    assert (stub / "sha256").read_text() == hashlib.sha256(archive.read_bytes()).hexdigest()
    top = stub / "aws-efa-installer"
    names = {str(path.relative_to(top)) for path in top.rglob("*") if path.is_file()}
    assert {"efa_installer.sh", "env.sh", "package_list.txt"} <= names
    for name, version in PACKAGES.items():
        assert any(entry.endswith(f"/{name}_{version}_amd64.deb") for entry in names), name
    assert "DEBS/DEBIAN13/x86_64/efa-driver/efa_3.1.0-1_amd64.deb" in names


def test_the_stub_calls_itself_one() -> None:
    for name in ("stub_installer.py", "efa_installer.sh", "fi_info"):
        assert "Stub: " in (STUBS / name).read_text(), name


def test_a_stub_without_packages_for_the_system_ends_as_the_vendors(stub: Path, tmp_path: Path) -> None:
    (tmp_path / "env.sh").write_bytes((stub / "aws-efa-installer/env.sh").read_bytes())
    installer = stub / "aws-efa-installer/efa_installer.sh"
    ended = subprocess.run(
        [str(installer), "--yes"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr == "Unsupported operating system.\n"
