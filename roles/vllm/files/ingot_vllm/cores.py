"""The cores that vLLM can be compiled for, and the compilers that can do it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field

from ingot_vllm import RefusedError

#: Words of /proc/cpuinfo. What GCC may use for the core, less what only hand-written code uses (rng, paca).
_NEOVERSE_V1 = (
    *("fphp", "asimdhp", "atomics", "asimdrdm", "asimddp", "asimdfhm", "fcma", "jscvt", "lrcpc", "ilrcpc"),
    *("sve", "bf16", "i8mm"),
)
_X86_64_V3 = ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave", "popcnt", "sse4_2")
_AVX512 = ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
# What GNU as calls the same. It has no name for these levels.
_X86_64_V3_AS = "-march=generic64+cx16+popcnt+rdtscp+ibt+avx2+bmi+bmi2+f16c+fma+lzcnt+movbe+xsave"
_SPINLOOP_AS = f"{_X86_64_V3_AS}+mwaitx"  # it asks the processor before it waits so
_AVX512_AS = "+avx512f+avx512bw+avx512cd+avx512dq+avx512vl"


@dataclass(frozen=True)
class Core:
    """What to compile for, and what must and must not be found in the result."""

    name: str
    machine: str  # as `uname -m` says it
    flag: str
    gcc: tuple[int, ...]  # the first that knows the core, or that vLLM accepts
    features: tuple[str, ...]  # words of /proc/cpuinfo that the result needs
    floors: dict[str, int]  # least number of instructions of a kind in vLLM's extension (proof.KINDS)
    # Flags with which the assembler knows this core alone, by extension ("" is any other). On Arm the
    # compiler says it.
    assembler: dict[str, str] = field(default_factory=dict)
    unchecked: tuple[str, ...] = ()  # extensions that vLLM only loads where a richer core is
    predecessor: str = ""  # flag of the core before: what that one lacks is counted as "newer"
    environment: dict[str, str] = field(default_factory=dict)  # for vLLM's own build

    @property
    def needs(self) -> str:
        """For messages."""
        return f"{self.flag} needs GCC {'.'.join(map(str, self.gcc))} or newer"


_ARM = {"VLLM_CPU_ARM_BF16": "1", "VLLM_CPU_ARM_I8MM": "1"}
# The floors of the Arm cores are about half of what a build of vLLM 0.32 for neoverse-v1 has (GCC 14: bfmmla
# and bfdot 10,858, smmla 4,213); its predicated loops alone (whilelo 674, ptrue 159) exceed that of SVE.
CORES = {
    core.name: core
    for core in (
        Core(
            name="neoverse-v1",
            machine="aarch64",
            flag="-mcpu=neoverse-v1",
            gcc=(12,),
            features=_NEOVERSE_V1,
            floors={"sve": 500, "bf16": 5000, "i8mm": 2000},
            environment=_ARM,
        ),
        Core(
            name="neoverse-v2",
            machine="aarch64",
            flag="-mcpu=neoverse-v2",
            gcc=(13,),
            features=(*_NEOVERSE_V1, "sve2", "svebitperm"),
            # GCC prefers its 128-bit Advanced SIMD more often here: half the SVE where both were compared.
            floors={"sve": 100, "bf16": 5000, "i8mm": 2000},
            predecessor="-mcpu=neoverse-v1",
            environment=_ARM,
        ),
        Core(
            name="x86-64-v3",
            machine="x86_64",
            flag="-march=x86-64-v3",
            gcc=(12, 3),
            features=_X86_64_V3,
            floors={"avx": 5000, "fma": 500},
            # vLLM builds three extensions and loads the one that the processor can run.
            assembler={"": _X86_64_V3_AS, "_C_AVX512": _X86_64_V3_AS + _AVX512_AS, "spinloop": _SPINLOOP_AS},
            unchecked=("_C",),
        ),
        Core(
            name="x86-64-v4",
            machine="x86_64",
            flag="-march=x86-64-v4",
            gcc=(12, 3),
            features=(*_X86_64_V3, *_AVX512),
            floors={"avx": 5000, "fma": 500, "avx512": 2000},
            assembler={"": _X86_64_V3_AS + _AVX512_AS, "spinloop": _SPINLOOP_AS + _AVX512_AS},
            unchecked=("_C",),
        ),
    )
}


def find(name: str) -> Core:
    if name not in CORES:
        raise RefusedError(f'vllm_mcpu "{name}" is not known; the cores are {", ".join(CORES)}')
    return CORES[name]


class NoCompilerError(RefusedError):
    """There is no compiler at all, which on a baked node is as it should be."""


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler and the tools that belong to it. ``prefix`` comes before each command (a chroot)."""

    command: str
    banner: str  # first line of --version, which has the distribution's revision too
    version: tuple[int, ...]
    machine: str
    objdump: tuple[str, ...]
    assembler: tuple[str, ...]
    prefix: tuple[str, ...] = ()


def _ask(prefix: Sequence[str], *command: str) -> str:
    try:
        done = subprocess.run([*prefix, *command], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def compiler(command: str, prefix: Sequence[str] = ()) -> Compiler:
    """Look at a compiler.

    Raises:
        NoCompilerError: there is none.
        RefusedError: it is not GCC.
    """
    if not prefix and shutil.which(command) is None:
        raise NoCompilerError(f"there is no compiler {command} here: install it, or name another in vllm_cxx")
    banner = _ask(prefix, command, "--version").partition("\n")[0]
    version = tuple(int(part) for part in re.findall(r"\d+", _ask(prefix, command, "-dumpfullversion")))
    if not version or "clang" in banner.lower():
        raise RefusedError(
            f"{command} ({banner or 'no answer'}) is not GCC, with which these builds are proved"
        )
    tools = {}
    for tool in ("objdump", "as"):
        # A cross compiler knows its own; a native one says the bare name, which is looked up as usual.
        tools[tool] = _ask(prefix, command, f"-print-prog-name={tool}") or tool
    return Compiler(
        command=command,
        banner=banner,
        version=version,
        machine=_ask(prefix, command, "-dumpmachine").partition("-")[0],
        objdump=(*prefix, tools["objdump"]),
        assembler=(*prefix, tools["as"]),
        prefix=tuple(prefix),
    )


def refuse_compiler(core: Core, found: Compiler) -> None:
    """Refuse a compiler that cannot compile for a core, before hours are spent with it."""
    version = ".".join(map(str, found.version))
    if found.machine != core.machine:
        raise RefusedError(
            f"{found.command} compiles for {found.machine}, and {core.name} is a core of {core.machine}:"
            " set vllm_mcpu to one of this machine's architecture"
        )
    if found.version < core.gcc:
        raise RefusedError(
            f"{found.command} is GCC {version}, and {core.needs} (vllm_mcpu: {core.name}): install a newer"
            " GCC and name it in vllm_cxx and vllm_cc, or bake on a newer base image"
        )
    trial = [*found.prefix, found.command, core.flag, "-x", "c++", "-fsyntax-only", "/dev/null"]
    done = subprocess.run(trial, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip())
        raise RefusedError(f"{found.command} (GCC {version}) cannot compile with {core.flag}: {reason}")
