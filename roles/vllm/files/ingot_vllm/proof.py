"""Proofs that a build is for the core that was asked for: the command of each file, and disassembly."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ingot_vllm import RefusedError
from ingot_vllm.cores import Compiler, Core

#: Kinds of instructions by their text, "mnemonic operands" as objdump prints it.
KINDS = {
    "aarch64": {
        "sve": re.compile(r"\b(?:z\d+\.[bhsdq]|p\d+(?:\.[bhsd]|/[mz]))"),
        "bf16": re.compile(r"^(?:bfmmla|bfdot|bfmlal[bt]|bfcvtn?t?2?)\b"),
        "i8mm": re.compile(r"^(?:[su]mmla|usmmla|usdot|sudot)\b"),
    },
    "x86_64": {
        "avx": re.compile(r"^v\w+ .*%[xy]mm\d"),
        "fma": re.compile(r"^vfn?m(?:add|sub)\w*\b"),
        "avx512": re.compile(r"%zmm\d+|%k[0-7]\b|%[xy]mm(?:1[6-9]|2\d|3[01])\b"),
        "amx": re.compile(r"%tmm\d"),
    },
}
# Kernels of Arm Compute Library are compiled for many cores and chosen when the program runs; Intel's tracing
# calls its one instruction where there is a tracer.
DISPATCHED = re.compile(r"arm_gemm|arm_conv|arm_compute|^__itt_")
_LACKS = re.compile(
    r"selected processor does not support|is not supported on|bad register name|not supported in"
)
# Where a branch or an address leads: not two are alike, and elsewhere they mean nothing.
_TARGET = re.compile(r"<[^\n]*")
# What comes from elsewhere and is only packed into the wheel.
BUNDLED = ("libs/",)


def check_flags(commands: Path, core: Core) -> int:
    """The number of files compiled, each with the core's flag as the last word on what to compile for.

    Raises:
        RefusedError: a file was compiled without the flag, or with one that overrides it.
    """
    try:
        entries = json.loads(commands.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RefusedError(f"{commands} does not say how the files were compiled: {error}") from error
    if not entries:
        raise RefusedError(f"{commands} is empty: nothing was compiled, so nothing is proved")
    wrong = []
    for entry in entries:
        words = entry.get("arguments") or shlex.split(entry["command"])
        chosen = [word for word in words if word.startswith(("-march=", "-mcpu="))]
        if not chosen:
            wrong.append(f"{entry['file']} without {core.flag}")
        elif chosen[-1] != core.flag:
            wrong.append(f"{entry['file']} with {chosen[-1]}, which comes last and wins")
    if wrong:
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        raise RefusedError(f"not everything was compiled for {core.name}: {'; '.join(wrong[:3])}{more}")
    return len(entries)


@dataclass
class Code:
    """What a file's machine code consists of."""

    instructions: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    texts: Counter[str] = field(default_factory=Counter)  # of code that runs on whatever core there is
    functions: dict[str, str] = field(default_factory=dict)  # an instruction's text to a function that has it
    dispatched: int = 0


def _instruction(line: str, machine: str) -> str:
    """An instruction as an assembler reads it, or nothing."""
    match = re.match(r"\t([a-z].*)$", line)
    if match is None:
        return ""
    text = match[1].partition("//" if machine == "aarch64" else " # ")[0].strip()
    return re.sub(r"\s+", " ", text)


def read_code(parts: Iterable[str], machine: str) -> Code:
    """Read what ``objdump --disassemble --no-show-raw-insn --no-addresses`` prints, in parts of any size.

    A library has millions of lines, of which few differ: they are counted as they are, function by function,
    and read once each.
    """
    counted: Counter[str] = Counter()
    dispatched: Counter[str] = Counter()
    functions: dict[str, str] = {}

    def take(block: str) -> None:
        label, _, body = block.lstrip("\n").partition("\n")
        if not (found := re.match(r"<(.+)>:$", label)):
            return
        lines = _TARGET.sub("<>", body).split("\n")
        if DISPATCHED.search(found[1]):
            dispatched.update(lines)
            return
        counted.update(lines)
        functions.update(dict.fromkeys(set(lines).difference(functions), found[1]))

    rest = ""
    for part in parts:
        *blocks, rest = (rest + part).split("\n\n")
        for block in blocks:
            take(block)
    take(rest)

    code = Code()
    for line, count in (counted + dispatched).items():
        if text := _instruction(line, machine):
            code.instructions += count
            code.dispatched += dispatched[line]
            for kind, pattern in KINDS[machine].items():
                if pattern.search(text):
                    code.kinds[kind] += count
            if line in functions and "<" not in text:
                code.texts[text] += counted[line]
                code.functions.setdefault(text, functions[line])
    return code


