"""Makes a machine ready: host checks, host packages, uv, the project's venv, Packer. Run by tools/bootstrap.

Every step is skipped when its result is there. Only the standard library: the venv comes into being here.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from packer_build import ensure_packer
from steps import ROOT, ToolError, cache_dir, fail, run, seconds, step
from venvs import uv

WANTS = Path("/etc/systemd/system")
POLICY = Path("/usr/sbin/policy-rc.d")


def check_host() -> None:
    """Refuse a machine that cannot hold the local EC2, before anything is created on it."""
    with step("Host: namespaces, cgroups, memory, disk") as state:
        result = subprocess.run(
            [sys.executable, "-m", "ingot.rehearsal.host"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": "src"},
            check=False,
        )
        if result.returncode != 0:
            raise SystemExit(result.returncode)
        state.note = "fit for the local EC2"


def host_packages(path: Path = ROOT / "files/host-packages.yml") -> list[str]:
    """The names in files/host-packages.yml: every list item, one a line."""
    names = re.findall(r"^\s*- ([a-z0-9][a-z0-9+.-]+)", path.read_text(), re.MULTILINE)
    if not names:
        raise ToolError(f"{path} lists no package")
    return names


def missing_packages(names: list[str]) -> list[str]:
    """Those of the packages that dpkg does not call installed."""
    listed = subprocess.run(
        ["dpkg-query", "-W", "-f=${Package} ${db:Status-Status}\n", *names],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    installed = {line.split()[0] for line in listed.splitlines() if line.endswith(" installed")}
    return [name for name in names if name not in installed]


def enabled_units() -> set[Path]:
    """The links that make systemd start a unit by itself."""
    return {path for path in WANTS.glob("*.wants/*") if path.is_symlink()}


def owner(path: Path) -> str:
    """The package that a file belongs to, empty if none."""
    found = subprocess.run(["dpkg-query", "-S", path], capture_output=True, text=True, check=False).stdout
    return found.partition(":")[0]


def install_packages() -> None:
    """Install what is missing, and let none of their daemons start, now or at boot: we use the programs."""
    with step("Host packages (files/host-packages.yml)") as state:
        missing = missing_packages(host_packages())
        if not missing:
            state.note = "all there"
            return
        print(f"    installing: {' '.join(missing)}", flush=True)
        before = enabled_units()
        own_policy = not POLICY.exists()
        if own_policy:  # asked by the packages' scripts before they start a daemon; 101 forbids it
            POLICY.write_text("#!/bin/sh\nexit 101\n")
            POLICY.chmod(0o755)
        try:
            apt = {"DEBIAN_FRONTEND": "noninteractive"}
            run(["apt-get", "update", "-q"], env=apt)
            run(["apt-get", "install", "-q", "-y", "--no-install-recommends", *missing], env=apt)
        finally:
            if own_policy:
                POLICY.unlink()
            for link in enabled_units() - before:
                if (
                    owner(link.readlink()) in missing
                ):  # not what came along, such as systemd itself in a chroot
                    link.unlink()
        state.note = f"installed {len(missing)}; none of their daemons was started or enabled"


def make_venv() -> None:
    """uv at its pin, then the venv that uv.lock describes."""
    with step("uv (tools/locks/uv.txt)") as state:
        program = uv()
        state.note = f"{program}"
    with step("Python environment (.venv from uv.lock)") as state:
        # A venv that is there keeps its interpreter; a new one gets the distribution's, never a shim.
        choice = [] if (ROOT / ".venv/pyvenv.cfg").exists() else ["--python", "/usr/bin/python3"]
        run([program, "sync", "--locked", "--no-python-downloads", *choice], env={"VIRTUAL_ENV": ""})
        state.note = "as locked"


def main() -> int:
    """Run the steps; one process at a time for each cache, so that two builds never write the same place."""
    started = time.monotonic()
    check_host()
    cache_dir().mkdir(parents=True, exist_ok=True)
    with (cache_dir() / "bootstrap.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            install_packages()
            make_venv()
            ensure_packer()
        except ToolError as problem:
            return fail(problem)
    print(f"ready after {seconds(time.monotonic() - started)}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
