"""Role vllm, method source: a build that says how far it is, goes on, and names its first error."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from ingot_vllm import RefusedError, builder, cores, machine, patching, wheel
from ingot_vllm.progress import Status, first_error, read_status
from program import load

ROOT = Path(__file__).parents[2]
ROLE = ROOT / "roles/vllm"
GB = 1_000_000_000

# --- how many at once ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("processors", "memory", "jobs"),
    [(2, 24 * GB, 2), (16, 32 * GB, 11), (64, 128 * GB, 45), (4, 4 * GB, 1), (1, 512 * GB, 1)],
)
def test_jobs_are_what_cores_and_memory_allow(processors: int, memory: int, jobs: int) -> None:
    assert machine.jobs(processors, memory) == jobs


def test_a_machine_that_is_too_small_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"needs 3\.3 GB of memory for one file, and 2\.0 GB are"):
        machine.jobs(2, 2 * GB)
    with pytest.raises(RefusedError, match=r"vllm_build_jobs is 8, and 16\.0 GB of memory suffice for 5"):
        machine.jobs(16, 16 * GB, 8)
    assert machine.jobs(16, 64 * GB, 3) == 3


def test_the_limits_of_the_control_groups_count(tmp_path: Path) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 64000000 kB\nMemAvailable: 60000000 kB\n")
    (proc / "self/cgroup").write_text("0::/machine/builder\n")
    (cgroups / "machine/builder").mkdir(parents=True)
    assert machine.available_memory(proc, cgroups) == 60000000 * 1024
    (cgroups / "machine/memory.max").write_text("8000000000\n")
    (cgroups / "machine/memory.current").write_text("3000000000\n")
    (cgroups / "machine/memory.stat").write_text("anon 1\ninactive_file 2000000000\n")
    (cgroups / "machine/builder/memory.max").write_text("max\n")
    assert machine.available_memory(proc, cgroups) == 7000000000
    (cgroups / "machine/cpu.max").write_text("150000 100000\n")
    assert machine.cores(proc, cgroups) == 1


# --- what it says -------------------------------------------------------------------------------------------


def test_progress_is_a_line_for_a_person() -> None:
    status = Status(began=0, phase="configuring")
    assert status.text(120) == "configuring, 2 min so far"
    assert not status.read_line("-- Configuring done", 120)
    for step in range(1, 42):
        assert status.read_line(f"[{step}/281] Building CXX object a.o", 120 + step * 6)
    assert status.text(366) == "compiling: 41 of 281 files, 6 min so far, about 24 min left"
    status.state, status.message = "done", "/w/x.whl"
    assert status.text(400) == "/w/x.whl"


def test_a_resumed_build_does_not_count_what_was_there() -> None:
    status = Status(began=0)
    status.read_line("[200/281] Building CXX object a.o", 10)
    assert "left" not in status.text(11)
    for step in range(201, 211):
        status.read_line(f"[{step}/281] Building CXX object a.o", 10 + (step - 200) * 60)
    assert status.text(610).endswith("about 71 min left")


COMPILER = """\
[1/9] Building CXX object CMakeFiles/_C.dir/a.cpp.o
/b/csrc/utils.cpp:12:7: warning: unused variable 'error'
[2/9] Building CXX object CMakeFiles/_C.dir/csrc/cpu/shm.cpp.o
FAILED: CMakeFiles/_C.dir/csrc/cpu/shm.cpp.o
c++ -o CMakeFiles/_C.dir/csrc/cpu/shm.cpp.o -c /b/csrc/cpu/shm.cpp
In file included from /b/csrc/cpu/shm.cpp:3:
/b/csrc/cpu/cpu_types.hpp:41:2: error: #error "unsupported"
/b/csrc/cpu/shm.cpp:99:1: error: 'x' was not declared
ninja: build stopped: subcommand failed.
Traceback (most recent call last):
subprocess.CalledProcessError: Command returned non-zero exit status 1.
"""


@pytest.mark.parametrize(
    ("output", "error"),
    [
        (COMPILER, '/b/csrc/cpu/cpu_types.hpp:41:2: #error "unsupported"'),
        ("x.cpp:1:10: fatal error: numa.h: No such file or directory\n", "x.cpp:1:10: numa.h: No such file"),
        (
            "/tmp/cc1.s:7: Error: selected processor does not support `bfdot'\n",
            "/tmp/cc1.s:7: selected processor",
        ),
        (
            "CMake Error at cmake/cpu_extension.cmake:57 (find_library):\n  Could not find OPEN_MP\n",
            "cmake/cpu_extension.cmake:57: Could not find OPEN_MP",
        ),
        (
            "CMake Error at cmake/utils.cmake:37 (message):\n  Failed to locate torch: Traceback\n\n"
            '    File "<string>", line 1\n\n  ModuleNotFoundError: No module named torch\n',
            "cmake/utils.cmake:37: Failed to locate torch: Traceback ModuleNotFoundError: No module named",
        ),
        (
            "FAILED: a.cpp.o\nc++: fatal error: Killed signal terminated program cc1plus\n",
            "the compiler was killed while it compiled a.cpp.o: too little memory for 4 at once",
        ),
        ("FAILED: _C.so\na.o: undefined reference to `sbgemm_'\n", "_C.so: a.o: undefined reference to"),
        (
            "Traceback (most recent call last):\nModuleNotFoundError: No module named 'torch'\n",
            "ModuleNotFound",
        ),
        ("ninja: error: unknown target '_C'\nTraceback:\nx.Error: y\n", "ninja: unknown target '_C'"),
        ("", "it ended without a word"),
    ],
    ids=[
        "compiler",
        "header",
        "assembler",
        "cmake",
        "cmake's Python",
        "memory",
        "linker",
        "python",
        "ninja",
        "nothing",
    ],
)
def test_the_first_error_is_shown_and_not_the_last_page(output: str, error: str) -> None:
    assert first_error(output.splitlines(), 4).startswith(error)


# --- a build of a small project in vLLM's place -------------------------------------------------------------

SETUP = '''\
"""Does what vLLM's does: ninja's lines, objects that stay, the list of commands, a wheel."""
import json, os, pathlib, shlex, subprocess, sys, time, zipfile
flag = os.environ["INGOT_CORE_FLAG"]
temp = pathlib.Path("build/temp"); temp.mkdir(parents=True, exist_ok=True)
out = pathlib.Path(sys.argv[sys.argv.index("--dist-dir") + 1]); out.mkdir(parents=True)
names, objects = ["one", "two"], []
log = pathlib.Path("compiled.txt").open("a")
entries = []
for n, name in enumerate(names, 1):
    command = [os.environ["CXX"], *os.environ["CXXFLAGS"].split(), "-O3", "-fPIC", "-c", f"{name}.cpp"]
    command += LAST.split() + ["-o", f"build/temp/{name}.o"]
    entries.append({"directory": ".", "file": f"{name}.cpp", "command": shlex.join(command)})
    objects.append(f"build/temp/{name}.o")
    print(f"[{n}/2] Building CXX object {name}.cpp.o", flush=True)
    if not (temp / f"{name}.o").exists():
        subprocess.run(command, check=True)
        print(name, file=log, flush=True)
    if name == "one" and pathlib.Path("hold").exists():
        time.sleep(60)
(temp / "compile_commands.json").write_text(json.dumps(entries))
subprocess.run([os.environ["CXX"], "-shared", *objects, "-o", "_C_AVX2.abi3.so"], check=True)
with zipfile.ZipFile(out / "vllm-1.0+cpu-cp38-abi3-linux_x86_64.whl", "w") as wheel:
    wheel.write("_C_AVX2.abi3.so", "vllm/_C_AVX2.abi3.so")
    wheel.writestr("vllm-1.0+cpu.dist-info/RECORD", "")
'''
PATCH = """\
A patch of the small project.

