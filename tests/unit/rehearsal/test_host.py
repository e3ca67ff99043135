"""Each check of the host, with the defect that it is for."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ingot.preflight.refusal import Refusal, report
from ingot.rehearsal import host
from ingot.rehearsal.places import GIB

V2 = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"
HYBRID = (
    "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n"
    "cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n"
    "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
)
V1 = HYBRID.rsplit("cgroup2 /sys", 1)[0]


def test_another_user_than_root_is_refused() -> None:
    assert host.check_root(0) is None
    refusal = host.check_root(1000)
    assert refusal
    assert refusal.name == "not root"
    assert "sudo" in refusal.do


@pytest.mark.parametrize(
    "release",
    [
        {"ID": "debian", "VERSION_ID": "12"},
        {"ID": "debian", "VERSION_ID": "13"},
        {"ID": "debian"},  # testing
        {"ID": "ubuntu", "VERSION_ID": "24.04"},
    ],
)
def test_supported_distributions(release: dict[str, str]) -> None:
    assert host.check_distribution(release) is None


@pytest.mark.parametrize(
    "release",
    [
        {"ID": "debian", "VERSION_ID": "11", "PRETTY_NAME": "Debian 11"},
        {"ID": "ubuntu", "VERSION_ID": "22.04", "PRETTY_NAME": "Ubuntu 22.04"},
        {"ID": "fedora", "VERSION_ID": "42", "PRETTY_NAME": "Fedora 42"},
        {},
    ],
)
def test_other_distributions_are_refused_by_name(release: dict[str, str]) -> None:
    refusal = host.check_distribution(release)
    assert refusal
    assert refusal.name == "unsupported distribution"
    assert release.get("PRETTY_NAME", "an unknown system") in refusal.why


def test_missing_packages_are_named_with_the_command() -> None:
    refusal = host.check_packages(["nftables", "socat", "git"], lambda name: name == "git")
    assert refusal
    assert "nftables, socat" in refusal.why
    assert "apt-get install --no-install-recommends nftables socat" in refusal.do
    assert host.check_packages(["git"], lambda _: True) is None


def test_no_namespaces_are_refused_with_what_unshare_says() -> None:
    refusal = host.check_namespaces(lambda: "unshare: Operation not permitted")
    assert refusal
    assert "Operation not permitted" in refusal.why
    assert "--privileged" in refusal.do
    assert host.check_namespaces(lambda: "") is None


@pytest.mark.parametrize("mounts", [V2, HYBRID])
def test_v2_and_hybrid_hosts_will_do(mounts: str) -> None:
    assert host.check_cgroups(mounts, lambda _: True) is None


def test_a_host_without_a_v2_hierarchy_is_refused() -> None:
    refusal = host.check_cgroups(V1, lambda _: True)
    assert refusal
    assert refusal.name == "no cgroup v2 hierarchy"
    assert "mount -t cgroup2" in refusal.do


def test_a_read_only_hierarchy_is_refused() -> None:
    refusal = host.check_cgroups(V2, lambda _: False)
    assert refusal
    assert "read-only" in refusal.why


def test_too_little_memory_is_refused() -> None:
    assert host.check_memory(int(7.7 * GIB)) is None  # what a machine sold as 8 GiB shows
    refusal = host.check_memory(4 * GIB)
    assert refusal
    assert "4.0 GiB" in refusal.why


def test_too_little_disk_is_refused_with_the_place(tmp_path: Path) -> None:
    places = [tmp_path / "cache" / "not there yet", tmp_path]
    assert host.check_disk(places, lambda _: 30 * GIB) is None
    refusal = host.check_disk(places, lambda _: 3 * GIB)
    assert refusal
    assert str(places[0]) in refusal.why
    assert "INGOT_CACHE" in refusal.do


def test_a_place_that_cannot_hold_an_overlay_is_refused(tmp_path: Path) -> None:
    refusal = host.check_overlay(tmp_path, lambda _: "mount: wrong fs type")
    assert refusal
    assert "wrong fs type" in refusal.why
    assert host.check_overlay(tmp_path, lambda _: "") is None


def test_all_reasons_are_said_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before there is an environment, with the words of every other refusal."""
    lacking = [Refusal("one", "there is no one", "Get one"), Refusal("two", "there are no two", "Get two")]
    monkeypatch.setattr(host, "check_root", lambda _: None)
    monkeypatch.setattr(host, "_checks", lambda *_: [lambda one=one: one for one in lacking])
    assert host.main() == 3
    assert capsys.readouterr().err == report(lacking) + "\n"


def test_missing_unshare_is_a_refusal_and_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "unshare")

    monkeypatch.setattr("subprocess.run", missing)
    assert "unshare" in host.can_unshare()
