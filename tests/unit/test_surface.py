"""What an image exposes: each kind of exposure is planted in a made-up tree and found by name."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from program import load

FILES = Path(__file__).resolve().parents[2] / "roles/image_hygiene/files"
surface = load(FILES / "surface.py")

RULES = yaml.safe_load((FILES / "hygiene.yml").read_text())
ALLOWED: dict[str, list[str]] = surface.read_allowed(json.dumps(RULES))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """What an image has and may have."""
    tree = tmp_path / "root"
    (tree / "etc/systemd/system/multi-user.target.wants").mkdir(parents=True)
    user, group = os.getuid(), os.getgid()
    (tree / "etc/passwd").write_text(f"root:x:{user}:{group}:root:/root:/bin/bash\n")
    (tree / "etc/group").write_text(f"root:x:{group}:\n")
    (tree / "etc/systemd/system/multi-user.target.wants/ssh.service").symlink_to("/usr/lib/ssh.service")
    (tree / "tmp").mkdir()
    (tree / "tmp").chmod(0o1777)
    (tree / "usr/bin").mkdir(parents=True)
    (tree / "usr/bin/sudo").write_text("")
    (tree / "usr/bin/sudo").chmod(0o4755)
    (tree / "proc").mkdir()
    (tree / "proc/anything").write_text("")
    (tree / "proc/anything").chmod(0o666)
    for path in (tree, *tree.glob("*"), *tree.glob("*/*")):
        if path.is_dir() and path.name != "tmp":
            path.chmod(0o755)
    return tree


def _file(path: Path, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    path.chmod(mode)


def _directory(path: Path, mode: int) -> None:
    path.mkdir(parents=True)
    path.chmod(mode)


def _unowned(path: Path) -> None:
    _file(path, 0o644)
    os.chown(path, 54321, -1)


def _enabled(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to("/usr/lib/systemd/system/" + path.name)


PLANTED: dict[str, tuple[str, str, Callable[[Path], None]]] = {
    "a file that everybody writes to": (
        "world-writable",
        "/etc/ld.so.preload",
        lambda path: _file(path, 0o666),
    ),
    "a directory that everybody writes to": (
        "world-writable",
        "/opt/drop",
        lambda path: _directory(path, 0o777),
    ),
    "a shared directory that is not on the list": (
        "world-writable",
        "/opt/spool",
        lambda path: _directory(path, 0o1777),
    ),
    "a setuid program": ("privileged", "/usr/local/bin/rootsh", lambda path: _file(path, 0o4755)),
    "a setgid program": ("privileged", "/usr/games/score", lambda path: _file(path, 0o2755)),
    "a file of a user that there is not": ("unowned", "/srv/model.bin", _unowned),
    "a service that is enabled": (
        "enabled-unit",
        "/etc/systemd/system/multi-user.target.wants/vllm.service",
        _enabled,
    ),
    "a timer that is enabled": (
        "enabled-unit",
        "/etc/systemd/system/timers.target.wants/phone-home.timer",
        _enabled,
    ),
}


def _found(root: Path) -> set[tuple[str, str]]:
    return {(one["rule"], one["path"]) for one in surface.look(root, ALLOWED, live=False)["findings"]}


def test_a_good_tree_has_no_findings(root: Path) -> None:
    assert _found(root) == set()


@pytest.mark.planted("modes, owners, units, ports", check=lambda what: PLANTED[what][0])
@pytest.mark.parametrize("what", PLANTED)
def test_what_is_planted_is_found(root: Path, what: str) -> None:
    rule, path, plant = PLANTED[what]
    if rule == "unowned" and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    plant(root / path.lstrip("/"))
    assert _found(root) == {(rule, path)}


def test_what_nobody_reaches_is_nobodys(root: Path) -> None:
    """Ray gives its folder to everybody, within one that only the service user enters."""
    _directory(root / "var/lib/ingot/ray/deeper", 0o777)
    (root / "var/lib/ingot").chmod(0o750)
    assert _found(root) == set()
    (root / "var/lib/ingot").chmod(0o755)
    assert _found(root) == {("world-writable", "/var/lib/ingot/ray/deeper")}


TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 101 1
   1: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 102 1
   2: {address}:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000     0        0 103 1
"""


def _proc(root: Path, address: str, port: int, state: str) -> Path:
    proc = root.parent / "proc"
    (proc / "net").mkdir(parents=True)
    (proc / "net/tcp").write_text(TCP.format(address=address, port=port, state=state))
    for pid, (name, inode) in enumerate({"sshd": 101, "nodejs": 102, "python3": 103}.items(), 7):
        (proc / f"{pid}/fd").mkdir(parents=True)
        (proc / f"{pid}/comm").write_text(f"{name}\n")
        (proc / f"{pid}/fd/3").symlink_to(f"socket:[{inode}]")
    return proc


def test_a_port_that_is_open_to_others_is_found_with_its_process(root: Path) -> None:
    found = surface.look(root, ALLOWED, live=True, proc=_proc(root, "00000000", 8265, "0A"))
    assert [(one["rule"], one["path"]) for one in found["findings"]] == [("listening", "tcp/8265")]
    assert "0.0.0.0 (python3)" in found["findings"][0]["what"]
    assert "tcp/22 on 0.0.0.0 (sshd)" in found["listening"]


@pytest.mark.parametrize(("address", "state"), [("0100007F", "0A"), ("00000000", "01")])
def test_loopback_and_connections_are_no_findings(root: Path, address: str, state: str) -> None:
    found = surface.look(root, ALLOWED, live=True, proc=_proc(root, address, 8265, state))
    assert found["findings"] == []


@pytest.mark.parametrize("given", ["", "{}", '{"surface": {"ports": []}}'])
def test_rules_without_what_is_allowed_are_refused(given: str) -> None:
    with pytest.raises(surface.RuleError, match="surface"):
        surface.read_allowed(given)


def test_the_command_exits_with_what_it_found(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for status in (0, 1):
        monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(RULES)))
        assert surface.main(["--root", str(root)]) == status
        assert len(json.loads(capsys.readouterr().out)["findings"]) == status
        _file(root / "etc/open", 0o666)
