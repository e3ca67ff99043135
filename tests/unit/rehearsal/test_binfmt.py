"""The kernel's list of interpreters: ours is added when it is needed, and all is as before when it is not."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import pytest

from ingot.rehearsal import binfmt
from ingot.rehearsal.binfmt import ENTRY, BinfmtError, Interpreters

QEMU = Path("/cache/qemu-aarch64")


class Kernel:
    """What the kernel does with the files of binfmt_misc, in a directory."""

    def __init__(self, mount: Path, *, mounted: bool) -> None:
        self.mount = mount
        mount.mkdir()
        self.calls: list[str] = []
        if mounted:
            self.run("mount", "-t", "binfmt_misc")

    def run(self, *command: str) -> None:
        self.calls.append(command[0])
        if command[0] == "mount":
            (self.mount / "register").touch()
        else:
            (self.mount / "register").unlink()

    def register(self, mount: Path, line: str) -> None:
        if "refused" in line:
            raise OSError(2, "No such file or directory")
        (mount / line.split(":")[1]).write_text(line)

    def remove(self, entry: Path) -> None:
        entry.unlink()

    def entries(self) -> list[str]:
        return sorted(path.name for path in self.mount.iterdir() if path.name != "register")


@pytest.fixture(params=[True, False], ids=["mounted before", "not mounted before"])
def kernel(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel(tmp_path / "binfmt_misc", mounted=request.param)
    filesystems = tmp_path / "filesystems"
    filesystems.write_text("nodev\tproc\nnodev\tbinfmt_misc\n")
    monkeypatch.setattr(binfmt, "_run", kernel.run)
    monkeypatch.setattr(binfmt, "_register", kernel.register)
    monkeypatch.setattr(binfmt, "_remove", kernel.remove)
    monkeypatch.setattr(binfmt, "FILESYSTEMS", filesystems)
    return kernel


@pytest.fixture
def interpreters(kernel: Kernel, tmp_path: Path) -> Interpreters:
    return Interpreters(tmp_path / "run", kernel.mount)


def _tree(root: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in root.iterdir()}


def test_the_last_region_leaves_the_list_as_it_was(
    kernel: Kernel, interpreters: Interpreters, tmp_path: Path
) -> None:
    before = _tree(kernel.mount)
    interpreters.claim("a", QEMU)
    interpreters.claim("b", QEMU)
    interpreters.claim("b", QEMU)
    assert kernel.entries() == [ENTRY]
    line = (kernel.mount / ENTRY).read_text()
    assert line.endswith(f":{QEMU}:FPC")
    interpreters.release("a")
    assert kernel.entries() == [ENTRY]
    interpreters.release("never asked")
    interpreters.release("b")
    assert _tree(kernel.mount) == before
    assert not (tmp_path / "run/binfmt.json").exists()
    interpreters.release("b")  # harmless


def test_an_entry_of_somebody_else_is_left_alone(kernel: Kernel, interpreters: Interpreters) -> None:
    if not (kernel.mount / "register").exists():
        kernel.run("mount")
    (kernel.mount / "qemu-aarch64").write_text("theirs")
    before = _tree(kernel.mount)
    interpreters.claim("a", QEMU)
    assert kernel.entries() == [ENTRY, "qemu-aarch64"]
    interpreters.release("a")
    assert _tree(kernel.mount) == before


@pytest.mark.parametrize("point", ["_run", "_register"])
def test_a_kill_at_any_point_is_swept(
    kernel: Kernel, interpreters: Interpreters, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    before = _tree(kernel.mount)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(binfmt, point, killed)
        with contextlib.suppress(KeyboardInterrupt):  # where it is mounted already, nothing is run
            interpreters.claim("a", QEMU)
    interpreters.release("a")
    assert _tree(kernel.mount) == before


def test_an_entry_that_somebody_removed_is_made_again(kernel: Kernel, interpreters: Interpreters) -> None:
    interpreters.claim("a", QEMU)
    (kernel.mount / ENTRY).unlink()
    interpreters.claim("a", QEMU)
    assert kernel.entries() == [ENTRY]


def test_what_the_kernel_refuses_is_said(kernel: Kernel, interpreters: Interpreters) -> None:
    with pytest.raises(BinfmtError, match="register refuses /refused: No such file"):
        interpreters.claim("a", Path("/refused"))
    interpreters.release("a")
    assert kernel.entries() == []


def test_a_kernel_without_it_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_such_module(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr("subprocess.run", no_such_module)
    filesystems = tmp_path / "filesystems"
    filesystems.write_text("nodev\tproc\n")
    monkeypatch.setattr(binfmt, "FILESYSTEMS", filesystems)
    (tmp_path / "mount").mkdir()
    interpreters = Interpreters(tmp_path / "run", tmp_path / "mount")
    with pytest.raises(BinfmtError, match=r"no emulation: .*CONFIG_BINFMT_MISC.*modprobe"):
        interpreters.claim("a", QEMU)
    assert not (tmp_path / "run/binfmt.json").exists()
