"""Emulated machines where it needs no machine: the core of a type, what is said of it, what is made when."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from program import load

from ingot.rehearsal import base, binfmt, cli, emulation, trees
from ingot.rehearsal.config import Settings
from ingot.rehearsal.emulation import Core, Emulation, EmulationError, Emulator
from ingot.rehearsal.model import Machine

QEMU_10 = ("cortex-a72", "max", "neoverse-n1", "neoverse-n2", "neoverse-v1")


def _emulator(*cores: str) -> Emulator:
    return Emulator(tree=Path("/t"), library=Path("/l.so"), version="10.0.13", cores=cores or QEMU_10)


@pytest.mark.parametrize("name", ["c10g.large", "mystery"])
def test_a_type_of_unknown_core_is_refused(name: str) -> None:
    with pytest.raises(EmulationError, match=f"{name}: nothing is known of its core"):
        _emulator().core(name)


def test_a_core_that_qemu_lacks_is_stood_in_for_and_that_is_said() -> None:
    assert str(_emulator().core("c7g.large")) == "neoverse-v1"
    assert _emulator().core("c8g.large") == Core("neoverse-v2", "neoverse-n2")
    assert str(_emulator().core("c8g.large")) == "neoverse-n2, the nearest to neoverse-v2"
    assert str(_emulator(*QEMU_10, "neoverse-v2").core("c8g.large")) == "neoverse-v2"


def test_a_qemu_that_is_too_old_is_refused_with_what_it_has() -> None:
    old = _emulator("cortex-a72", "neoverse-n1")
    with pytest.raises(
        EmulationError, match=r"c7g.large has neoverse-v1 cores.*it has cortex-a72, neoverse-n1"
    ):
        old.core("c7g.large")


def test_what_qemu_says_of_itself_is_understood(tmp_path: Path) -> None:
    program = tmp_path / "qemu"
    program.write_text(
        "#!/bin/sh\n"
        'case $1 in --version) echo "qemu-aarch64 version 10.0.13 (Debian 1:10.0.13)" ;;\n'
        '*) printf "Available CPUs:\\n  max\\n  neoverse-v1\\n\\n"; exit 1 ;; esac\n'
    )
    program.chmod(0o755)
    assert emulation._describe(program) == ("10.0.13", ("max", "neoverse-v1"))


def test_a_tree_whose_compiler_fails_is_refused_with_what_it_said(tmp_path: Path) -> None:
    (tmp_path / "tree/tmp").mkdir(parents=True)
    with pytest.raises(EmulationError, match=r"aarch64-linux-gnu-gcc-14.* failed: .*No such file"):
        emulation._finish(tmp_path, tmp_path / "place")


def test_the_native_python_is_mended_and_has_its_bytecode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machines have it read-only; Debian's sitecustomize links to what would be a file of the machine."""
    library = tmp_path / "usr/lib/python3.13"
    library.mkdir(parents=True)
    site = library / "sitecustomize.py"
    site.symlink_to("/etc/python3.13/sitecustomize.py")
    ran: list[str] = []
    monkeypatch.setattr(emulation, "_said", lambda *command: ran.append(" ".join(map(str, command))))
    emulation._finish_python(tmp_path)
    assert "aarch64" in site.read_text() and not site.is_symlink()
    assert 'APT::Architecture "arm64";' in (tmp_path / "etc/apt/machine.conf").read_text()
    assert ran == [f"chroot {tmp_path} /usr/bin/python3 -m compileall -q /usr/lib/python3.13"]


def test_what_runs_natively_is_told_the_processor_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.uname()
    monkeypatch.setattr(os, "uname", os.uname)  # put back after the test
    monkeypatch.setenv("APT_CONFIG", "")
    load(emulation._SITE)
    assert os.uname().machine == "aarch64"
    assert os.uname()[:4] == before[:4]
    assert os.environ["APT_CONFIG"] == "/amd64/etc/apt/machine.conf"


