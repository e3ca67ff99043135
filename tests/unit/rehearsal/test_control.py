"""A region's life cycle where it needs no machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingot.rehearsal import control as control_module
from ingot.rehearsal import host
from ingot.rehearsal.config import Settings
from ingot.rehearsal.control import Control, ControlError


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Control:
    """A region that is down and has a state with an image: its record, and a layer that this lies on."""
    settings = Settings(
        name="unit-control",
        cache=tmp_path / "cache",
        state_root=tmp_path / "state",
        runtime_root=tmp_path / "run",
    )
    monkeypatch.setattr(host, "check_root", lambda _: None)
    (settings.snapshots / "snap-1").mkdir(parents=True)
    (settings.state / "api.pickle").touch()
    return Control(settings)


@pytest.fixture
def interrupted(control: Control, monkeypatch: pytest.MonkeyPatch) -> Control:
    """The region after a purge that was interrupted when the layers were gone and the records were not."""

    def remove_half(path: Path) -> None:
        if path.exists():
            (path / "snapshots/snap-1").rmdir()
            raise KeyboardInterrupt

    with monkeypatch.context() as planted:
        planted.setattr(control_module, "remove_tree", remove_half)
        with pytest.raises(KeyboardInterrupt):
            control.down(purge=True)
    return control


def left(control: Control) -> list[str]:
    return [path.name for path in control.settings.state_root.iterdir()]


def test_a_purge_leaves_nothing(control: Control) -> None:
    assert control.down(purge=True)
    assert left(control) == []
    assert not control.down(purge=True)


def test_down_keeps_the_state(control: Control) -> None:
    assert not control.down()
    assert left(control) == ["unit-control"]


def test_an_interrupted_purge_leaves_no_half_of_a_state(interrupted: Control) -> None:
    assert not interrupted.settings.state.exists()
    assert left(interrupted) == [".unit-control.purged"]


def test_the_next_purge_removes_what_an_interrupted_one_left(interrupted: Control) -> None:
    assert interrupted.down(purge=True)
    assert left(interrupted) == []


def test_a_purge_after_an_interrupted_one_removes_the_new_state_too(interrupted: Control) -> None:
    interrupted.settings.snapshots.mkdir(parents=True)
    assert interrupted.down(purge=True)
    assert left(interrupted) == []


def test_up_removes_what_an_interrupted_purge_left(
    interrupted: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop() -> None:
        raise ControlError("far enough")

    monkeypatch.setattr(host, "require", lambda _: None)
    monkeypatch.setattr(interrupted, "_sweep", lambda: None)
    monkeypatch.setattr(interrupted.groups, "create", stop)
    with pytest.raises(ControlError, match="far enough"):
        interrupted.up()
    assert left(interrupted) == ["unit-control"]
