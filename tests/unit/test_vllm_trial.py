"""The trial of a node's compiler: it does what torch.compile will ask, or is refused with its first error."""

from __future__ import annotations

import re
import shutil
import sysconfig
from pathlib import Path

import pytest
from ingot_vllm import RefusedError, trial
from program import load

ENGINE = Path(__file__).parents[2] / "roles/vllm/files/engine.py"
GRAVITON3 = "processor : 0\nFeatures : fp asimd sve bf16 i8mm\n"
GRAVITON4 = "processor : 0\nFeatures : fp asimd sve bf16 i8mm sve2 svebitperm\n"


@pytest.fixture
def cpuinfo(tmp_path: Path) -> Path:
    path = tmp_path / "cpuinfo"
    path.write_text(GRAVITON4)
    return path


def stub(directory: Path, *lines: str) -> str:
    """A compiler in the shell; `$*` is what it is given."""
    path = directory / "g++"
    path.write_text(
        "\n".join(["#!/bin/sh", '[ "$1" = --version ] && echo "g++ 11.5.0" && exit', *lines]) + "\n"
    )
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("text", "last"),
    [
        (GRAVITON4, "-march=armv9-a+sve2+fp16fml+sha3+bf16+i8mm"),
        (GRAVITON3, "-march=armv8-a+sve+bf16"),
        ("Features : fp asimd\n", "-march=native"),
        ("flags : avx2\n", "-march=native"),
    ],
)
def test_the_flags_are_those_of_the_processor(text: str, last: str) -> None:
    assert trial.flags(text)[0] == "-march=native"
    assert trial.flags(text)[-1] == last


def test_this_machines_own_compiler_can() -> None:
    if not shutil.which("g++") or not Path(sysconfig.get_path("include"), "Python.h").exists():
        pytest.skip("no g++ or no Python.h here")
    assert re.search(r"\d+\.\d+", trial.run())


def test_a_compiler_that_does_not_know_the_processor_is_refused(
    tmp_path: Path, cpuinfo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GCC 11 on Graviton4: all is well until the first shape is compiled."""
    error = "cc1plus: error: unknown value 'armv9-a' for '-march'"
    compiler = stub(tmp_path, f'case $* in *armv9-a*) echo "{error}" >&2; exit 1 ;; esac')
    monkeypatch.setattr(trial, "_CALL", "")
    with pytest.raises(RefusedError, match="cannot compile with -march=armv9-a") as refusal:
        trial.run(cpuinfo, compiler)
    for words in ("g++ 11.5.0", error, "GCC from 12 on"):
        assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            ["echo 'during RTL pass: internal compiler error: Segmentation fault' >&2; exit 4"],
            "internal compiler",
        ),
        (["kill -SEGV $$"], "ended by SIGSEGV"),
        (["exit 1"], "it said nothing"),
        (['for last; do :; done; : > "$last"'], "does not run"),
    ],
    ids=["an internal error", "it crashes", "without a word", "what it makes is no library"],
)
def test_a_compiler_that_fails_is_refused(tmp_path: Path, cpuinfo: Path, lines: list[str], said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        trial.run(cpuinfo, stub(tmp_path, *lines))


def test_a_library_with_a_foreign_instruction_is_refused(
    tmp_path: Path, cpuinfo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_CALL", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    with pytest.raises(RefusedError, match="with -march=native does not run: ended by SIGILL"):
        trial.run(cpuinfo, stub(tmp_path, "exit 0"))


def test_no_compiler_is_said_by_the_program_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "/none/g++")
    engine = load(ENGINE)
    assert engine.main(["compile"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: there is no C++ compiler: /none/g++: No such file or directory")
    assert said.count("\n") == 1