def disassemble(path: Path | str, tools: Compiler) -> Code:
    command = [*tools.objdump, "--disassemble", "--no-show-raw-insn", "--no-addresses", str(path)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    assert process.stdout and process.stderr
    code = read_code(iter(partial(process.stdout.read, 1 << 20), ""), tools.machine)
    complaint = process.stderr.read().strip()
    if process.wait() != 0 or not code.instructions:
        raise RefusedError(f"{path} cannot be disassembled: {complaint or 'it has no code'}")
    return code


def assembler_of(core: Core, tools: Compiler, name: str) -> tuple[str, str]:
    """A flag and a first line that make the assembler know what one core has, and no more.

    On Arm the compiler writes that line into its own output; the assembler knows fewer cores by name.
    """
    if core.assembler:
        return core.assembler.get(extension(name), core.assembler[""]), ""
    return "", architecture_of(core.flag, tools)


def architecture_of(flag: str, tools: Compiler) -> str:
    command = [*tools.prefix, tools.command, flag, "-x", "c++", "-S", "-o", "-", "/dev/null"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    line = next((line.strip() for line in done.stdout.splitlines() if ".arch" in line), "")
    if not line:
        raise RefusedError(
            f"{' '.join(command)} does not say which architecture that is: {done.stderr.strip()}"
        )
    return line


def lacking(code: Code, tools: Compiler, flag: str, first: str) -> Counter[str]:
    """The instructions that a core lacks: the assembler has the tables of what each core has."""
    texts = list(code.texts)
    options = [option for option in ("--64" if tools.machine == "x86_64" else "", flag) if option]
    command = [*tools.assembler, *options, "-o", "/dev/null", "-"]
    source = "".join(f"{text}\n" for text in (first, *texts))
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    found: Counter[str] = Counter()
    unread = 0
    for line in done.stderr.splitlines():
        match = re.match(r"\{standard input\}:(\d+): Error: (.*)", line)
        if match is None:
            continue
        if int(match[1]) == 1:
            raise RefusedError(f"{' '.join(command)} does not know `{first}`: {match[2]}")
        text = texts[int(match[1]) - 2]
        if _LACKS.search(match[2]):
            found[text] += code.texts[text]
        else:
            unread += 1
    # A check that understands little of what it reads proves nothing.
    strange = done.returncode != 0 and not (found or unread)
    if strange or unread * 20 > len(texts):
        last = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        raise RefusedError(
            f"{' '.join(command)} could not read {unread or 'any'} of {len(texts)} instructions, so it proves"
            f" nothing: {last}"
        )
    return found


def extension(name: str) -> str:
    """``_C`` of ``vllm/_C.abi3.so``."""
    return Path(name).name.partition(".")[0]


def check_code(
    name: str, code: Code, core: Core, tools: Compiler, floors: Mapping[str, int]
) -> dict[str, object]:
    """What a library consists of, for the image's manifest.

    Raises:
        RefusedError: it has fewer instructions of a kind than it must, or some that the core lacks.
    """
    short = {kind: code.kinds[kind] for kind, floor in floors.items() if code.kinds[kind] < floor}
    if short:
        said = ", ".join(f"{count} {kind} (at least {floors[kind]})" for kind, count in short.items())
        raise RefusedError(
            f"{name} is not compiled for {core.name}: of {code.instructions} instructions it has {said}"
        )
    facts: dict[str, object] = {
        "instructions": code.instructions,
        **{k: code.kinds[k] for k in KINDS[core.machine]},
    }
    if code.dispatched:
        facts["chosen_at_run_time"] = code.dispatched
    if core.predecessor:
        facts["newer"] = lacking(code, tools, "", architecture_of(core.predecessor, tools)).total()
    if extension(name) in core.unchecked:
        facts["lacking"] = None
        return facts
    if foreign := lacking(code, tools, *assembler_of(core, tools, name)):
        text = next(iter(foreign))
        raise RefusedError(
            f"{name} has {foreign.total()} instructions that {core.name} lacks, such as `{text}` in"
            f" {code.functions[text]}"
        )
    facts["lacking"] = 0
    return facts


def floors_of(name: str, core: Core) -> Mapping[str, int]:
    """The extension with vLLM's kernels must make use of the core; small helpers need not."""
    if not extension(name).startswith("_C"):
        return {}
    if extension(name) == "_C_AVX2" and "avx512" in core.floors:
        return {kind: floor for kind, floor in core.floors.items() if kind != "avx512"}
    return core.floors


def check_libraries(root: Path, core: Core, tools: Compiler) -> dict[str, dict[str, object]]:
    """Every library below a directory that was compiled here, by name."""
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*.so*") if path.is_file())
    compiled = [name for name in names if not any(f"/{part}" in name for part in BUNDLED)]
    if not any(extension(name).startswith("_C") for name in compiled):
        raise RefusedError(f"{root} has no compiled extension (_C*.so)")
    return {
        name: check_code(name, disassemble(root / name, tools), core, tools, floors_of(name, core))
        for name in compiled
    }
