"""Role vllm, method source: a build that is not for the core it claims to be for is found out."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ingot_vllm import RefusedError, cores, proof

V1 = cores.CORES["neoverse-v1"]
V2 = cores.CORES["neoverse-v2"]
V3 = cores.CORES["x86-64-v3"]
FLAG = V1.flag
LOOP = """\
void scale(float *a, const float *b, unsigned long n) {
  for (unsigned long i = 0; i < n; i++) a[i] = a[i] * b[i] + 1;
}
"""
# What objdump prints of a loop for neoverse-v1 with matrix instructions in it, and of one for armv8-a.
SVE = """
_C.o:     file format elf64-littleaarch64


Disassembly of section .text:

<scale>:
	cntw	x1
	whilelo	p0.s, wzr, w1
	ld1w	{z0.s}, p0/z, [x0]
	fmla	z0.s, p0/m, z1.s, z2.s
	bfmmla	v0.4s, v1.8h, v2.8h
	smmla	v0.4s, v1.16b, v2.16b
	bfi	x0, x1, #4, #4
	b.ne	<scale+0x4>  // b.any
	...
"""
PLAIN = """
<scale>:
	ldr	q0, [x0]
	fmla	v0.4s, v1.4s, v2.4s
	bfi	x0, x1, #4, #4
	ret
