"""Trees in the cache: one in place is whole, and what could not be finished leaves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingot.rehearsal import base, trees
from ingot.rehearsal.config import Settings


@pytest.fixture
def keyring(tmp_path: Path) -> Path:
    path = tmp_path / "keyring.gpg"
    path.touch()
    return path


def _make(place: Path, keyring: Path, finish: object, command: str = "true") -> None:
    trees.make(place, "the tree", [], finish=finish, wrap=lambda _: [command], keyring=keyring)  # type: ignore[arg-type]


def test_what_cannot_be_finished_is_not_in_place(tmp_path: Path, keyring: Path) -> None:
    def fail(building: Path) -> None:
        (building / "half").touch()
        raise trees.TreeError("no compiler")

    place = tmp_path / "cache/key"
    with pytest.raises(trees.TreeError, match="no compiler"):
        _make(place, keyring, fail)
    assert [path.name for path in place.parent.iterdir() if path.is_dir()] == []


def test_a_tree_in_place_is_not_made_again(tmp_path: Path, keyring: Path) -> None:
    place = tmp_path / "cache/key"
    _make(place, keyring, lambda building: (building / "done").touch())
    _make(place, keyring, lambda _: pytest.fail("made again"), command="false")
    assert (place / "done").exists()


def test_the_hosts_apt_is_asked_once_whatever_trees_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    stub = tmp_path / "apt-config"
    stub.write_text(f"#!/bin/sh\necho x >> {calls}\necho 'Acquire::http::Proxy \"http://proxy:3128\";'\n")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    trees.host_apt_options.cache_clear()
    try:
        keys = [trees.key_of({"tree": number}) for number in (1, 2, 1)]
        settings = Settings(cache=tmp_path / "cache")
        base.offered(settings)
        base.find(settings, "arm64")
        assert trees.host_apt_options() == ('Acquire::http::Proxy "http://proxy:3128";',)
    finally:
        trees.host_apt_options.cache_clear()
    assert keys[0] == keys[2] != keys[1]
    assert calls.read_text() == "x\n"