Distribution: sdist
Version: 1.0

--- a/setup.py
+++ b/setup.py
@@ -5,3 +5,4 @@
 flag = os.environ["INGOT_CORE_FLAG"]
+LAST = ""
 temp = pathlib.Path("build/temp"); temp.mkdir(parents=True, exist_ok=True)
"""
LOOP = "void {0}(float *a, const float *b, long n) {{ for (long i = 0; i < n; i++) a[i] += b[i]; }}\n"


def archive(path: Path, files: dict[str, str]) -> dict[str, str]:
    with tarfile.open(path, "w:gz") as target:
        for name, text in files.items():
            member = path.parent / "member"
            member.write_text(text)
            target.add(member, f"top/{name}")
    return {"file": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


class Project:
    """A configuration as the role writes it, for a project that compiles in a second."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("patches", "work", "tools/lib/python3.13/site-packages", "site/torch"):
            (root / name).mkdir(parents=True)
        (root / "patches/last.patch").write_text(PATCH)
        (root / "site/torch/version.py").write_text("cuda: str | None = None\n")
        (root / "site/torch/__init__.py").write_text("")
        self.files = {"setup.py": SETUP, "one.cpp": LOOP.format("one"), "two.cpp": LOOP.format("two")}
        self.data: dict[str, Any] = {
            "core": "x86-64-v3",
            "version": "1.0",
            "cxx": "g++",
            "cc": "gcc",
            "jobs": 1,
            "work": str(root / "work"),
            "patches": str(root / "patches"),
            "torch_cmake": str(ROLE / "files/torch-cmake"),
            "tools": str(root / "tools"),
            "tools_sha256": "0" * 64,
            "onednn": {**archive(root / "onednn.tar.gz", {"oneDNN/CMakeLists.txt": ""}), "path": "oneDNN"},
            "acl": None,
        }

    def build(self) -> builder.Build:
        self.data["sdist"] = archive(self.root / "vllm.tar.gz", self.files)
        return self.again()

    def again(self) -> builder.Build:
        (self.root / "config.json").write_text(json.dumps(self.data))
        return builder.Build(builder.Config.read(self.root / "config.json"))


