"""SIGKILL at any point: `up` works afterwards, and `down` leaves nothing.

The points within `up` and `down` are exact: a program of its own makes the calls of the command line and
kills itself before the n-th call of a function. The others kill what a whole region consists of.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local_region import LocalRegion, eventually, leftovers, sysctls

from ingot.rehearsal import binfmt, emulation

# Kills itself before the given call of the given function while it does what `ingot local up` or `down` do.
DRIVER = """
import importlib, operator, os, signal, sys
from ingot.rehearsal.config import Settings
from ingot.rehearsal.control import Control

action, module, owner, function, count = sys.argv[1:]
holder = importlib.import_module(f"ingot.rehearsal.{module}")
holder = getattr(holder, owner) if owner else holder
original, calls = getattr(holder, function), 0

def counted(*args, **kwargs):
    global calls
    calls += 1
    if calls == int(count):
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args, **kwargs)

setattr(holder, function, counted)
operator.attrgetter(action)(Control(Settings.from_environment()))()
"""
IN_UP = {
    "before the host's settings are written down": ("network", "HostRegistry", "_write", 1),
    "before the network is begun": ("network", "", "_run", 1),
    "with the network half made": ("network", "", "_run", 6),
    "before dnsmasq starts": ("network", "Network", "_start_dnsmasq", 1),
    "before the daemon starts": ("control", "Control", "_start_daemon", 1),
    "while the daemon starts": ("control", "", "wait_for", 1),
}
IN_DOWN = {
    "before processes are killed": ("cgroups", "RegionGroups", "destroy", 1),
    "before the network goes": ("network", "Network", "down", 1),
    "before the host's settings are put back": ("network", "HostRegistry", "release", 1),
}


IN_EMULATION = {
    "before the kernel's list is mounted": ("binfmt", "", "_run", 1),
    "before qemu is in it": ("binfmt", "", "_register", 1),
}


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegion]:
    with LocalRegion.fresh("killtest", tmp_path_factory.mktemp("killtest")) as region:
        yield region


@pytest.fixture(scope="module")
def sysctls_before(region: LocalRegion) -> dict[str, str]:
    return sysctls()


@pytest.mark.parametrize("point", IN_UP)
def test_up_is_killed(region: LocalRegion, sysctls_before: dict[str, str], point: str) -> None:
    region.control.down()
    _killed(region, "up", IN_UP[point])
    region.control.down()
    assert leftovers(region.settings, sysctls_before) == []


def test_up_after_a_killed_up(region: LocalRegion, sysctls_before: dict[str, str]) -> None:
    region.control.down()
    _killed(region, "up", IN_UP["with the network half made"])
    assert region.cli("up").returncode == 0
    assert region.control.is_up()
    for point in IN_DOWN.values():
        _killed(region, "down", point)
    region.control.down()
    assert leftovers(region.settings, sysctls_before) == []


@pytest.fixture(scope="module")
def machine(region: LocalRegion) -> Iterator[Any]:
    """An instance that has booted, in a region that is up."""
    region.control.up()
    (instance,) = region.launch(kind="t3.nano")
    region.answer(instance, "true")
    yield instance


def _daemon(region: LocalRegion, machine: Any) -> int | None:
    return region.control.daemon_pid()


def _dnsmasq(region: LocalRegion, machine: Any) -> int | None:
    return region.control.network.dns_pid()


@pytest.mark.parametrize("victim", [_daemon, _dnsmasq])
def test_up_after_a_process_of_the_region_is_killed(region: LocalRegion, machine: Any, victim: Any) -> None:
    os.kill(victim(region, machine), signal.SIGKILL)
    eventually("the region not to be whole", lambda: not region.control.is_up(), 10)
    assert region.cli("up").returncode == 0
    assert region.control.is_up()
    region.wait_state(machine, "running")  # it was started again
    region.answer(machine, "true")


def test_down_after_everything_is_killed(
    region: LocalRegion, machine: Any, sysctls_before: dict[str, str]
) -> None:
    for pid in region.control.groups.whole.pids():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # a process that the one before took with it
    region.control.down()
    assert leftovers(region.settings, sysctls_before) == []


@pytest.fixture
def interpreter_of_another(region: LocalRegion) -> Iterator[str]:
    """An entry in the kernel's list for a format of nobody's, that was there before the region."""
    mounted = (binfmt.MOUNT / "register").exists()
    if not mounted:
        subprocess.run(["mount", "-t", "binfmt_misc", "binfmt_misc", binfmt.MOUNT], check=True)
    (binfmt.MOUNT / "register").write_text(":ingot-test-other:M::INGOTTEST::/bin/true:")
    yield "ingot-test-other"
    (binfmt.MOUNT / "ingot-test-other").write_text("-1")
    if not mounted:
        subprocess.run(["umount", binfmt.MOUNT], check=True)


@pytest.mark.parametrize("point", IN_EMULATION)
def test_emulation_is_killed_while_it_starts(
    region: LocalRegion, sysctls_before: dict[str, str], point: str
) -> None:
    region.control.up()
    emulation.ensure_emulator(region.settings)
    if point == "before the kernel's list is mounted" and (binfmt.MOUNT / "register").exists():
        return  # the host has it mounted for good
    if point == "before qemu is in it" and (binfmt.MOUNT / binfmt.ENTRY).exists():
        return  # an emulated machine of another region has put it there
    _killed(region, "emulation.start", IN_EMULATION[point])
    region.control.down()
    assert leftovers(region.settings, sysctls_before) == []


def test_down_after_a_kill_leaves_only_what_others_told_the_kernel(
    region: LocalRegion, interpreter_of_another: str
) -> None:
    before = sysctls()
    assert interpreter_of_another in before
    region.control.up()
    region.control.emulation.start()
    assert (binfmt.MOUNT / binfmt.ENTRY).exists()
    for pid in region.control.groups.whole.pids():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    region.control.down()
    assert leftovers(region.settings, before) == []
    assert sysctls() == before


def test_daemon_is_killed_during_a_launch(region: LocalRegion, sysctls_before: dict[str, str]) -> None:
    region.control.up()
    (instance,) = region.launch(kind="t3.nano")
    os.kill(region.control.daemon_pid() or 0, signal.SIGKILL)
    region.control.down()
    assert leftovers(region.settings, sysctls_before) == []
    region.control.up()
    assert region.state(instance) in ("pending", "running", "stopped", "terminated")
    region.control.down(purge=True)
    assert leftovers(region.settings, sysctls_before) == []
    assert not region.settings.state.exists()


def test_interrupted_up_removes_what_it_made(region: LocalRegion, sysctls_before: dict[str, str]) -> None:
    process = subprocess.Popen(
        [Path(sys.executable).parent / "ingot", "local", "up"], env=region.environ, stderr=subprocess.DEVNULL
    )
    eventually("the daemon to start", region.control.daemon_pid, 30)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) != 0
    assert leftovers(region.settings, sysctls_before) == []


def _killed(region: LocalRegion, action: str, point: tuple[str, str, str, int]) -> None:
    result = subprocess.run(
        [sys.executable, "-c", DRIVER, action, *map(str, point)],
        env=region.environ,
        check=False,
        capture_output=True,
        text=True,
    )
    assert result.returncode == -signal.SIGKILL, f"was not killed: {result.stderr}"
