"""What `make bench-boot` makes of its measurements."""

from __future__ import annotations

from pathlib import Path

import pytest

import bench_boot
from bench_boot import AGAIN, ASK, AT_BOOT, BAKED, CONFIGURE, LAUNCH, START, Results, Run, page


def a_round(number: int, baked: float) -> list[Run]:
    """Installing takes 190 s after a launch of 10, what was baked is configured in so many."""
    return [
        Run(round=number, way=BAKED, phases={LAUNCH: 10, CONFIGURE: baked}),
        Run(round=number, way=AGAIN, phases={START: 20}),
        Run(round=number, way=AT_BOOT, phases={LAUNCH: 10, CONFIGURE: 190}),
    ]


def results(*runs: Run) -> Results:
    return Results(date="2026-12-01", commit="abc", machine="2 cores", runs=list(runs))


def test_each_way_is_told_by_phase_and_held_against_the_goal() -> None:
    text = page(results(*a_round(1, 40)))
    assert f"| {AT_BOOT} | 10.0 | 190.0 |  | 200.0 |  |" in text
    assert f"| {BAKED} | 10.0 | 40.0 |  | 50.0 | 0.25 (goal 0.1: missed) |" in text
    assert f"| {AGAIN} |  |  | 20.0 | 20.0 | 0.10 (goal 0.1: reached) |" in text


def test_ratios_are_those_of_one_round() -> None:
    assert results(*a_round(1, 40), *a_round(2, 90)).ratios(BAKED) == [0.25, 0.5]


def test_a_round_that_broke_off_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATA", "PAGE", "PLOT"):
        monkeypatch.setattr(bench_boot, name, tmp_path / name)
    monkeypatch.setattr(bench_boot, "ROOT", tmp_path)
    monkeypatch.setattr(bench_boot, "plot", lambda _: None)
    bench_boot.write(a_round(1, 40)[:2])
    assert list(tmp_path.iterdir()) == []
    bench_boot.write([*a_round(1, 40), *a_round(2, 40)[:1]])
    assert "rounds: 1;" in (tmp_path / "PAGE").read_text()


def test_the_program_that_asks_is_one() -> None:
    compile(ASK, "ask", "exec")
