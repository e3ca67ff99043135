"""Role python_runtime: the sweep for missing libraries, and pins that cannot drift."""

from __future__ import annotations

import importlib.util
import marshal
import os
import shutil
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from program import load

ROOT = Path(__file__).parents[2]
ROLE = ROOT / "roles/python_runtime"


@pytest.fixture(scope="module")
def sweep() -> ModuleType:
    return load(ROLE / "files/ldd_sweep.py")


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """Libraries: a sound one, one that needs ``libQ.so.6``, one of another machine, one that is text."""
    sound = next(Path(sysconfig.get_config_var("DESTSHARED")).glob("_*.so"))
    package = tmp_path / "lib/package"
    package.mkdir(parents=True)
    shutil.copy(sound, package / "sound.so")
    content = sound.read_bytes()
    assert b"\0libc.so.6\0" in content
    broken = content.replace(b"\0libc.so.6\0", b"\0libQ.so.6\0")
    (package / "broken.so").write_bytes(broken)
    (package / "foreign.so").write_bytes(broken[:18] + b"\xf7\x00" + broken[20:])
    (package / "script.so").write_text("GROUP ( libx.so )\n")
    return tmp_path


def test_the_missing_library_and_a_file_that_needs_it_are_named(
    sweep: ModuleType, venv: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep.main([str(venv)]) == 1
    message = capsys.readouterr().err
    assert "libQ.so.6 is missing" in message and "package/broken.so needs it" in message
    assert len(message.splitlines()) == 1


def test_one_file_alone_is_understood_too(sweep: ModuleType, venv: Path) -> None:
    """ldd does not name the file when it is asked for only one."""
    (venv / "lib/package/sound.so").unlink()
    assert sweep.sweep(venv, []) == [(venv / "lib/package/broken.so", "libQ.so.6")]


def test_a_library_within_the_environment_is_not_missing(sweep: ModuleType, venv: Path) -> None:
    (venv / "lib/libQ.so.6").write_bytes((venv / "lib/package/sound.so").read_bytes())
    assert sweep.main([str(venv)]) == 0


def test_an_allowed_library_may_be_missing(sweep: ModuleType, venv: Path) -> None:
    assert sweep.main(["--allow", "libQ.so.*", str(venv)]) == 0
    assert sweep.main(["--allow", "libP.so.*", str(venv)]) == 1


def test_symbols_of_a_newer_system_are_named(
    sweep: ModuleType, venv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = (
        "/lib/libc.so.6: version `GLIBC_9.99' not found (required by /venv/x.so)\n"
        "\tlibm.so.6 => /lib/libm.so.6 (0x1)\n"
    )
    monkeypatch.setattr(
        sweep.subprocess, "run", lambda *_, **__: sweep.subprocess.CompletedProcess([], 1, answer, "")
    )
    assert list(sweep.ask([venv])) == [(Path("/venv/x.so"), "libc.so.6(GLIBC_9.99)")]


def test_a_directory_that_does_not_exist_is_wrong_usage(sweep: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as status:
        sweep.main([str(tmp_path / "none")])
    assert status.value.code == 2


def test_the_wheels_of_uv_are_of_the_pinned_version() -> None:
    pinned = yaml.safe_load((ROOT / "files/versions.yml").read_text())["uv"]
    wheels = yaml.safe_load((ROLE / "defaults/main.yml").read_text())["python_runtime_uv_wheels"]
    assert set(wheels) == {"x86_64", "aarch64"}
    for architecture, wheel in wheels.items():
        assert f"/uv-{pinned}-" in wheel["url"] and architecture in wheel["url"]
        assert len(wheel["sha256"]) == 64


@pytest.fixture(scope="module")
def bytecode() -> ModuleType:
    return load(ROLE / "files/compile_bytecode.py")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """An environment that was built beside its place: two modules, one that is none, one of elsewhere."""
    package = tmp_path / ".vllm.partial/lib/package"
    (package / "sub").mkdir(parents=True)
    (package / "good.py").write_text("def where():\n    raise ValueError\n")
    (package / "sub/warns.py").write_text(r'PATTERN = "\d"')
    (package / "template.py").write_text("import {{ cookiecutter.name }}\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/other.py").write_text("")
    (package / "linked").symlink_to(tmp_path / "elsewhere")
    return package


def pyc(source: Path) -> Path:
    return Path(importlib.util.cache_from_source(str(source)))


def test_every_module_gets_bytecode_that_this_python_takes(
    bytecode: ModuleType, package: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    venv = package.parents[1]
    assert bytecode.main([str(venv), "--place", "/opt/vllm"]) == 0
    said = capfd.readouterr()
    assert "compiled 2 of 3 modules" in said.out and said.err == ""
    assert "no module of this Python: 1, among them lib/package/template.py" in said.out
    assert bytecode.is_compiled(package / "good.py") and bytecode.is_compiled(package / "sub/warns.py")
    assert not pyc(package / "linked/other.py").exists()
    code = marshal.loads(pyc(package / "good.py").read_bytes()[16:])
    assert code.co_filename == "/opt/vllm/lib/package/good.py"


def test_a_second_run_compiles_what_has_changed_alone(
    bytecode: ModuleType, package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bytecode.main([str(package)]) == 0
    first = pyc(package / "good.py").stat().st_mtime_ns
    assert bytecode.main([str(package)]) == 0
    assert pyc(package / "good.py").stat().st_mtime_ns == first
    times = (package / "good.py").stat()
    (package / "good.py").write_text("CHANGED = True\n")
    os.utime(package / "good.py", ns=(times.st_atime_ns, times.st_mtime_ns))  # as wheels do
    assert bytecode.main([str(package)]) == 0
    assert [line.split(" of")[0] for line in capsys.readouterr().out.splitlines()[::2]] == [
        "compiled 2",
        "compiled 0",
        "compiled 1",
    ]
    assert marshal.loads(pyc(package / "good.py").read_bytes()[16:]).co_names == ("CHANGED",)


def test_bytecode_of_another_version_is_none(bytecode: ModuleType, package: Path) -> None:
    assert bytecode.main([str(package)]) == 0
    content = pyc(package / "good.py").read_bytes()
    pyc(package / "good.py").write_bytes(b"\x00\x00" + content[2:])
    assert not bytecode.is_compiled(package / "good.py")


def test_a_module_whose_bytecode_cannot_be_written_is_named(
    bytecode: ModuleType, package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (package / "sub/__pycache__").write_text("a file where the directory should be")
    assert bytecode.main([str(package)]) == 1
    assert f"{package}/sub/warns.py cannot be compiled: " in capsys.readouterr().err
