"""The tools that prepare a machine: refusals and skips."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import bootstrap
import packer_build
import steps
import unchanged
from steps import ROOT, ToolError

PINS = steps.versions()


def run_bootstrap(root: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the shell part of the bootstrap with a Python part that only says that it was reached."""
    (root / "tools").mkdir()
    shutil.copy(ROOT / "tools/bootstrap", root / "tools/bootstrap")
    (root / "tools/bootstrap.py").write_text("print('reached')\n")
    return subprocess.run(
        [root / "tools/bootstrap", "rehearse"],
        env={"PATH": "/usr/bin:/bin", **env},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("release", "refused"),
    [
        ("ID=debian\nVERSION_ID=12\n", False),
        ('ID=debian\nVERSION_ID="13"\n', False),
        ('ID=ubuntu\nVERSION_ID="24.04"\n', False),
        ('ID=ubuntu\nVERSION_ID="22.04"\n', True),
        ("ID=fedora\nVERSION_ID=43\n", True),
        ("ID=debian\n", True),  # testing has no number
    ],
)
def test_only_supported_distributions_are_accepted(tmp_path: Path, release: str, refused: bool) -> None:
    if os.geteuid() != 0:
        pytest.skip("root comes first")
    (tmp_path / "os-release").write_text(release)
    result = run_bootstrap(tmp_path, INGOT_OS_RELEASE=str(tmp_path / "os-release"))
    assert result.returncode == (3 if refused else 0)
    assert ("refused (unsupported distribution)" in result.stderr) == refused
    assert ("reached" in result.stdout) != refused


def test_an_ordinary_user_is_refused_and_told_what_to_do(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        # A directory that nobody may enter: pytest's own belongs to root alone.
        tmp_path.chmod(0o755)
        (tmp_path / "tools").mkdir()
        script = tmp_path / "tools/bootstrap"
        shutil.copy(ROOT / "tools/bootstrap", script)
        # uid 65534, in a namespace without a map
        command = ["unshare", "--user", "sh", str(script), "rehearse"]
    else:
        command = ["sh", str(ROOT / "tools/bootstrap"), "rehearse"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 3
    assert "refused (not root)" in result.stderr
    assert "sudo make rehearse" in result.stderr


def test_the_host_packages_are_read() -> None:
    assert {"systemd-container", "mmdebstrap", "nftables"} <= set(bootstrap.host_packages())


def test_a_package_that_is_not_installed_is_missing() -> None:
    assert bootstrap.missing_packages(["dpkg", "no-such-package"]) == ["no-such-package"]


def test_a_file_is_traced_to_its_package() -> None:
    assert bootstrap.owner(Path("/etc/debian_version")) == "base-files"
    assert bootstrap.owner(Path("/no/such/file")) == ""


def test_an_unreadable_pin_is_named(tmp_path: Path) -> None:
    (tmp_path / "versions.yml").write_text("packer: 1.0.0\nnested:\n  a: 1\n")
    with pytest.raises(ToolError, match="'nested:'"):
        steps.versions(tmp_path / "versions.yml")


@pytest.mark.parametrize(
    ("text", "numbers"), [("go1.26.8", (1, 26, 8)), ("Packer v1.15.0-dev\n", (1, 15, 0)), ("none", ())]
)
def test_versions_are_read_from_what_programs_say(text: str, numbers: tuple[int, ...]) -> None:
    assert steps.version_tuple(text) == numbers


def fake_packer(directory: Path, version: str, plugins: dict[str, str]) -> Path:
    """A program that answers as Packer does."""
    base = directory / "plugins/github.com/hashicorp"
    listed = "\n".join(
        f"{base}/{name}/packer-plugin-{name}_v{number}_x5.0_linux_amd64" for name, number in plugins.items()
    )
    program = directory / "packer"
    program.write_text(
        f'#!/bin/sh\ncase "$1" in version) echo "Packer v{version}";; *) echo "{listed}";; esac\n'
    )
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("version", "plugins", "usable"),
    [
        ("1.11.0", {"amazon": "1.8.1", "ansible": "1.0.3"}, True),
        ("1.15.0", {"ansible": "1.1.4", "amazon": "1.9.0", "docker": "1.1.0"}, True),
        ("1.10.3", {"amazon": "1.8.1", "ansible": "1.0.3"}, False),
        ("1.15.0", {"amazon": "1.8.1"}, False),
        ("1.15.0", {"amazon": "1.2.9", "ansible": "1.0.3"}, False),
        ("1.15.0", {}, False),
    ],
)
def test_a_packer_on_path_is_used_when_it_will_do(
    tmp_path: Path, version: str, plugins: dict[str, str], usable: bool
) -> None:
    pins = {"packer_minimum": "1.11.0", "packer_plugin_amazon": "1.8.1", "packer_plugin_ansible": "1.0.3"}
    found = packer_build.usable_plugin_dir(fake_packer(tmp_path, version, plugins), pins)
    assert found == (tmp_path / "plugins" if usable else None)


def test_the_packer_on_path_is_linked_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packer = fake_packer(
        tmp_path,
        PINS["packer"],
        {"amazon": PINS["packer_plugin_amazon"], "ansible": PINS["packer_plugin_ansible"]},
    )
    monkeypatch.setenv("INGOT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "cache").mkdir()
    packer_build.ensure_packer()
    link = tmp_path / "cache/packer"
    first = link.readlink()
    packer_build.ensure_packer()
    assert link.readlink() == first
    assert (link / "bin/packer").resolve() == packer
    assert (link / "plugins").resolve() == tmp_path / "plugins"


def test_the_modules_require_the_pinned_versions() -> None:
    for program in (packer_build.PACKER, *packer_build.PLUGINS):
        module = (packer_build.MODULES / program.folder / "go.mod").read_text()
        assert f"require {program.package} v{PINS[program.pin]}\n" in module


RECAP = (
    "PLAY RECAP ****\n10.0.0.1 : ok=9  changed={}  unreachable=0\n10.0.0.2 : ok=9  changed=0  unreachable=0\n"
)


@pytest.mark.parametrize(
    ("script", "status", "said"),
    [
        (f"printf '{RECAP.format(0)}'", 0, "nothing changed on 2 hosts"),
        (f"printf '{RECAP.format(3)}'", 1, "changed on a second run: 10.0.0.1 (3)"),
        ("echo no recap", 1, "no host was reached"),
        (f"printf '{RECAP.format(0)}'; exit 2", 2, "PLAY RECAP"),
    ],
)
def test_a_second_run_must_change_nothing(
    script: str, status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert unchanged.main(["sh", "-c", script]) == status
    assert said in capsys.readouterr().out
