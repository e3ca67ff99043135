"""Builds a wheel of vLLM for one core from its sources; what an interrupted build has done is kept."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingot_vllm import RefusedError, machine, patching, proof, wheel
from ingot_vllm.cores import Compiler, Core, compiler, find, refuse_compiler
from ingot_vllm.progress import Status, first_error, read_status

#: Raised when this program builds otherwise from the same inputs.
RECIPE = 1
BUILD_TYPE = "Release"
START_GRACE = 30.0


@dataclass(frozen=True)
class Source:
    """An archive by its hash; ``path`` is the part of it that is wanted, below its one directory."""

    file: Path
    sha256: str
    path: str = ""


@dataclass(frozen=True)
class Config:
    """What the role wrote down for a build."""

    core: str
    version: str
    cxx: str
    cc: str
    jobs: int
    work: Path
    patches: Path
    torch_cmake: Path
    tools: Path  # the environment with cmake, ninja and setuptools
    tools_sha256: str  # of its lock
    sdist: Source
    onednn: Source
    acl: Source | None  # Arm Compute Library, where it is wanted

    @classmethod
    def read(cls, path: Path) -> Config:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for name in ("work", "patches", "torch_cmake", "tools"):
            data[name] = Path(data[name])
        for name in ("sdist", "onednn", "acl"):
            if data.get(name):
                data[name] = Source(**{**data[name], "file": Path(data[name]["file"])})
        return cls(**{**data, "acl": data.get("acl") or None})


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def torch_root() -> Path:
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise RefusedError(f"{sys.prefix} has no torch, which vLLM is compiled against")
    return Path(spec.submodule_search_locations[0])


def files_of(torch: importlib.metadata.Distribution) -> str:
    """A hash of what a distribution's own files are, whatever installed it."""
    lines = (torch.read_text("RECORD") or "").splitlines()
    return hashlib.sha256("\n".join(sorted(x for x in lines if x.startswith("torch/"))).encode()).hexdigest()


def torch_is_for_cuda(root: Path) -> bool:
    return re.search(r"^cuda\b.*=\s*['\"]", (root / "version.py").read_text(), re.MULTILINE) is not None


def tcmalloc() -> str:
    """The hash of the allocator that vLLM's setup copies into the wheel, where the builder has it."""
    listing = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    paths = re.findall(r"libtcmalloc(?:_minimal)?\.so\.\d+ .*=> (\S+)", listing)
    return sha256_of(Path(paths[0])) if paths else ""


def cmake_arguments(core: Core, torch_package_file: Path | str, torch_for_cuda: Path | str) -> list[str]:
    """What cmake is told; ``torch_for_cuda`` is a torch whose own package file asks for CUDA's toolkit."""
    arguments = [
        "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",  # before the first target: vLLM sets it for some only
        f"-DONEDNN_ARCH_OPT_FLAGS={core.flag}",  # instead of -mcpu=generic or -msse4.1
    ]
    if torch_for_cuda:
        arguments += [f"-DTorch_DIR={torch_package_file}", f"-DINGOT_TORCH_ROOT={torch_for_cuda}"]
    return arguments


def compiler_environment(core: Core, cc: str, cxx: str, directory: Path | str) -> dict[str, str]:
    """What the compilers are told, every file's and those of what is built beside it."""
    # Builds from the same inputs have the same paths, and what is compiled has none of them.
    flags = f"{core.flag} -ffile-prefix-map={directory}=."
    return {
        **core.environment,
        "CC": cc,
        "CXX": cxx,
        "CFLAGS": flags,
        "CXXFLAGS": flags,
        "INGOT_CORE_FLAG": core.flag,
        "SOURCE_DATE_EPOCH": "315532800",
    }


