"""What the role nvidia finds out on a node: DKMS's words, modules, packages, devices; each defect planted."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from ingot_nvidia import devices
from ingot_nvidia import machine as system
from program import load

from ingot.checkout import ROOT
from ingot.driver import dkms, machine
from ingot.driver.node import explain

node = load(ROOT / "roles/nvidia/files/nvidia_node.py")
LOGS = ROOT / "tests/fixtures/dkms"
KERNEL = "6.12.118+deb13-cloud-amd64"
OTHER = "6.12.117+deb13-cloud-amd64"
MODULE, DRIVER = "nvidia-current-open", "550.163.01"

# --- what DKMS says -----------------------------------------------------------------------------------------

INSTALLED = f"{MODULE}/{DRIVER}, {KERNEL}, x86_64: installed\n"


def said(text: str, *kernels: str) -> list[str]:
    return dkms.problems(dkms.status(text), MODULE, DRIVER, kernels or (KERNEL,))


def test_installed_for_every_kernel_is_right() -> None:
    assert said(INSTALLED) == []
    assert said(INSTALLED + INSTALLED.replace(KERNEL, OTHER), KERNEL, OTHER) == []
    assert said(INSTALLED + "zfs/2.3.2: added\n") == [], "another module is none of ours"


@pytest.mark.parametrize(
    ("text", "kernels", "problem"),
    [
        (
            f"{MODULE}/{DRIVER}: added\n",
            (KERNEL,),
            f"'added' of {MODULE} {DRIVER}: it is built for no kernel",
        ),
        (
            INSTALLED.replace("installed", "built"),
            (KERNEL,),
            f"'built' of {MODULE} {DRIVER} for kernel {KERNEL}",
        ),
        (
            INSTALLED.replace("installed", "installed (Original modules exist)"),
            (KERNEL,),
            "'installed (Original modules exist)'",
        ),
        (
            INSTALLED.replace("installed", "installed (WARNING! Diff between built and installed module!)"),
            (KERNEL,),
            "Diff between built and installed module!",
        ),
        (INSTALLED, (KERNEL, OTHER), f"dkms has no {MODULE} for kernel {OTHER}"),
        (
            INSTALLED.replace(DRIVER, "535.247.01"),
            (KERNEL,),
            f"in version 535.247.01, and {DRIVER} is wanted",
        ),
        ("", (KERNEL,), f"dkms has no {MODULE} for kernel {KERNEL}"),
    ],
)
def test_anything_else_is_named(text: str, kernels: tuple[str, ...], problem: str) -> None:
    (found,) = said(text, *kernels)
    assert problem in found


def test_the_first_error_of_a_real_log_is_named_with_kernel_driver_and_file() -> None:
    """Debian 13's own pair, as DKMS left it; apt says exit status 10, and nothing more."""
    failure = dkms.failure((LOGS / "too-few-arguments.log").read_text())
    assert failure is not None
    assert (failure.module, failure.driver, failure.kernel) == (MODULE, DRIVER, KERNEL)
    assert failure.source == "nvidia/nv-pci.c:237"
    assert failure.error.startswith("too few arguments to function")
    assert "pci_resize_resource" in failure.error
    what = f"driver {DRIVER} ({MODULE}) does not compile for kernel {KERNEL}: nvidia/nv-pci.c:237: too few"
    assert str(failure).startswith(what)


HEADER = "DKMS make.log for nvidia/580.173.02 for kernel 6.14.0-1018-aws (x86_64)\nTue Dec  1\n"


@pytest.mark.parametrize(
    ("log", "source", "error"),
    [
        (
            "/usr/src/linux-6.14/include/linux/x.h:3:10: fatal error: gone.h: No such file or directory\n",
            "/usr/src/linux-6.14/include/linux/x.h:3",
            "gone.h: No such file or directory",
        ),
        (
            'make[3]: *** [x] Error 1\nERROR: modpost: "drm_x" [nvidia-drm.ko] undefined!\n',
            "",
            '"drm_x" [nvidia-drm.ko] undefined!',
        ),
        ("patching file nvidia/nv-pci.c\nHunk #1 FAILED at 234.\n", "", "Hunk #1 FAILED at 234."),
        ("gcc: fatal error: Killed signal terminated program cc1\nmake: *** [x] Error 1\n", "", "Killed"),
        ("/tmp/ccA.s: No space left on device\n", "", "No space left on device"),
        (
            "make: *** /lib/modules/6.14/build: No such file or directory.  Stop.\n",
            "",
            "/lib/modules/6.14/build",
        ),
        ("nothing to see\n", "", "the log names no error"),
    ],
    ids=["fatal error", "modpost", "patch", "memory", "disk", "headers", "silent"],
)
def test_other_causes_are_told_apart(log: str, source: str, error: str) -> None:
    failure = dkms.failure(HEADER + log)
    assert failure is not None
    assert (failure.driver, failure.kernel) == ("580.173.02", "6.14.0-1018-aws")
    assert failure.source == source
    assert error in failure.error


