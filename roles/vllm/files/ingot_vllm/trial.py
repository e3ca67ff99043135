"""Whether the C++ compiler of a node makes what torch.compile will ask of it.

torch tries its compiler by itself, and takes a failure for a processor without vectors: the engine is slower
then, or fails at the first shape that it compiles, and the reason is in no log.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ingot_vllm import RefusedError

# As torch 2.13 compiles: torch/_inductor/cpp_builder.py (_get_cpu_arch_cflags) and cpu_vec_isa.py (VecSVE).
_OPTIONS = ("-O3", "-ffast-math", "-fopenmp", "-shared", "-fPIC")
_NATIVE = "-march=native"
_SVE = "-march=armv8-a+sve+bf16"
_SVE2 = "-march=armv9-a+sve2+fp16fml+sha3+bf16+i8mm"
_SOURCE = """\
#include <Python.h>
#include <cmath>
#include <omp.h>
extern "C" float trial(long count) {
    float sum = 0;
    #pragma omp parallel for simd reduction(+ : sum)
    for (long i = 0; i < count; ++i) sum += std::exp(-static_cast<float>(i));
    return sum;
}
"""
_CALL = """\
import ctypes, sys
function = ctypes.CDLL(sys.argv[1]).trial
function.restype, function.argtypes = ctypes.c_float, [ctypes.c_long]
sys.exit(0 if abs(function(64) - 1.5819767) < 1e-3 else "it computes wrongly")
"""
_ADVICE = (
    "install a GCC from 12 on, named in CXX, or have the engine run eagerly (enforce_eager) and set"
    " vllm_compiler to false"
)


def flags(cpuinfo: str) -> list[str]:
    """What torch tells the compiler of this processor."""
    features = re.search(r"^Features\s*:(.*)$", cpuinfo, flags=re.MULTILINE)
    has = features[1].split() if features else []
    arm = [_SVE2] if "sve2" in has else [_SVE] if "sve" in has else []
    return [_NATIVE, *arm]


def run(cpuinfo: Path = Path("/proc/cpuinfo"), compiler: str = "") -> str:
    """Compile a small program for this processor, and run it. Returns the compiler's own name and version.

    Raises:
        RefusedError: there is none, or it cannot; with its first error.
    """
    command = compiler or os.environ.get("CXX", "g++")
    banner = _said([command, "--version"], "there is no C++ compiler").partition("\n")[0]
    with tempfile.TemporaryDirectory() as directory:
        source, library = Path(directory, "trial.cpp"), Path(directory, "trial.so")
        source.write_text(_SOURCE)
        include = f"-I{sysconfig.get_path('include')}"
        for flag in flags(cpuinfo.read_text()):
            problem = f"{command} ({banner}) cannot compile with {flag} what torch.compile needs"
            _said([command, flag, *_OPTIONS, include, str(source), "-o", str(library)], problem)
            _said(
                [sys.executable, "-I", "-c", _CALL, str(library)],
                f"what {command} makes with {flag} does not run",
            )
    return banner


def _said(command: Sequence[str], problem: str) -> str:
    plain = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=plain)
    except OSError as error:
        raise RefusedError(f"{problem}: {command[0]}: {error.strerror}; {_ADVICE}") from error
    if done.returncode == 0:
        return done.stdout
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    reason = next(
        (line for line in lines if "error" in line.lower()), lines[-1] if lines else "it said nothing"
    )
    if done.returncode < 0:
        reason = f"ended by {signal.Signals(-done.returncode).name}"
    raise RefusedError(f"{problem}: {reason}; {_ADVICE}")
