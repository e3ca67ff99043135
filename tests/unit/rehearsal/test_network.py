"""What a region changes on its host is put back, whichever region goes last and wherever it was killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ingot.rehearsal import network
from ingot.rehearsal.config import Settings
from ingot.rehearsal.model import Machine, MachineError
from ingot.rehearsal.network import SYSCTLS, HostRegistry, Network, NetworkError

ORIGINAL = {
    "net.ipv4.ip_forward": 0,
    "fs.inotify.max_user_instances": 128,
    "fs.inotify.max_user_watches": 9999999,
}


@pytest.fixture
def sysctls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "sys"
    directory.mkdir()
    for key, value in ORIGINAL.items():
        (directory / key).write_text(f"{value}\n")
    monkeypatch.setattr(network, "_sysctl", lambda key: directory / key)
    # As on a machine that never had a namespace; and the host's own is not to be touched.
    monkeypatch.setattr(network, "NETNS_DIRECTORY", tmp_path / "netns")
    return directory


def _values(directory: Path) -> dict[str, int]:
    return {path.name: int(path.read_text()) for path in directory.iterdir()}


def test_settings_are_raised_never_lowered(sysctls: Path, tmp_path: Path) -> None:
    HostRegistry(tmp_path / "run").claim("a")
    assert _values(sysctls) == {**SYSCTLS, "fs.inotify.max_user_watches": 9999999}


def test_the_last_region_puts_them_back(sysctls: Path, tmp_path: Path) -> None:
    registry = HostRegistry(tmp_path / "run")
    assert registry.claim("a") == 0
    assert registry.claim("b") == 1
    assert registry.claim("a") == 0  # once more, after a kill
    registry.release("a")
    assert _values(sysctls)["net.ipv4.ip_forward"] == 1
    assert registry.claim("c") == 0
    registry.release("b")
    registry.release("c")
    assert _values(sysctls) == ORIGINAL
    assert not (tmp_path / "run/regions.json").exists()
    registry.release("c")  # harmless


def test_a_kill_before_they_are_written_loses_nothing(
    sysctls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = HostRegistry(tmp_path / "run")
    monkeypatch.setitem(SYSCTLS, "no.such.setting", 1)
    (sysctls / "no.such.setting").mkdir()  # neither read nor written: stands for the kill
    with pytest.raises(OSError):
        registry.claim("a")
    assert _written(tmp_path) is None
    monkeypatch.delitem(SYSCTLS, "no.such.setting")
    (sysctls / "no.such.setting").rmdir()
    registry.claim("a")
    (sysctls / "fs.inotify.max_user_instances").write_text("128")  # the kill came before this one was raised
    registry.claim("a")
    assert _values(sysctls)["fs.inotify.max_user_instances"] == SYSCTLS["fs.inotify.max_user_instances"]
    registry.release("a")
    assert _values(sysctls) == ORIGINAL


def test_an_address_outside_of_the_vpc_is_refused(tmp_path: Path) -> None:
    settings = Settings(cache=tmp_path, runtime_root=tmp_path)
    machine = Machine(
        instance_id="i-1",
        layers=(),
        architecture="x86_64",
        instance_type="t3.micro",
        private_ip="10.0.0.5",
        prefix_length=16,
        mac="02:00:00:00:00:01",
        hostname="ip-10-0-0-5",
        vcpus=1,
        memory_bytes=1,
    )
    with pytest.raises(MachineError, match=r"outside of 172\.31\.0\.0/16"):
        Network(settings).register(machine)


def test_a_failing_command_says_what_it_said() -> None:
    with pytest.raises(NetworkError, match=r"`ls /does/not/exist` failed: .*No such file"):
        network._run("ls", "/does/not/exist")


def _written(tmp_path: Path) -> object:
    path = tmp_path / "run/regions.json"
    return json.loads(path.read_text()) if path.exists() else None