def test_a_log_of_something_else_is_not_taken_for_one() -> None:
    assert dkms.failure("Sign command: /lib/modules\n") is None


def test_a_failed_build_is_explained_and_its_log_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dkms.failed_log, "__defaults__", (tmp_path,))
    config = {"dkms": MODULE, "driver": DRIVER}
    keep = tmp_path / "log" / "make.log"
    assert explain(config, keep) == {"kernel": "", "text": ""}
    built = tmp_path / MODULE / DRIVER / "build" / "make.log"
    built.parent.mkdir(parents=True)
    built.write_text((LOGS / "too-few-arguments.log").read_text())
    why = explain(config, keep)
    assert why["kernel"] == KERNEL
    assert "nvidia/nv-pci.c:237: too few arguments" in why["text"] and str(keep) in why["text"]
    assert keep.read_text() == built.read_text()


# --- kernels, modules, libraries, packages ------------------------------------------------------------------

PACKAGES = {"nvidia-open-kernel-dkms": "550.163.01-2", "libcuda1": "550.163.01-2"}
HELD = {name: (version, "hi") for name, version in PACKAGES.items()}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, None),
        ({"libcuda1": ("550.163.01-2", "ii")}, "libcuda1 is not held"),
        ({"libcuda1": ("550.163.02-1", "hi")}, "libcuda1 is 550.163.02-1, and the set has 550.163.01-2"),
        ({"libcuda1": ("550.163.01-2", "iF")}, "libcuda1 is half installed (iF in dpkg's words)"),
        ({"libcuda1": ("550.163.01-2", "rc")}, "libcuda1 is not installed"),
        ({"libcuda1": ("", "un")}, "libcuda1 is not installed"),
    ],
)
def test_packages_of_the_set(change: dict[str, tuple[str, str]], problem: str | None) -> None:
    found = machine.package_problems(PACKAGES, HELD | change)
    assert found == [] if problem is None else problem in found[0]


