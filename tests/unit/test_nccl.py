"""The network between GPUs: what is set, what is refused, which libraries go together, what a log shows."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from refusals import names

from ingot import images, nccl
from ingot.checkout import ROOT
from ingot.preflight import nccl as checks


def network(instance_type: str, nodes: int = 1, efa: int = 0) -> nccl.Network:
    return nccl.network(instance_type, nodes=nodes, efa_interfaces=efa, address="10.0.0.7", interface="ens5")


@pytest.mark.parametrize(
    ("instance_type", "within"),
    [
        ("p5.48xlarge", "nvswitch"),
        ("p4d.24xlarge", "nvswitch"),
        ("p6-b200.48xlarge", "nvswitch"),
        ("g6e.48xlarge", "pcie"),
        ("g5.12xlarge", "pcie"),
        ("g5.xlarge", "alone"),
        ("p5.4xlarge", "alone"),
        ("m7i.large", "alone"),
    ],
)
def test_on_one_node_nothing_is_set(instance_type: str, within: str) -> None:
    assert network(instance_type, efa=32) == nccl.Network(within, "nothing", {})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("instance_type", "efa", "across"),
    [
        ("p5.48xlarge", 32, "efa"),
        ("g6e.8xlarge", 1, "efa"),
        ("p5.48xlarge", 0, "tcp"),
        ("g5.xlarge", 0, "tcp"),
        ("g5.xlarge", 1, "tcp"),
    ],
)
def test_on_several_nodes_three_variables_are_set(instance_type: str, efa: int, across: str) -> None:
    found = network(instance_type, 2, efa)
    assert found.across == across
    assert found.environment == {
        "GLOO_SOCKET_IFNAME": "ens5",
        "NCCL_SOCKET_IFNAME": "^lo,docker",
        "VLLM_HOST_IP": "10.0.0.7",
    }


def test_what_is_set_is_what_the_table_says_and_harms_nobody() -> None:
    told = {one.name for one in nccl.load().variables if one.here == "set"}
    environment = network("p5.48xlarge", 2, 32).environment
    assert set(environment) == told
    node = {"ec2_instance_type": "p5.48xlarge", "serving_environment": environment}
    assert checks.check_environment({"a": node}) == []


def refused(instance_type: str, **environment: Any) -> list[str]:
    node = {"ec2_instance_type": instance_type, "serving_environment": environment}
    return names(checks.check_environment({"a": node, "b": node}))


@pytest.mark.parametrize(
    ("instance_type", "name", "value"),
    [
        ("p5.48xlarge", "NCCL_P2P_DISABLE", "1"),
        ("p4d.24xlarge", "NCCL_P2P_DISABLE", 1),
        ("g5.12xlarge", "NCCL_SHM_DISABLE", "1"),
        ("g5.xlarge", "NCCL_SOCKET_IFNAME", "eth0"),
        ("", "NCCL_SOCKET_IFNAME", "=eth0"),
        ("p5.48xlarge", "RDMAV_FORK_SAFE", "1"),
        ("p5.48xlarge", "RDMAV_HUGEPAGES_SAFE", "1"),
    ],
)
def test_a_variable_that_harms_is_refused_once(instance_type: str, name: str, value: object) -> None:
    assert refused(instance_type, **{name: value}) == ["nccl-variable-harms"]


@pytest.mark.parametrize(
    ("instance_type", "name", "value"),
    [
        ("p5.48xlarge", "NCCL_P2P_DISABLE", "0"),
        ("g5.12xlarge", "NCCL_P2P_DISABLE", "1"),  # over PCIe it is sometimes the way around a hang
        ("g5.xlarge", "NCCL_SHM_DISABLE", "1"),
        ("p5.48xlarge", "NCCL_IB_DISABLE", "1"),
        ("p5.48xlarge", "NCCL_SOCKET_IFNAME", "ens"),
        ("p5.48xlarge", "NCCL_SOCKET_IFNAME", "^lo,docker,veth"),
        ("p5.48xlarge", "NCCL_DEBUG", "INFO"),
        ("p5.48xlarge", "FI_PROVIDER", "efa"),
        ("g5.xlarge", "RDMAV_FORK_SAFE", "1"),
    ],
)
def test_what_does_no_harm_there_is_left_to_its_owner(instance_type: str, name: str, value: str) -> None:
    assert refused(instance_type, **{name: value}) == []


STACK = nccl.load().stack.model_dump()


def test_the_pinned_set_goes_together() -> None:
    assert checks.check_stack(STACK) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"efa_installer": "1.47.0"}, "what EFA installer 1.47.0 brings is not known"),
        ({"efa_installer": "1.50.0"}, "EFA installer 1.50.0 brings libfabric 2.6.0amzn1.0, not 2.4.0amzn5.0"),
        ({"libfabric": "2.4.0"}, "EFA installer 1.49.0 brings libfabric 2.4.0amzn5.0, not 2.4.0"),
        ({"aws_ofi_nccl": "1.21.1"}, "brings aws-ofi-nccl 1.20.0, not 1.21.1"),
        ({"aws_ofi_nccl": "1.5.0"}, "what aws-ofi-nccl 1.5.0 was tested with is not known"),
        ({"nccl": "2.31.2"}, "aws-ofi-nccl 1.20.0 was tested with NCCL 2.28.9, 2.29.7, 2.30.4, not 2.31.2"),
        ({"nccl": "latest"}, "nccl: String should match"),
    ],
)
def test_another_set_is_refused(change: dict[str, str], said: str) -> None:
    refusals = checks.check_stack(STACK | change)
    assert set(names(refusals)) == {"efa-stack-untested"}
    assert any(said in refusal.why for refusal in refusals)
    assert all("efa_installer 1.49.0" in refusal.do for refusal in refusals)


def test_a_newer_installer_with_torchs_nccl_is_refused() -> None:
    newer = {"efa_installer": "1.50.0", "libfabric": "2.6.0amzn1.0", "aws_ofi_nccl": "1.21.1"}
    (refusal,) = checks.check_stack(STACK | newer)
    assert "aws-ofi-nccl 1.21.1 was tested with NCCL 2.31.2, not 2.29.7" in refusal.why


@pytest.mark.parametrize(
    ("change", "name", "said"),
    [
        ({"nccl_efa_stack": STACK | {"nccl": "2.31.2"}}, "efa-stack-untested", "not 2.31.2"),
        ({"nccl_efa_installer_sha256": ""}, "efa-installer-sum", "no SHA-256 of the EFA installer 1.49.0"),
        ({"nccl_efa_installer_sha256": "latest"}, "efa-installer-sum", "'latest'"),
        (
            {
                "nccl_efa_stack": {
                    "efa_installer": "1.50.0",
                    "libfabric": "2.6.0amzn1.0",
                    "aws_ofi_nccl": "1.21.1",
                    "nccl": "2.31.2",
                }
            },
            "efa-installer-unknown",
            "no packages of EFA installer 1.50.0",
        ),
    ],
)
def test_what_the_role_could_not_install_is_refused_before_the_bake(
    change: dict[str, Any], name: str, said: str
) -> None:
    assert checks.refusals({}) == [], "the role's own defaults are judged when it comes to it"
    assert checks.refusals({"nccl_efa_stack": STACK}) == []
    (refusal,) = checks.refusals({"nccl_efa_stack": STACK} | change)
    assert refusal.name == name
    assert said in refusal.why


def test_an_image_with_the_role_is_refused_before_its_bake(tmp_path: Path) -> None:
    """Through playbooks/image.yml's own question; an image without the role is not asked."""
    table = yaml.safe_load((ROOT / "packer/images.yml").read_text())
    gpu = copy.deepcopy(table["images"]["x86"])
    gpu["roles"].insert(-1, "nccl_efa")
    (tmp_path / "packer").mkdir()
    table["images"]["gpu"] = gpu
    (tmp_path / "packer/images.yml").write_text(yaml.safe_dump(table))
    for name in ("roles", "inventories"):
        (tmp_path / name).symlink_to(ROOT / name)
    wrong = {"nccl_efa_stack": STACK | {"nccl": "2.31.2"}}
    assert names(images.refusals("gpu", wrong, tmp_path)) == ["efa-stack-untested"]
    assert names(images.refusals("x86", wrong, tmp_path)) == []
    assert names(images.refusals("gpu", {"nccl_efa_stack": STACK}, tmp_path)) == []


@pytest.mark.parametrize(
    ("instance_type", "attached", "name", "said"),
    [
        ("inf2.48xlarge", 1, "no-efa", "no size of this one"),
        ("g5.xlarge", 1, "no-efa", "g5.8xlarge"),
        ("p5.48xlarge", 0, "efa-not-attached", "security group"),
    ],
)
def test_efa_that_is_not_there_is_refused(instance_type: str, attached: int, name: str, said: str) -> None:
    (refusal,) = checks.check_efa("node a", instance_type, attached)
    assert refusal.name == name
    assert said in refusal.do


@pytest.mark.parametrize(("instance_type", "attached"), [("p5.48xlarge", 32), ("g6.8xlarge", 1), ("", 0)])
def test_efa_that_is_there_is_let_through(instance_type: str, attached: int) -> None:
    assert checks.check_efa("node a", instance_type, attached) == []


def test_the_page_shows_the_table() -> None:
    page = (ROOT / "docs/nccl.md").read_text(encoding="utf-8")
    assert nccl.documented() in page, "paste what ingot.nccl.documented() gives"