def test_only_other_architectures_are_emulated() -> None:
    assert emulation.foreign("arm64", "x86_64")
    assert not emulation.foreign("arm64", "aarch64")
    assert not emulation.foreign("x86_64", "x86_64")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(name="t", cache=tmp_path / "cache", runtime_root=tmp_path / "run")


@pytest.fixture
def made(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is made and claimed, in order, by an emulation whose trees and kernel are play."""
    done: list[str] = []

    def make(place: Path, what: str, *_: object, finish: Callable[[Path], object], **__: object) -> None:
        (place / "tree").mkdir(parents=True)
        finish(place)
        done.append(what)

    def described(building: Path, place: Path) -> None:
        made = _emulator().model_copy(update={"tree": place / "tree"})
        (building / "emulator.json").write_text(made.model_dump_json())

    monkeypatch.setattr(trees, "make", make)
    monkeypatch.setattr(emulation, "_finish", described)
    monkeypatch.setattr(binfmt.Interpreters, "claim", lambda _, region, __: done.append(f"claim {region}"))
    return done


def _machine(settings: Settings, kind: str = "c7g.large") -> Machine:
    return Machine(
        instance_id="i-1",
        layers=(base.offered(settings)[1].tree,),
        architecture="arm64",
        instance_type=kind,
        private_ip="172.31.0.5",
        prefix_length=20,
        mac="02:00:00:00:00:05",
        hostname="ip-172-31-0-5",
        vcpus=2,
        memory_bytes=1 << 30,
    )


def test_the_first_machine_has_all_made_and_the_second_finds_it(settings: Settings, made: list[str]) -> None:
    said = []

    @contextmanager
    def step(what: str) -> Iterator[None]:
        said.append(what)
        yield

    one = Emulation(settings)
    assert one.prepare(_machine(settings), step).core == Core("neoverse-v1", "neoverse-v1")
    assert [what for what in made if "claim" not in what] == ["the tree with qemu", "the trixie base tree"]
    assert "claim t" in made
    assert ["qemu" in said[0], "base tree for arm64" in said[1], len(said)] == [True, True, 2]
    made.clear()
    assert one.prepare(_machine(settings, "c8g.large"), step).core.emulated == "neoverse-n2"
    assert made == ["claim t"]
    assert len(said) == 2


def test_a_type_that_cannot_be_emulated_has_no_tree_made(settings: Settings, made: list[str]) -> None:
    with pytest.raises(EmulationError):
        Emulation(settings).prepare(_machine(settings, "c10g.large"))
    assert "the trixie base tree" not in made


def test_an_image_does_not_show_that_its_builder_was_emulated(tmp_path: Path) -> None:
    (tmp_path / "amd64").mkdir()
    (tmp_path / "usr/lib/x86_64-linux-gnu").mkdir(parents=True)
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64/own").touch()
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/environment").write_text("LANG=C.UTF-8\nQEMU_CPU=neoverse-v1\nA=1\n")
    (tmp_path / "etc/sudoers.d").mkdir()
    (tmp_path / "etc/sudoers.d/emulated").touch()
    emulation.clean(tmp_path)
    assert list((tmp_path / "etc/sudoers.d").iterdir()) == []
    assert (tmp_path / "etc/environment").read_text() == "LANG=C.UTF-8\nA=1\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["etc", "lib64", "usr"]
    assert list((tmp_path / "usr/lib").iterdir()) == []
    emulation.clean(tmp_path / "nothing there")


def test_status_says_what_is_emulated_as_what(settings: Settings) -> None:
    assert cli.emulated(settings) == []
    core = settings.runtime / "machines/i-1/hypervisor/core"
    core.parent.mkdir(parents=True)
    core.write_text(f"{_emulator().core('c8g.large')}\n")
    assert cli.emulated(settings) == ["i-1 is emulated: neoverse-n2, the nearest to neoverse-v2"]