class Torch:
    version = "2.0+cpu"

    def read_text(self, name: str) -> str:
        return "torch/lib/libtorch.so,sha256=x,1\n../../bin/torchrun,sha256=y,1\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    try:
        if cores.compiler("g++").machine != "x86_64":
            pytest.skip("g++ is not one for x86-64")
    except RefusedError:
        pytest.skip("no g++ (files/host-packages.yml has it)")
    core = dataclasses.replace(cores.CORES["x86-64-v3"], gcc=(9,), floors={"avx": 2})
    monkeypatch.setitem(cores.CORES, "x86-64-v3", core)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: Torch())
    monkeypatch.setattr(builder, "torch_root", lambda: tmp_path / "site/torch")
    monkeypatch.setattr(machine, "available_memory", lambda: 8 * GB)
    return Project(tmp_path)


def test_a_build_is_proved_and_packed(project: Project) -> None:
    build = project.build()
    made = build.run()
    record = wheel.check(made, build.key)
    assert record["cpu"] == "x86-64-v3"
    assert record["acl"] is False
    assert record["files"] == 2
    assert record["libraries"]["vllm/_C_AVX2.abi3.so"]["lacking"] == 0
    assert record["inputs"]["patches"].keys() == {"last"}
    status = read_status(build.status_file)
    assert status and (status.state, status.message) == ("done", str(made))


def test_two_builds_of_the_same_are_the_same(project: Project) -> None:
    build = project.build()
    first = build.run().read_bytes()
    subprocess.run(["rm", "-rf", build.directory], check=True)
    again = project.again()
    assert again.key == build.key
    assert again.run().read_bytes() == first


@pytest.mark.parametrize(
    "change",
    [
        {"core": "x86-64-v4"},
        {"tools_sha256": "1" * 64},
        {"onednn": "other"},
    ],
    ids=["core", "tools", "oneDNN"],
)
def test_whatever_goes_in_changes_the_key(
    project: Project, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cores.CORES, "x86-64-v4", dataclasses.replace(cores.CORES["x86-64-v4"], gcc=(9,)))
    before = project.build().key
    if change.get("onednn"):
        change = {"onednn": archive(project.root / "other.tar.gz", {"oneDNN/CMakeLists.txt": "# new\n"})}
    project.data.update(change)
    assert project.again().key != before


