"""Which layers stay, and which go."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingot.rehearsal.layers import LayerStore, link_layers, mount_read_only
from ingot.rehearsal.model import MachineError


@pytest.fixture
def base(tmp_path: Path) -> Path:
    base = tmp_path / "base"
    base.mkdir()
    return base


@pytest.fixture
def store(tmp_path: Path) -> LayerStore:
    return LayerStore(tmp_path / "snapshots")


def _snapshot(store: LayerStore, name: str, below: tuple[Path, ...]) -> tuple[Path, ...]:
    layers = store.record(name, below)
    layers[0].mkdir()
    (layers[0] / "file").write_text(name)
    return layers


def test_a_discarded_snapshot_goes(store: LayerStore, base: Path) -> None:
    (layer, _) = _snapshot(store, "snap-1", (base,))
    store.collect([])
    assert layer.exists()  # not discarded yet
    store.discard(layer)
    store.collect([])
    assert not layer.exists()
    assert base.exists()


def test_it_stays_while_a_machine_lies_on_it(store: LayerStore, base: Path) -> None:
    layers = _snapshot(store, "snap-1", (base,))
    store.discard(layers[0])
    store.collect(layers)
    assert layers[0].exists()
    store.collect([])
    assert not layers[0].exists()


def test_it_stays_while_a_snapshot_lies_on_it(store: LayerStore, base: Path) -> None:
    first = _snapshot(store, "snap-1", (base,))
    second = _snapshot(store, "snap-2", first)
    store.discard(first[0])
    store.collect([])
    assert first[0].exists()
    store.discard(second[0])
    store.collect([])
    assert not first[0].exists()
    assert not second[0].exists()


def test_base_trees_are_never_discarded(store: LayerStore, base: Path) -> None:
    store.discard(base)
    store.collect([])
    assert base.exists()


def test_a_copy_is_whole_or_absent(store: LayerStore, tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="snap-1"):
        store.copy(tmp_path / "missing", "snap-1")
    assert not store.layer("snap-1").exists()
    assert list(store.layer("snap-1").parent.glob("*")) == []


def test_many_layers_fit_into_one_page_of_options(tmp_path: Path) -> None:
    layers = tuple(tmp_path / "a rather long directory name" / f"snap-{n:017x}" for n in range(500))
    option = link_layers(layers, tmp_path / "links")
    assert len(option) < 2048
    assert [(tmp_path / "links" / name).readlink() for name in option.split(":")] == list(layers)


def test_what_is_in_a_snapshot_can_be_looked_at(store: LayerStore, base: Path, tmp_path: Path) -> None:
    layers = _snapshot(store, "snap-1", (base,))
    assert store.layers_of("snap-1") == layers
    store.discard(layers[0])
    for gone in ("snap-1", "snap-2"):
        with pytest.raises(MachineError, match=f"no snapshot {gone}"):
            store.layers_of(gone)
    for some in (layers, layers[:1]):
        with pytest.raises(MachineError, match="nowhere"):
            mount_read_only(some, tmp_path / "nowhere")
