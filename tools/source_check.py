"""Proves on vLLM's real sources that they are compiled for the Arm cores that Ingot has images for.

In a Debian 13 tree with its cross compiler, the pinned sdist with our patches is configured for each core,
the command of each file is read, one file of the extension and one of oneDNN are compiled and disassembled.
Without our patch the same proof must fail. Stand-ins: torch's headers are those of its x86_64 wheel, and
/proc/cpuinfo is a file with the core's features. No machine is started; root is needed for chroot.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tarfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

from ingot.rehearsal import mirror_content, trees
from ingot.rehearsal.config import Settings
from steps import ROOT, ToolError, cache_dir, fail, run, seconds, step, versions

sys.path.insert(0, str(ROOT / "roles/vllm/files"))  # what runs on a builder

from ingot_vllm import RefusedError, builder, cores, patching, proof

FILES = ROOT / "roles/vllm/files"
CORES = ("neoverse-v1", "neoverse-v2")
PACKAGES = ("cmake", "ninja-build", "g++-14-aarch64-linux-gnu", "python3-dev")
INSIDE = "/compiled"  # of the tree: what is compiled there
CC, CXX = "aarch64-linux-gnu-gcc-14", "aarch64-linux-gnu-g++-14"
#: One file of each, and what it must have: loops for SVE, a conversion for bfloat16.
EXTENSION = ("csrc/cpu/mla_decode.cpp", {"sve": 5, "bf16": 1})
ONEDNN = ("src/cpu/gemm/f32/ref_gemm_f32.cpp", {"sve": 100})


def tree() -> Path:
    """A Debian tree with the cross compiler, made once for these packages."""
    with step(f"Debian {versions()['debian_version']} with {PACKAGES[2]}") as state:
        home = cache_dir() / "source-check" / trees.key_of({"packages": PACKAGES})
        if home.exists():
            state.note = "there"
        options = ["--variant=minbase", f"--include={','.join(PACKAGES)}"]
        try:
            trees.make(home, "the tree with the cross compiler", options, finish=lambda _: None)
        except trees.TreeError as error:
            raise ToolError(str(error)) from error
        return home / "tree"


def torch_headers(target: Path) -> None:
    """The headers of torch's wheel, and as much of a package as vLLM's cmake files ask for."""
    settings = Settings.from_environment()
    mirror_content.ensure(settings)
    (wheel,) = (settings.mirror / "wheels").glob(f"torch-{versions()['torch']}-*x86_64.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target, [name for name in archive.namelist() if name.startswith("torch/include/")])
    (target / "torch/lib").mkdir()
    (target / "torch/__init__.py").write_text("class utils:\n    cmake_prefix_path = '/nowhere'\n")


class Sources:
    """A directory within the tree: what is compiled, seen from inside as ``INSIDE``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.work = root / INSIDE.strip("/")
        self.prefix = ("chroot", str(root))
        self.compiler = cores.compiler(CXX, self.prefix)

    def fill(self) -> None:
        pinned = yaml.safe_load(mirror_content.SOURCES.read_text())
        settings = Settings.from_environment()
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir()
        for name, key in (("vllm", "vllm"), ("onednn", "onednn_crate")):
            with tarfile.open(mirror_content.ensure_source(settings, key, lambda _: None)) as archive:
                archive.extractall(self.work / f"{name}.unpacked")  # its hash was checked
            (top,) = (self.work / f"{name}.unpacked").iterdir()
            (top / pinned[key].get("path", "")).rename(self.work / name)
        shutil.copytree(self.work / "vllm", self.work / "vllm-unpatched")
        patches = FILES / "source-patches"
        patching.apply_all(
            patches, self.work / "vllm", "sdist", versions()["vllm"], choices=("no-acl",), dry_run=False
        )
        off = patching.read_patch(patches / "acl-off.patch")  # it would be fetched
        patching.apply(off, versions()["vllm"], self.work / "vllm-unpatched", dry_run=False)
        torch_headers(self.work / "site")
        shutil.copytree(FILES / "torch-cmake", self.work / "torch-cmake")
        uname = self.work / "uname"  # what cmake takes the machine's name from
        uname.write_text('#!/bin/sh\n[ "$1" = -m ] && { echo aarch64; exit; }\nexec /usr/bin/uname "$@"\n')
        uname.chmod(0o755)
        features = " ".join(("fp", "asimd", *cores.CORES["neoverse-v1"].features))
        (self.root / "proc/cpuinfo").write_text(f"processor\t: 0\nFeatures\t: {features}\n")

    def inside(self, core: cores.Core, *command: str) -> None:
        environment = {
            **builder.compiler_environment(core, CC, CXX, INSIDE),
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": f"{INSIDE}/site",
            "FETCHCONTENT_SOURCE_DIR_ONEDNN": f"{INSIDE}/onednn",
        }
        words = [f"{name}={value}" for name, value in environment.items()]
        run([*self.prefix, "/usr/bin/env", "-i", *words, *command])

    def configure(self, core: cores.Core, source: str, build: str) -> Path:
        gomp = "/usr/lib/gcc-cross/aarch64-linux-gnu/14/libgomp.so"
        arguments = builder.cmake_arguments(core, f"{INSIDE}/torch-cmake", f"{INSIDE}/site/torch")
        arguments += [f"-DCMAKE_BUILD_TYPE={builder.BUILD_TYPE}", "-DVLLM_TARGET_DEVICE=cpu"]
        arguments += [
            "-DVLLM_PYTHON_EXECUTABLE=/usr/bin/python3",
            f"-DCMAKE_UNAME={INSIDE}/uname",
            f"-DOPEN_MP={gomp}",
        ]
        self.inside(
            core,
            "cmake",
            "-Wno-dev",
            "-G",
            "Ninja",
            "-S",
            f"{INSIDE}/{source}",
            "-B",
            f"{INSIDE}/{build}",
            *arguments,
        )
        return self.work / build / "compile_commands.json"

    def compile(self, core: cores.Core, build: str, source: str) -> str:
        """Compile one file; its object as the tree names it."""
        entries = json.loads((self.work / build / "compile_commands.json").read_text())
        (output,) = {entry["output"] for entry in entries if entry["file"].endswith(f"/{source}")}
        self.inside(core, "ninja", "-C", f"{INSIDE}/{build}", output)
        return f"{INSIDE}/{build}/{output}"


