"""Role nccl_efa: one set of libraries, held, found by the loader; and what NCCL needs on this node."""

from __future__ import annotations

import json

import pytest
from testinfra.host import Host

NODE = "python3 -I /usr/lib/ingot/efa/efa_node.py"
CONFIG = "/usr/lib/ingot/efa/stack.json"


@pytest.mark.install
def test_every_package_is_of_the_set_and_held(host: Host) -> None:
    wanted = json.loads(host.file(CONFIG).content_string)["packages"]
    assert wanted
    held = set(host.check_output("apt-mark showhold").split())
    for name, version in wanted.items():
        assert host.package(name).version == version
        assert name in held


@pytest.mark.install
def test_an_upgrade_takes_none_of_it(host: Host) -> None:
    wanted = json.loads(host.file(CONFIG).content_string)["packages"]
    moved = host.check_output("apt-get --simulate full-upgrade")
    for name in wanted:
        assert f"Inst {name} " not in moved


@pytest.mark.install
def test_the_loader_finds_libfabric_and_the_plugin(host: Host) -> None:
    found = host.check_output("/sbin/ldconfig -p")
    assert "libfabric.so.1 (libc6,x86-64) => /opt/amazon/efa/lib/libfabric.so.1" in found
    assert "libnccl-net.so (libc6,x86-64) => /opt/amazon/ofi-nccl/lib/libnccl-net.so" in found


@pytest.mark.install
def test_the_archive_is_gone(host: Host) -> None:
    assert not host.file("/var/tmp/ingot-efa").exists


@pytest.mark.configure
def test_the_nodes_own_check_passes_and_the_manifest_has_it(host: Host) -> None:
    kernels = "" if host.run("systemd-detect-virt --container --quiet").rc == 0 else " --kernels"
    facts = json.loads(host.check_output(f"{NODE} check {CONFIG}{kernels}"))
    assert facts == json.loads(host.file("/usr/share/ingot/facts.d/nccl_efa.json").content_string)


@pytest.mark.configure
@pytest.mark.parametrize("unit", ["vllm", "ray-head", "ray-worker"])
def test_units_may_lock_memory_and_on_one_node_get_no_variable(host: Host, unit: str) -> None:
    drop_in = host.file(f"/etc/systemd/system/{unit}.service.d/60-nccl.conf").content_string.splitlines()
    assert "LimitMEMLOCK=infinity" in drop_in
    if json.loads(host.file("/etc/ingot/nccl.json").content_string)["engine_nodes"] == 1:
        assert not any(line.startswith("Environment") for line in drop_in)
