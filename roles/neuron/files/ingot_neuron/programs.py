"""Programs for the chips, compiled ahead of time: have them made, pack them, take them in, verify them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ingot import compiled
from ingot.driver import RefusedError

GIB = 1 << 30
#: neuronx-cc ends so now and then for no reason (aws-neuron-sdk#1369): worth another attempt, and only that.
PASSING = 70
ATTEMPTS = 3
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
SEEN = Path("/run/ingot-neuron-programs.json")  # what was hashed since the boot; root alone writes there

Plan = dict[str, Any]


def check(plan: Plan, seen: Path = SEEN) -> None:
    """The programs of the plan are here, as they were made: else the engine would compile, and say nothing.

    Raises:
        RefusedError: which bucket is missing, or what is wrong, and the command that compiles it.
    """
    directory = Path(plan["directory"])
    try:
        if not directory.is_dir():
            raise RefusedError(compiled.lacking(plan["inputs"], _held(Path(plan["root"]))))
        _remember(seen, plan["key"], compiled.verify(directory, plan["inputs"], _known(seen, plan["key"])))
    except RefusedError as error:
        raise RefusedError(
            f"{error}. The engine would compile for hours. Compile first: {plan['how']}"
        ) from None


def _held(root: Path) -> Iterator[dict[str, Any]]:
    for place in sorted(root.glob("*")):
        try:
            yield compiled.read(place)["inputs"]
        except RefusedError:
            continue  # half taken in, or not ours


def _known(seen: Path, key: str) -> dict[str, Any]:
    try:
        return dict(json.loads(seen.read_text(encoding="utf-8"))[key])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _remember(seen: Path, key: str, state: dict[str, Any]) -> None:
    try:
        seen.write_text(json.dumps({key: state}), encoding="utf-8")
    except OSError:  # whoever may not write here hashes again
        return


# --- making them --------------------------------------------------------------------------------------------


def compile_all(plan: Plan, model: Path, program: Path, log: Path, *, chips: int) -> None:
    """Have NxD Inference compile a model for all buckets of the plan.

    Args:
        plan: what is compiled, and what that takes.
        model: the directory with its weights.
        program: NxD Inference's ``inference_demo``.
        log: where all that the compiler says goes.
        chips: that the host has; without any it is told for which ones it compiles.

    Raises:
        RefusedError: the host is too small, or the compiler failed; nothing is left of what it made.
    """
    if (directory := Path(plan["directory"])).is_dir():
        check(plan)
        return
    enough(plan)
    kind = model_type(model)
    with _fresh(directory) as partial:
        argv = [str(program), "--model-type", kind, "--task-type", "causal-lm", "run"]
        argv += ["--model-path", str(model), "--compiled-model-path", str(partial), *plan["arguments"]]
        argv += ["--prompt", "1"]  # it asks for one, and does not use it
        _run(
            argv,
            log,
            os.environ | ({} if chips else {"NEURON_PLATFORM_TARGET_OVERRIDE": "inf2"}),
            partial,
            plan,
        )
        if not any(partial.iterdir()):
            raise RefusedError(f"{program} ended well and left nothing (log: {log})")
        _seal(partial, plan)


def enough(plan: Plan, memory: int | None = None) -> None:
    """The host has what compiling takes. Asked first, for a compiler that is killed says nothing of use.

    Raises:
        RefusedError: with the arithmetic.
    """
    takes = plan["takes"]
    available = _available() if memory is None else memory
    if available < takes["memory_bytes"]:
        raise RefusedError(
            f"compiling takes {takes['memory_bytes'] / GIB:.1f} GiB of memory ({takes['why']}), and"
            f" {available / GIB:.1f} GiB are available: compile on a larger host (inf2.8xlarge has 128 GiB;"
            " one without chips will do), or set neuron_compile_memory_bytes to what you have measured"
        )
    free = shutil.disk_usage(next(path for path in Path(plan["directory"]).parents if path.exists())).free
    if free < takes["disk_bytes"]:
        raise RefusedError(
            f"what is compiled takes {takes['disk_bytes'] / GIB:.1f} GiB below {plan['root']}, and"
            f" {free / GIB:.1f} GiB are free: make room or grow the volume"
        )


def model_type(model: Path) -> str:
    """What NxD Inference calls the model's family."""
    try:
        return str(json.loads((model / "config.json").read_text(encoding="utf-8"))["model_type"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RefusedError(f"{model / 'config.json'} does not say model_type ({error!r})") from error


def _run(argv: Sequence[str], log: Path, environment: dict[str, str], partial: Path, plan: Plan) -> None:
    for attempt in range(1, ATTEMPTS + 1):
        with log.open("w", encoding="utf-8") as output:
            try:
                status = subprocess.run(
                    argv, stdout=output, stderr=subprocess.STDOUT, env=environment, check=False
                ).returncode
            except OSError as error:
                raise RefusedError(
                    f"{argv[0]} cannot be run ({error.strerror}): this host lacks the engine's environment"
                ) from error
        said = log.read_text(encoding="utf-8", errors="replace")
        if status == 0:
            return
        if status in KILLED or "F137" in said:
            raise RefusedError(
                f"the compiler was killed for memory; {plan['takes']['memory_bytes'] / GIB:.1f} GiB were"
                f" estimated ({plan['takes']['why']}): compile on a larger host, or for fewer buckets"
                f" (log: {log})"
            )
        if status != PASSING or attempt == ATTEMPTS:
            again = f" {ATTEMPTS} times" if status == PASSING else ""
            raise RefusedError(
                f"the compiler failed with status {status}{again}: {_error(said)} (log: {log})"
            )
        shutil.rmtree(partial)
        partial.mkdir()


def _error(said: str) -> str:
    lines = said.strip().splitlines()
    return next(
        (line.strip() for line in lines if "ERROR" in line), lines[-1] if lines else "it says nothing"
    )


def _available() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RefusedError("/proc/meminfo does not say MemAvailable")


# --- passing them on ----------------------------------------------------------------------------------------


def pack(plan: Plan, archive: Path) -> dict[str, Any]:
    """One file of them, and what is kept beside it: the inputs, and its hash."""
    directory = Path(plan["directory"])
    compiled.verify(directory, plan["inputs"])
    with tarfile.open(archive, "w") as tar:
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                tar.add(path, path.relative_to(directory).as_posix())
    return {"inputs": plan["inputs"], "sha256": compiled.sha256_of(archive), "size": archive.stat().st_size}


def take(plan: Plan, archive: Path, beside: Path) -> None:
    """Take what an archive holds in, if it is what is wanted.

    Raises:
        RefusedError: the archive, or something in it, is not what its record says, or for other inputs.
    """
    record = json.loads(beside.read_text(encoding="utf-8"))
    if (found := compiled.sha256_of(archive)) != record["sha256"]:
        raise RefusedError(
            f"{plan['key']}.tar hashes to {found}, and its record says {record['sha256']}: it is damaged, or"
            " was changed. Remove both from the store, and compile again"
        )
    with _fresh(Path(plan["directory"])) as partial, tarfile.open(archive) as tar:
        for member in tar:
            _unpack(tar, member, partial)
        compiled.verify(partial, plan["inputs"])


def _unpack(tar: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> None:
    """One file, below ``place`` and nowhere else; ``pack`` writes nothing but files."""
    content = tar.extractfile(member) if member.isfile() else None
    target = place / member.name
    if content is None or ".." in target.parts or not target.is_relative_to(place):
        raise RefusedError(f"the archive has {member.name!r}, which is no file of programs")
    target.parent.mkdir(parents=True, exist_ok=True)
    with content, target.open("wb") as output:
        shutil.copyfileobj(content, output)


@contextmanager
def _fresh(directory: Path) -> Iterator[Path]:
    """A directory beside its place, which is renamed into it once it is whole, and else is gone."""
    partial = directory.with_name(f".{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    partial.chmod(0o755)
    try:
        yield partial
        for path in partial.rglob("*"):  # for the engine to read, and for nobody but root to write
            path.chmod(0o755 if path.is_dir() else 0o644)
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _seal(directory: Path, plan: Plan) -> None:
    text = json.dumps(compiled.record(directory, plan["inputs"]), indent=1)
    (directory / compiled.RECORD).write_text(text, encoding="utf-8")