class Build:
    """One build. The directory's name is the key, so that what is in it was made from the same inputs."""

    def __init__(self, config: Config, compiler_was: str = "") -> None:
        self.config = config
        self.core: Core = find(config.core)
        self.compiler_is = compiler_was
        if not compiler_was:
            self.compiler: Compiler = compiler(config.cxx)
            refuse_compiler(self.core, self.compiler)
            self.compiler_is = f"{self.compiler.banner} {self.compiler.machine}"
        if self.core.machine == "aarch64":
            self.choices: tuple[str, ...] = ("acl",) if config.acl else ("no-acl",)
        else:
            self.choices = ()
        self.inputs = self._inputs()
        self.key = wheel.key_of(self.inputs)
        self.directory = config.work / self.key
        self.status_file = self.directory / "status.json"
        self.log = self.directory / "build.log"
        self.tree = self.directory / "vllm"

    def _inputs(self) -> dict[str, Any]:
        torch = importlib.metadata.distribution("torch")
        patches = sorted(self.config.patches.glob("*.patch"))
        meant = {patch.name for patch in patching.wanted(self.config.patches, "sdist", self.choices)}
        return {
            "acl": self.config.acl.sha256 if self.config.acl else None,
            "build_type": BUILD_TYPE,
            "compiler": self.compiler_is,
            "core": self.core.name,
            "flag": self.core.flag,
            "onednn": self.config.onednn.sha256,
            "patches": {path.stem: sha256_of(path) for path in patches if path.stem in meant},
            "python": sysconfig.get_python_version(),
            "recipe": RECIPE,
            "sdist": self.config.sdist.sha256,
            "tcmalloc": tcmalloc(),
            "tools": self.config.tools_sha256,
            "torch": torch.version,
            # Two builds of one version differ in their files.
            "torch_files": files_of(torch),
            "version": self.config.version,
        }

    # --- the parts of a build -------------------------------------------------------------------------------

    def unpack(self, source: Source, target: Path) -> None:
        """Unpack a source once; what is there is whole."""
        if target.exists():
            return
        if (found := sha256_of(source.file)) != source.sha256:
            raise RefusedError(
                f"{source.file} has the sha256 {found}, expected is {source.sha256}: remove it"
            )
        partial = target.with_name(f".{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        with tarfile.open(source.file) as archive:
            if hasattr(tarfile, "data_filter"):
                archive.extractall(partial, filter="data")
            else:  # Python before 3.11.4; what is unpacked has the hash that was asked for
                archive.extractall(partial)
        (top,) = partial.iterdir()
        wanted = top / source.path
        if not wanted.is_dir():
            raise RefusedError(f"{source.file} has no directory {source.path}")
        wanted.rename(target)
        shutil.rmtree(partial, ignore_errors=True)

    def prepare(self) -> None:
        self.unpack(self.config.sdist, self.tree)
        self.unpack(self.config.onednn, self.directory / "onednn")
        if self.config.acl:
            self.unpack(self.config.acl, self.directory / "acl")
        version = self.config.version
        patching.apply_all(
            self.config.patches, self.tree, "sdist", version, choices=self.choices, dry_run=False
        )

    def environment(self, jobs: int) -> dict[str, str]:
        torch = torch_root()
        packages = next(self.config.tools.glob("lib/python3*/site-packages"), None)
        if packages is None:
            raise RefusedError(
                f"{self.config.tools} is no Python environment: the build's tools are not there"
            )
        arguments = cmake_arguments(
            self.core, self.config.torch_cmake, torch if torch_is_for_cuda(torch) else ""
        )
        passed = {name: value for name, value in os.environ.items() if name in ("LANG", "TMPDIR", "HOME")}
        return {
            **passed,
            **compiler_environment(self.core, self.config.cc, self.config.cxx, self.directory),
            "PATH": f"{self.config.tools / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHONPATH": f"{packages}:{torch.parent}",
            "CMAKE_ARGS": " ".join(arguments),
            "CMAKE_BUILD_TYPE": BUILD_TYPE,
            "FETCHCONTENT_SOURCE_DIR_ONEDNN": str(self.directory / "onednn"),
            **({"ACL_ROOT_DIR": str(self.directory / "acl")} if self.config.acl else {}),
            "MAX_JOBS": str(jobs),
            "VLLM_TARGET_DEVICE": "cpu",
            "VLLM_VERSION_OVERRIDE": f"{self.config.version}+cpu",  # without +cpu it takes itself for CUDA's
            "VLLM_DISABLE_SCCACHE": "1",
            "CARGO": "/nonexistent",  # the front end in Rust is optional, and would download its dependencies
        }

    def compile(self, status: Status, jobs: int) -> Path:
        """Run vLLM's own build; the wheel."""
        made = self.directory / "made"
        shutil.rmtree(made, ignore_errors=True)
        command = [sys.executable, "setup.py", "bdist_wheel", "--dist-dir", str(made)]
        with self.log.open("w", encoding="utf-8") as log:
            process = subprocess.Popen(
                command,
                cwd=self.tree,
                env=self.environment(jobs),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
            assert process.stdout is not None
            for line in process.stdout:
                log.write(line)
                if status.read_line(line):
                    status.write(self.status_file)
        if process.wait() != 0:
            with self.log.open(encoding="utf-8", errors="replace") as log:
                raise RefusedError(
                    f"vLLM could not be compiled: {first_error(log, jobs)}. All of it: {self.log}"
                )
        (built,) = made.glob("*.whl")
        return built

    def prove(self, built: Path) -> dict[str, Any]:
        """What the compiled files say; a refusal where they are not for the core."""
        commands = sorted(self.tree.glob("build/temp*/compile_commands.json"))
        if not commands:
            raise RefusedError(
                f"{self.tree}/build has no compile_commands.json: nothing proves how it was compiled"
            )
        files = sum(proof.check_flags(path, self.core) for path in commands)
        inside = self.directory / "inside"
        shutil.rmtree(inside, ignore_errors=True)
        with zipfile.ZipFile(built) as archive:
            archive.extractall(inside, [name for name in archive.namelist() if ".so" in name])
        libraries = proof.check_libraries(inside, self.core, self.compiler)
        shutil.rmtree(inside)
        return {"files": files, "libraries": libraries}

    def record(self, proved: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "key": self.key,
            "inputs": self.inputs,
            "cpu": self.core.name,
            "flag": self.core.flag,
            "cpu_features": list(self.core.features),
            "compiler": self.compiler.banner,
            "acl": bool(self.config.acl),
            **proved,
        }

    # --- a build as a process -------------------------------------------------------------------------------

    def lock(self) -> int | None:
        """The right to build in the directory, or nothing while another process has it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.directory / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def run(self) -> Path:
        """Build, prove and pack; the wheel. Whoever calls has the lock."""
        self.directory.mkdir(parents=True, exist_ok=True)
        status = Status(began=time.time(), phase="unpacking")
        status.write(self.status_file)
        try:
            jobs = machine.jobs(machine.cores(), machine.available_memory(), self.config.jobs)
            self.prepare()
            status.phase = f"configuring (then {jobs} at a time)"
            status.write(self.status_file)
            built = self.compile(status, jobs)
            status.phase, status.total = "proving", 0
            status.write(self.status_file)
            target = self.directory / built.name
            wheel.stamp(built, target, self.record(self.prove(built)))
            wheel.check(target, self.key)
        except RefusedError as error:
            status.state, status.message = "failed", str(error)
            raise
        except BaseException as error:  # whoever waits must be told, whatever it was
            status.state, status.message = "failed", f"the build ended: {type(error).__name__}: {error}"
            raise
        else:
            status.state, status.message = "done", str(target)
        finally:
            status.write(self.status_file)
        return target

    def wait(self, seconds: float, poll: float = 1.0) -> Status:
        """The state after some time, or as soon as the build has ended."""
        began = time.monotonic()
        while True:
            status = read_status(self.status_file)
            if status and status.state != "running":
                return status
            held = self.lock()
            if held is not None:
                os.close(held)
                status = read_status(self.status_file) or Status()
                if status.state == "running":  # nobody builds any more, and nobody said why
                    status.state = "failed"
                    status.message = (
                        "the build was ended from outside, most likely for want of memory (`journalctl -k`):"
                        " run the role again, it goes on where it stopped"
                    )
                return status
            if time.monotonic() - began > seconds:
                return status or Status(began=time.time())
            time.sleep(poll)