def prove(sources: Sources, name: str) -> str:
    """Configure and compile for one core; a line about what was found."""
    core = cores.find(name)
    began = time.monotonic()
    cores.refuse_compiler(core, sources.compiler)
    build = f"build-{name}"
    files = proof.check_flags(sources.configure(core, "vllm", build), core)
    lines = [f"{name}: {core.flag} is the last word for all of {files} files"]
    for source, floors in (ONEDNN, EXTENSION):
        code = proof.disassemble(sources.compile(core, build, source), sources.compiler)
        facts = proof.check_code(f"{source} for {name}", code, core, sources.compiler, floors)
        lines.append(f"{source}: {', '.join(f'{kind} {count}' for kind, count in facts.items())}")
    return "\n    ".join([*lines, f"({seconds(time.monotonic() - began)})"])


def main() -> int:
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    try:
        sources = Sources(tree())
        with step("vLLM's sources, patched; oneDNN; torch's headers"):
            sources.fill()
        with step("Without our patch the proof fails") as state:
            core = cores.find(CORES[0])
            commands = sources.configure(core, "vllm-unpatched", "build-unpatched")
            try:
                proof.check_flags(commands, core)
            except RefusedError as refusal:
                state.note = str(refusal)
            else:
                raise ToolError(
                    "vLLM's sources as they are pass for a core's: core-flag.patch is not needed any more"
                )
        title = f"{' and '.join(CORES)}, one file each of the extension and of oneDNN"
        with step(title) as state, ThreadPoolExecutor(len(CORES)) as pool:
            state.note = "\n    ".join(pool.map(lambda name: prove(sources, name), CORES))
        shutil.rmtree(sources.work)
    except (RefusedError, mirror_content.MirrorError) as error:
        return fail(ToolError(str(error)))
    except ToolError as problem:
        return fail(problem)
    return 0


if __name__ == "__main__":
    sys.exit(main())