def test_patch_source_torch_and_compiler_change_the_key(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {project.build().key}
    (project.root / "patches/last.patch").write_text(PATCH.replace("small", "very small"))
    keys.add(project.again().key)
    project.files["one.cpp"] += "\n"
    keys.add(project.build().key)
    monkeypatch.setattr(Torch, "version", "2.1+cpu")
    keys.add(project.again().key)
    monkeypatch.setattr(Torch, "read_text", lambda *_: "torch/lib/libtorch.so,sha256=z,1\n")
    keys.add(project.again().key)
    real = cores.compiler("g++")
    monkeypatch.setattr(builder, "compiler", lambda _: dataclasses.replace(real, banner="g++ 99"))
    keys.add(project.again().key)
    assert len(keys) == 6


def test_a_flag_that_is_overridden_ends_the_build(project: Project) -> None:
    (project.root / "patches/last.patch").write_text(PATCH.replace('+LAST = ""', '+LAST = "-march=x86-64"'))
    build = project.build()
    with pytest.raises(RefusedError, match=r"one\.cpp with -march=x86-64, which comes last and wins"):
        build.run()
    assert not list(build.directory.glob("vllm*.whl"))


def test_a_patch_that_no_longer_applies_ends_it_before_anything_is_compiled(project: Project) -> None:
    project.files["setup.py"] = SETUP.replace('flag = os.environ["INGOT_CORE_FLAG"]\n', "")
    build = project.build()
    with pytest.raises(RefusedError, match="patch last does not apply"):
        build.run()
    assert not build.log.exists()


def test_a_patch_that_upstream_has_made_needless_ends_it(project: Project) -> None:
    project.files["setup.py"] = SETUP.replace('"]\ntemp', '"]\nLAST = ""\ntemp')
    with pytest.raises(
        RefusedError, match=r"patch last is no longer needed: sdist 1\.0 has its change already"
    ):
        project.build().run()


def test_a_source_that_is_not_the_pinned_one_is_refused(project: Project) -> None:
    build = project.build()
    Path(project.data["sdist"]["file"]).write_bytes(b"something else")
    with pytest.raises(RefusedError, match=r"vllm\.tar\.gz has the sha256 .*, expected is"):
        build.run()


def test_an_error_is_shown_with_file_and_line(project: Project) -> None:
    project.files["two.cpp"] = "int f() {\n  return nothing;\n}\n"
    build = project.build()
    with pytest.raises(
        RefusedError, match=r"could not be compiled: two\.cpp:2:10: .nothing. was not declared"
    ):
        build.run()
    status = build.wait(0)
    assert status.state == "failed"
    assert "two.cpp:2:10" in status.text()


def test_what_was_compiled_is_not_compiled_again(project: Project) -> None:
    project.files["two.cpp"] = "broken"
    build = project.build()
    with pytest.raises(RefusedError):
        build.run()
    (build.tree / "two.cpp").write_text(LOOP.format("two"))
    build.run()
    assert (build.tree / "compiled.txt").read_text().split() == ["one", "two"]


def test_a_build_that_is_killed_is_noticed_and_goes_on(project: Project) -> None:
    """In a process of its own, as the role starts it: the lock goes with it."""
    build = project.build()
    build.prepare()
    (build.tree / "hold").touch()
    child = os.fork()
    if child == 0:
        os.setsid()
        build.lock()
        build.run()
        os._exit(0)
    deadline = time.monotonic() + 30
    while not (build.tree / "compiled.txt").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    waiting = build.wait(0)
    assert waiting.state == "running"
    assert build.lock() is None  # a second one does not begin beside it
    os.killpg(child, 9)
    os.waitpid(child, 0)
    ended = build.wait(5)
    assert ended.state == "failed"
    assert "ended from outside" in ended.message and "goes on where it stopped" in ended.message
    (build.tree / "hold").unlink()
    build.run()
    assert (build.tree / "compiled.txt").read_text().split() == ["one", "two"]


def test_torch_for_cuda_gets_a_package_file_of_ours(project: Project) -> None:
    root = project.root / "site/torch"
    build = project.build()
    assert "Torch_DIR" not in build.environment(1)["CMAKE_ARGS"]
    (root / "version.py").write_text("__version__ = '2.13.0'\ncuda: Optional[str] = '13.0'\n")
    assert f"-DINGOT_TORCH_ROOT={root}" in build.environment(1)["CMAKE_ARGS"].split()


def test_the_library_of_arm_is_in_or_out_by_a_patch(project: Project) -> None:
    patches = ROLE / "files/source-patches"
    names = {
        choice: {p.name for p in patching.wanted(patches, "sdist", (choice,))} for choice in ("acl", "no-acl")
    }
    assert names == {"acl": {"core-flag", "acl-jobs"}, "no-acl": {"core-flag", "acl-off"}}


@pytest.mark.parametrize(
    "path", sorted((ROLE / "files/source-patches").glob("*.patch")), ids=lambda path: path.stem
)
def test_patches_of_the_sources_are_for_the_pinned_version(path: Path) -> None:
    patch = patching.read_patch(path)
    assert patch.version == yaml.safe_load((ROOT / "files/versions.yml").read_text())["vllm"]
    assert patch.hunks and all(hunk.old != hunk.new for hunk in patch.hunks)
    assert "Ends-When: " in path.read_text()
    assert "pstream" in path.read_text(), "a patch says where upstream stands"


# --- the program --------------------------------------------------------------------------------------------


def program(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(ROLE / "files/source.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_program_refuses_in_one_line(tmp_path: Path) -> None:
    answer = program("check", str(tmp_path / "none.whl"), "--key", "x")
    assert (answer.returncode, answer.stderr.count("\n")) == (1, 1)
    assert answer.stderr.startswith("error: ") and "is damaged or no wheel" in answer.stderr


def test_a_baked_node_without_a_compiler_keeps_what_it_has(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = load(ROLE / "files/source.py")
    build = project.build()
    record = build.record({})
    config = builder.Config.read(project.root / "config.json")
    monkeypatch.setattr(source, "installed_record", lambda: record)
    assert source.installed(config) == {"installed": True, "differs": []}

    def nowhere(_: str) -> None:
        raise cores.NoCompilerError("there is no compiler")

    monkeypatch.setattr(builder, "compiler", nowhere)
    assert source.installed(config)["installed"]
    project.data["tools_sha256"] = "1" * 64
    (project.root / "config.json").write_text(json.dumps(project.data))
    changed = builder.Config.read(project.root / "config.json")
    assert source.installed(changed) == {"installed": False, "differs": ["tools"]}
    monkeypatch.setattr(source, "installed_record", dict)
    assert not source.installed(config)["installed"]


def test_a_build_is_started_once_and_waited_for(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    source = load(ROLE / "files/source.py")
    build = project.build()
    began: list[list[str]] = []
    kept: list[int] = []

    def popen(command: list[str], *, pass_fds: tuple[int, ...], **_: Any) -> None:
        began.append(command)
        kept.extend(os.dup(descriptor) for descriptor in pass_fds)

    monkeypatch.setattr(source.subprocess, "Popen", popen)
    assert source.start(build, project.root / "config.json") == "started"
    assert began[0][-3:] == ["build", str(project.root / "config.json"), "--locked"]
    assert build.wait(0).state == "running"
    assert source.start(build, project.root / "config.json") == "joined"
    assert len(began) == 1
    os.close(kept[0])
    assert build.wait(0).state == "failed"


def test_the_role_knows_the_cores_that_the_program_knows() -> None:
    known = yaml.safe_load((ROLE / "vars/main.yml").read_text())["__vllm_cores"]
    assert known == {core.name: core.machine for core in cores.CORES.values()}
    specs = yaml.safe_load((ROLE / "meta/argument_specs.yml").read_text())["argument_specs"]
    assert specs["install"]["options"]["vllm_mcpu"]["choices"] == ["", *known]