def test_a_half_configured_package_is_named() -> None:
    assert machine.half_configured(HELD) == []
    assert machine.half_configured(HELD | {"dkms": ("3.2.2", "iF"), "gone": ("1", "rc")}) == ["dkms"]


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of programs that stand for modinfo, dkms and the like: each prints a file of its own."""
    place = tmp_path / "bin"
    place.mkdir()
    monkeypatch.setenv("PATH", str(place), prepend=os.pathsep)
    return place


def tool(place: Path, name: str, body: str) -> None:
    (place / name).write_text(f"#!/bin/sh\n{body}\n")
    (place / name).chmod(0o755)


def modinfo(place: Path, version: str, magic: str = KERNEL) -> None:
    tool(
        place,
        "modinfo",
        f'case "$4" in version) echo {version};; vermagic) echo "{magic} SMP mod_unload";;'
        f" filename) echo /lib/modules/$2/updates/dkms/{MODULE}.ko;; esac",
    )


@pytest.mark.parametrize(
    ("version", "magic", "problem"),
    [
        (DRIVER, KERNEL, None),
        ("", KERNEL, f"kernel {KERNEL} has no module {MODULE}: booted, it would have no GPU"),
        (
            "535.247.01",
            KERNEL,
            f"kernel {KERNEL} would load {MODULE} 535.247.01 (/lib/modules/{KERNEL}/updates",
        ),
        (DRIVER, OTHER, f"for kernel {KERNEL} was built for {OTHER}"),
    ],
)
def test_the_module_of_a_kernel(tools: Path, version: str, magic: str, problem: str | None) -> None:
    modinfo(tools, version, magic)
    found = machine.module_problems(KERNEL, MODULE, DRIVER, "GPU")
    assert found == [] if problem is None else problem in found[0]


def test_every_kernel_that_could_be_booted_counts(tmp_path: Path) -> None:
    (tmp_path / "boot").mkdir()
    for name in (f"vmlinuz-{KERNEL}", f"vmlinuz-{OTHER}", f"config-{KERNEL}", "grub"):
        (tmp_path / "boot" / name).touch()
    assert machine.kernels(tmp_path) == [OTHER, KERNEL]


def test_the_library_is_of_the_modules_version(tmp_path: Path) -> None:
    place = tmp_path / "usr/lib/x86_64-linux-gnu/nvidia/current"
    place.mkdir(parents=True)
    assert "there is no libcuda" in system.library_problems(system.library_versions(tmp_path), DRIVER)[0]
    (place / f"libcuda.so.{DRIVER}").touch()
    (place / "libcuda.so.1").symlink_to(f"libcuda.so.{DRIVER}")
    assert system.library_problems(system.library_versions(tmp_path), DRIVER) == []
    (place / "libcuda.so.560.35.03").touch()
    (problem,) = system.library_problems(system.library_versions(tmp_path), DRIVER)
    assert problem.startswith(f"libcuda is 560.35.03, and the module {DRIVER}")


def test_nouveau_is_blacklisted_in_the_initramfs_too(tools: Path, tmp_path: Path) -> None:
    assert system.initramfs_problems(KERNEL, tmp_path) == [], (
        "a kernel without one reads the file of the disk"
    )
    (tmp_path / "boot").mkdir()
    (tmp_path / f"boot/initrd.img-{KERNEL}").touch()
    tool(tools, "lsinitramfs", "echo etc/modprobe.d; echo etc/modprobe.d/nvidia.conf")
    (problem,) = system.initramfs_problems(KERNEL, tmp_path)
    assert f"run update-initramfs -u -k {KERNEL}" in problem
    tool(tools, "lsinitramfs", "echo etc/modprobe.d/ingot-nouveau.conf")
    assert system.initramfs_problems(KERNEL, tmp_path) == []


# --- devices ------------------------------------------------------------------------------------------------


def pci(sys: Path, *found: tuple[str, str]) -> Path:
    """A tree of /sys with devices of these vendors and classes."""
    for number, (vendor, kind) in enumerate(found):
        device = sys / f"bus/pci/devices/0000:{number:02x}:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")
    return sys


GPU, SWITCH, SOUND = ("0x10de", "0x030200"), ("0x10de", "0x068000"), ("0x10de", "0x040300")
BRIDGE = ("0x8086", "0x068000")


@pytest.mark.parametrize(
    ("found", "gpus", "switched"),
    [
        ((), 0, False),
        ((GPU, BRIDGE), 1, False),
        ((GPU, GPU, SOUND), 2, False),
        ((*[GPU] * 8, *[SWITCH] * 4), 8, True),
    ],
    ids=["none", "g5", "two with sound", "p5"],
)
def test_devices_by_their_pci_class(
    tmp_path: Path, found: tuple[tuple[str, str], ...], gpus: int, switched: bool
) -> None:
    sys = pci(tmp_path, *found)
    assert (devices.gpus(sys), devices.nvswitch(sys)) == (gpus, switched)


def test_the_switches_of_b200_are_known_by_the_device_that_manages_them(tmp_path: Path) -> None:
    sys = pci(tmp_path, *[GPU] * 8)
    vpd = sys / "class/infiniband/mlx5_0/device/vpd"
    vpd.parent.mkdir(parents=True)
    vpd.write_bytes(b"\x82\x00an EFA or any other\x00")
    assert not devices.nvswitch(sys)
    vpd.write_bytes(b"\x82\x00ConnectX\x90V0SW_MNG\x00")
    assert devices.nvswitch(sys)


# --- the command --------------------------------------------------------------------------------------------


def test_everything_that_is_wrong_is_said_at_once(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {
        "set": "s",
        "driver": DRIVER,
        "dkms": MODULE,
        "module": MODULE,
        "packages": PACKAGES,
        "unproved": "",
    }
    (tmp_path / "set.json").write_text(json.dumps(config))
    monkeypatch.setattr(machine, "kernels", lambda: [KERNEL])
    monkeypatch.setattr(system, "library_versions", lambda: [DRIVER])
    monkeypatch.setattr(system, "initramfs_problems", lambda _: [])
    monkeypatch.setattr(machine, "packages", lambda: HELD)
    modinfo(tools, DRIVER)
    tool(tools, "dkms", f"echo '{INSTALLED.strip()}'")

    def check(*more: str) -> tuple[int, Any]:
        status = node.main(["check", str(tmp_path / "set.json"), *more])
        said = capsys.readouterr()
        return status, json.loads(said.out) if status == 0 else said.err

    status, facts = check()
    assert (status, facts["kernels"], facts["driver"]) == (0, [KERNEL], DRIVER)
    status, error = check("--running")
    assert status == 1 and f"kernel {os.uname().release} runs, and /boot has {KERNEL}: reboot" in error
    tool(tools, "dkms", f"echo '{MODULE}/{DRIVER}: added'")
    modinfo(tools, "")
    monkeypatch.setattr(system, "library_versions", list)
    status, error = check()
    assert status == 1
    for part in ("driver set s: dkms says 'added'", f"kernel {KERNEL} has no module", "there is no libcuda"):
        assert part in error
    monkeypatch.setattr(machine, "kernels", list)
    assert "there is no kernel in /boot" in check()[1]


def test_a_question_about_a_device_is_answered_by_the_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where systemd wants 1 to 254 for "skip me"."""
    monkeypatch.setattr(devices, "gpus", lambda: 1)
    monkeypatch.setattr(devices, "nvswitch", lambda: False)
    assert node.main(["has", "gpu"]) == 0
    assert node.main(["has", "nvswitch"]) == 1