"""
EACH = {"sve": 1, "bf16": 1, "i8mm": 1}


def commands(path: Path, *lines: str) -> Path:
    entries = [{"directory": "/b", "file": f"{n}.cpp", "command": line} for n, line in enumerate(lines)]
    path.write_text(json.dumps(entries))
    return path


def tools(machine: str = "aarch64") -> cores.Compiler:
    return cores.Compiler("g++", "g++ 14", (14,), machine, ("objdump",), ("as",))


# --- the command of each file -------------------------------------------------------------------------------


def test_the_flag_is_the_last_word_for_every_file(tmp_path: Path) -> None:
    path = commands(
        tmp_path / "c.json",
        f"c++ -O3 {FLAG} -c a.cpp",
        f"c++ {FLAG} -march=armv8.2-a {FLAG} '-DA=\"b c\"' -c b.cpp",
    )
    assert proof.check_flags(path, V1) == 2


def test_arguments_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(
        json.dumps([{"directory": "/b", "file": "a.cpp", "arguments": ["c++", FLAG, "-c", "a.cpp"]}])
    )
    assert proof.check_flags(path, V1) == 1


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["c++ -O3 -c a.cpp"], r"0\.cpp without -mcpu=neoverse-v1"),
        (
            [f"c++ {FLAG} -march=armv8.2-a+bf16 -c a.cpp"],
            r"0\.cpp with -march=armv8\.2-a\+bf16, which comes last",
        ),
        ([f"c++ {FLAG} -mcpu=generic -c a.cpp"], r"with -mcpu=generic, which comes last"),
        ([f"c++ {FLAG} -c a.cpp", "c++ -c b.cpp", f"c++ {FLAG} -c c.cpp"], r"1\.cpp without"),
        ([f"c++ {V2.flag} -c a.cpp"], r"with -mcpu=neoverse-v2"),
        (["c++ -c a.cpp"] * 5, r"\(and 2 more\)"),
        ([], "nothing was compiled"),
    ],
    ids=[
        "dropped",
        "overridden by -march",
        "overridden by -mcpu",
        "one file",
        "another core",
        "many",
        "none",
    ],
)
def test_a_flag_that_does_not_hold_is_refused(tmp_path: Path, lines: list[str], says: str) -> None:
    with pytest.raises(RefusedError, match=says):
        proof.check_flags(commands(tmp_path / "c.json", *lines), V1)


def test_a_build_without_a_list_of_commands_proves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="does not say how the files were compiled"):
        proof.check_flags(tmp_path / "absent.json", V1)


# --- what the code consists of ------------------------------------------------------------------------------


def test_instructions_are_counted_by_kind() -> None:
    code = proof.read_code([SVE + PLAIN.replace("scale", "other")], "aarch64")
    assert code.instructions == 12
    assert dict(code.kinds) == {"sve": 3, "bf16": 1, "i8mm": 1}  # bfi is no bfloat16
    assert code.texts["bfi x0, x1, #4, #4"] == 2
    assert code.functions["bfi x0, x1, #4, #4"] == "scale"
    assert code.functions["ret"] == "other"
    assert not any(text.startswith("b.ne") for text in code.texts)


@pytest.mark.parametrize("size", [1, 7, 100])
def test_it_does_not_matter_how_the_disassembly_arrives(size: int) -> None:
    whole = SVE + PLAIN
    parts = [whole[at : at + size] for at in range(0, len(whole), size)]
    assert proof.read_code(parts, "aarch64") == proof.read_code([whole], "aarch64")


def test_a_library_without_sve_is_refused() -> None:
    code = proof.read_code([PLAIN], "aarch64")
    with pytest.raises(
        RefusedError, match=r"not compiled for neoverse-v1: of 4 instructions it has 0 sve \(at least 1\)"
    ):
        proof.check_code("vllm/_C.abi3.so", code, V1, tools(), EACH)


def test_the_extension_has_floors_and_its_helpers_have_none() -> None:
    assert proof.floors_of("vllm/_C.abi3.so", V1) == {"sve": 500, "bf16": 5000, "i8mm": 2000}
    assert proof.floors_of("vllm/spinloop.abi3.so", V1) == {}
    v4 = cores.CORES["x86-64-v4"]
    assert "avx512" in proof.floors_of("vllm/_C_AVX512.abi3.so", v4)
    assert "avx512" not in proof.floors_of("vllm/_C_AVX2.abi3.so", v4)


def test_kernels_that_are_chosen_at_run_time_may_use_more() -> None:
    kernel = "\n<_ZN8arm_gemm4sve2Ev>:\n\tsmlalb\tz0.s, z1.h, z2.h\n\tret\n"
    code = proof.read_code([PLAIN + kernel], "aarch64")
    assert code.dispatched == 2
    assert code.texts["ret"] == 1
    assert not any("smlalb" in text for text in code.texts)


# --- real objects -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def native() -> cores.Compiler:
    if shutil.which("g++") is None:
        pytest.skip("no g++ (files/host-packages.yml has it)")
    found = cores.compiler("g++")
    if found.machine != "x86_64":
        pytest.skip(f"g++ compiles for {found.machine}")
    return found


@pytest.fixture(scope="module")
def cross() -> cores.Compiler:
    if shutil.which("aarch64-linux-gnu-g++") is None:
        pytest.skip("no aarch64-linux-gnu-g++; `tools/source_check.py` has one of its own")
    return cores.compiler("aarch64-linux-gnu-g++")


def library(compiler: cores.Compiler, directory: Path, name: str, *flags: str) -> Path:
    source = directory / "scale.cpp"
    source.write_text(LOOP)
    path = directory / "vllm" / name
    path.parent.mkdir(exist_ok=True)
    subprocess.run([compiler.command, "-O3", "-shared", "-fPIC", *flags, source, "-o", path], check=True)
    return path


def small(core: cores.Core, **floors: int) -> cores.Core:
    return dataclasses.replace(core, floors=floors)


def test_a_library_for_its_core_passes_and_is_described(native: cores.Compiler, tmp_path: Path) -> None:
    library(native, tmp_path, "_C_AVX2.abi3.so", "-march=x86-64-v3")
    facts = proof.check_libraries(tmp_path, small(V3, avx=5, fma=1), native)["vllm/_C_AVX2.abi3.so"]
    assert facts["lacking"] == 0
    assert isinstance(facts["avx"], int) and facts["avx"] >= 5
    assert facts["avx512"] == 0


def test_a_library_that_makes_no_use_of_the_core_is_refused(native: cores.Compiler, tmp_path: Path) -> None:
    library(native, tmp_path, "_C_AVX2.abi3.so", "-march=x86-64")
    with pytest.raises(
        RefusedError, match=r"_C_AVX2\.abi3\.so is not compiled for x86-64-v3: .* 0 avx \(at least 5\)"
    ):
        proof.check_libraries(tmp_path, small(V3, avx=5), native)


def test_instructions_that_the_core_lacks_are_refused_with_their_function(
    native: cores.Compiler, tmp_path: Path
) -> None:
    flags = ("-march=x86-64-v4", "-mprefer-vector-width=512")
    library(native, tmp_path, "_C_AVX2.abi3.so", *flags)
    with pytest.raises(
        RefusedError, match=r"instructions that x86-64-v3 lacks, such as `v.*zmm.*` in _Z5scale"
    ):
        proof.check_libraries(tmp_path, small(V3), native)
    # vLLM loads this one only where the processor has AVX-512.
    (tmp_path / "vllm/_C_AVX2.abi3.so").rename(tmp_path / "vllm/_C_AVX512.abi3.so")
    assert proof.check_libraries(tmp_path, small(V3), native)


def test_what_was_only_packed_is_not_ours_to_prove(native: cores.Compiler, tmp_path: Path) -> None:
    library(native, tmp_path, "_C_AVX2.abi3.so", "-march=x86-64-v3")
    (tmp_path / "vllm/libs").mkdir()
    (tmp_path / "vllm/libs/libtcmalloc_minimal.so.4").write_bytes(b"from elsewhere")
    assert list(proof.check_libraries(tmp_path, small(V3), native)) == ["vllm/_C_AVX2.abi3.so"]


def test_a_wheel_without_an_extension_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="has no compiled extension"):
        proof.check_libraries(tmp_path, V1, tools())


def test_a_file_that_is_no_library_is_refused(native: cores.Compiler, tmp_path: Path) -> None:
    (tmp_path / "_C.abi3.so").write_text("text")
    with pytest.raises(RefusedError, match=r"_C\.abi3\.so cannot be disassembled"):
        proof.check_libraries(tmp_path, V3, native)


def test_an_assembler_that_does_not_know_the_core_proves_nothing(
    native: cores.Compiler, tmp_path: Path
) -> None:
    code = proof.disassemble(library(native, tmp_path, "_C.so"), native)
    with pytest.raises(RefusedError, match="proves nothing"):
        proof.lacking(code, native, "-march=marble", "")
    with pytest.raises(RefusedError, match="proves nothing"):
        proof.lacking(proof.read_code([SVE], "aarch64"), native, "", "")


def test_objects_for_arm(cross: cores.Compiler, tmp_path: Path) -> None:
    library(cross, tmp_path, "_C.abi3.so", FLAG)
    facts = proof.check_libraries(tmp_path, small(V1, sve=1), cross)["vllm/_C.abi3.so"]
    assert facts["lacking"] == 0
    library(cross, tmp_path, "_C.abi3.so", "-march=armv8.2-a")
    with pytest.raises(RefusedError, match="0 sve"):
        proof.check_libraries(tmp_path, small(V1, sve=1), cross)


# --- compilers ----------------------------------------------------------------------------------------------


def script(directory: Path, name: str, **answers: Any) -> str:
    """A compiler that gives these answers, and fails to compile if ``reason`` is among them."""
    version, machine, banner = answers["version"], answers["machine"], answers.get("banner", "g++ (Debian) 1")
    path = directory / name
    path.write_text(
        "#!/bin/sh\ncase $1 in\n"
        f'--version) echo "{banner}";;\n-dumpfullversion) echo {version};;\n'
        f"-dumpmachine) echo {machine}-linux-gnu;;\n"
        f'-print-prog-name=*) echo "${{1#*=}}";;\n'
        + (f'*) echo "cc1plus: error: {answers["reason"]}" >&2; exit 1;;\n' if "reason" in answers else "")
        + "esac\n"
    )
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("core", "answers", "says"),
    [
        ("neoverse-v2", {"version": "12.2.0"}, r"GCC 12\.2\.0, and -mcpu=neoverse-v2 needs GCC 13 or newer"),
        ("neoverse-v1", {"version": "11.4.0"}, r"-mcpu=neoverse-v1 needs GCC 12 or newer"),
        ("x86-64-v3", {"version": "14.2.0"}, r"compiles for aarch64, and x86-64-v3 is a core of x86_64"),
        ("neoverse-v1", {"version": "14.2.0", "banner": "Debian clang version 19"}, "is not GCC"),
        (
            "neoverse-v2",
            {"version": "14.2.0", "reason": "unknown value 'neoverse-v2' for '-mcpu'"},
            r"cannot compile with -mcpu=neoverse-v2: cc1plus: error: unknown value",
        ),
    ],
    ids=["GCC too old for v2", "GCC too old for v1", "another architecture", "clang", "flag not known"],
)
def test_a_compiler_that_cannot_is_refused_by_name(
    tmp_path: Path, core: str, answers: dict[str, str], says: str
) -> None:
    command = script(tmp_path, "c++", **{"machine": "aarch64", **answers})
    with pytest.raises(RefusedError, match=says):
        cores.refuse_compiler(cores.find(core), cores.compiler(command))


def test_a_compiler_that_can_is_taken(tmp_path: Path) -> None:
    command = script(tmp_path, "c++", version="13.3.0", machine="aarch64")
    cores.refuse_compiler(V2, cores.compiler(command))


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(RefusedError, match=r"no compiler c\+\+-99 here: .*vllm_cxx"):
        cores.compiler("c++-99")
    with pytest.raises(RefusedError, match=r'vllm_mcpu "graviton9" is not known; the cores are neoverse-v1'):
        cores.find("graviton9")
