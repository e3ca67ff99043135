"""tools/ci.py: order and choice of the steps, what a failing one leads to, and what is reported of them."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bake
import ci
import ci_report
import ci_runner
from ci_report import Report, all_well, estimate, times, totals
from ci_runner import Check, Outcome, Runner
from ingot.rehearse import Rehearsal
from ingot.rehearse_target import RehearsalError
from steps import LEFT_OUT, ROOT


def check(name: str, script: str, group: str = "test", limit: float = 1, needs: str = "") -> Check:
    return Check(name, group, ("sh", "-c", script), limit=limit, needs=needs)


def statuses(runner: Runner) -> dict[str, str]:
    return {outcome.check.name: outcome.status for outcome in runner.outcomes}


@pytest.fixture
def own_region(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file that a purge of the region appends to, instead of purging."""
    log = tmp_path / "purged"

    def purge(name: str) -> Check:
        return Check(name, "purge", ("sh", "-c", f"echo '{name}' >> {log}"))

    for module in (ci, ci_runner):
        monkeypatch.setattr(module, "purge", purge)
    return log


# --- running ------------------------------------------------------------------------------------------------


def test_steps_after_a_failure_are_not_run(tmp_path: Path) -> None:
    runner = Runner()
    runner.run_all([check("a", "true"), check("b", "false"), check("c", f"touch {tmp_path}/ran")])
    assert [outcome.status for outcome in runner.outcomes] == ["passed", "failed", "skipped"]
    assert not (tmp_path / "ran").exists()
    assert totals(runner.outcomes) == "1 passed, 1 failed, 1 skipped"


def test_a_full_run_goes_on_with_other_groups_and_an_empty_region(own_region: Path) -> None:
    runner = Runner()
    steps = [
        check("cluster", "false", "rehearse"),
        check("of it", "true", "rehearse"),
        check("pages", "true", "docs", needs="cluster"),
        check("roles", "true", "molecule"),
    ]
    runner.run_all(steps, go_on=True)
    emptied = "the region is emptied after cluster"
    assert statuses(runner) == {
        "cluster": "failed",
        emptied: "passed",
        "of it": "skipped",
        "pages": "skipped",
        "roles": "passed",
    }
    assert own_region.read_text() == f"{emptied}\n"
    assert not all_well(runner.outcomes)


def test_a_full_run_ends_with_what_is_cheap_to_run_again(own_region: Path) -> None:
    runner = Runner()
    runner.run_all([check("tests", "false", "unit"), check("roles", "true", "molecule")], go_on=True)
    assert statuses(runner) == {"tests": "failed", "roles": "skipped"}
    assert not own_region.exists()


def test_a_region_that_cannot_be_emptied_ends_a_full_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ci_runner, "purge", lambda name: Check(name, "purge", ("false",)))
    runner = Runner()
    runner.run_all([check("a", "false", "local"), check("b", "true", "bench")], go_on=True)
    assert statuses(runner)["b"] == "skipped"


def test_a_step_with_nothing_to_do_is_left_out_and_says_why() -> None:
    runner = Runner()
    script = f"echo none in the store > $INGOT_STEP_REMARK; exit {LEFT_OUT}"
    runner.run_all([check("a", script), check("b", "true")])
    first, second = runner.outcomes
    assert (first.status, first.remark, second.status) == ("left out", "none in the store", "passed")
    assert all_well(runner.outcomes)
    assert totals(runner.outcomes) == "1 passed, 0 failed, 1 left out"
    assert "none in the store" in ci_report.table(runner.outcomes)


def beside(name: str, script: str) -> Check:
    return Check(name, "molecule", ("sh", "-c", script), limit=1, beside=True)


def test_neighbours_with_machines_of_their_own_run_beside_each_other(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # Each waits for the other, which it could not in a row.
    meet = "echo from {0}; touch {2}/{0}; until test -e {2}/{1}; do sleep 0.05; done"
    steps = [
        check("image", "true", "molecule"),
        beside("a", meet.format("a", "b", tmp_path)),
        beside("b", meet.format("b", "a", tmp_path)),
        check("last", "true", "molecule"),
    ]
    runner = Runner()
    runner.run_all(steps)
    assert statuses(runner) == dict.fromkeys(("image", "a", "b", "last"), "passed")
    said = capfd.readouterr().out
    assert "--- what a said\nfrom a\n=== a: passed" in said
    assert "=== [3/4] b" in said
    assert "=== [4/4] last" in said


def test_none_is_begun_after_one_beside_it_has_failed(tmp_path: Path) -> None:
    steps = [beside("a", "false"), *(beside(f"b{n}", f"sleep 0.3; touch {tmp_path}/{n}") for n in range(5))]
    runner = Runner()
    runner.run_all(steps)
    begun = statuses(runner)
    assert begun["a"] == "failed" and begun["b4"] == "skipped"
    assert len(list(tmp_path.iterdir())) == list(begun.values()).count("passed") < 3


def test_a_step_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    runner = Runner()
    runner.run_all([check("hangs", f"sleep 77 & echo $! > {tmp_path}/pid; wait", limit=0.5 / 60)])
    assert runner.outcomes[0].status == "failed"
    process = Path("/proc", (tmp_path / "pid").read_text().strip(), "stat")
    # Gone, or dead and waiting for whoever is init here to notice.
    deadline = time.monotonic() + 10
    while process.exists() and process.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_signal_ends_all_that_run_beside_each_other() -> None:
    runner = Runner()
    previous = signal.signal(signal.SIGTERM, runner.on_signal)
    try:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
        started = time.monotonic()
        runner.run_all([beside(name, "sleep 60") for name in "abc"])
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert time.monotonic() - started < 20
    assert sorted(statuses(runner).values()) == ["interrupted", "interrupted", "skipped"]


@pytest.mark.parametrize("when", ["it runs", "it is being started"])
def test_a_signal_ends_the_step_and_skips_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    runner = Runner()
    previous = signal.signal(signal.SIGTERM, runner.on_signal)
    start = subprocess.Popen

    def interrupted(*arguments: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return start(*arguments, **options)

    try:
        if when == "it runs":
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
        else:
            monkeypatch.setattr(subprocess, "Popen", interrupted)
        started = time.monotonic()
        runner.run_all([check("long", "sleep 60"), check("next", f"touch {tmp_path}/ran")], go_on=True)
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert time.monotonic() - started < 20
    assert [outcome.status for outcome in runner.outcomes] == ["interrupted", "skipped"]
    assert not (tmp_path / "ran").exists()


# --- reports ------------------------------------------------------------------------------------------------


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The report of a checkout of its own."""
    path = tmp_path / "docs/report.md"
    path.parent.mkdir()
    path.write_text("| one | passed | 1 min 01 s |\n")
    (tmp_path / "code.py").touch()
    who = ("-c", "user.name=t", "-c", "user.email=t@example.com")
    for command in (("init", "-q"), ("add", "."), (*who, "commit", "-q", "-m", "x")):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    monkeypatch.setattr(ci_report, "ROOT", tmp_path)
    monkeypatch.setattr(ci_report, "REPORT", path)
    monkeypatch.setenv("INGOT_CACHE", str(tmp_path))
    yield path


ONE, TWO = check("one", ""), check("two", "", limit=360)


def test_the_report_has_commit_results_remarks_and_times(report: Path) -> None:
    outcomes = [Outcome(ONE, "passed", 61.0), Outcome(TWO, "passed", 5.0, "two builds are the same")]
    Report([ONE, TWO]).finished(outcomes, interrupted=False)
    text = report.read_text()
    assert "| one | passed | 1 min 01 s |" in text
    assert "| two | passed (two builds are the same) | 5.0 s |" in text
    assert "- Result: 2 passed, 0 failed in 1 min 06 s" in text
    assert f"- Commit: `{ci_report.commit()}`" in text
    assert times(text) == {"one": 61.0, "two": 5.0}


def test_a_run_that_is_ended_by_force_leaves_what_it_did_and_is_no_result(report: Path) -> None:
    ended = Report([ONE, TWO])
    Runner(ended.unfinished).run_all([check("one", "true")])
    text = ended.so_far.read_text()
    assert report.read_text() == "| one | passed | 1 min 01 s |\n"  # the checkout is as it was
    assert "- Result: **interrupted**, or still running: 1 passed, 0 failed, 1 not run in" in text
    assert "| two | not run | 0.0 s |" in text
    assert list(times(text)) == ["one"]
    ended.finished([Outcome(ONE, "passed")], interrupted=False)
    assert not ended.so_far.exists()


def test_a_run_goes_on_where_one_of_the_same_commit_was_stopped(report: Path) -> None:
    steps = [ONE, check("machines", ""), check("more", "", needs="machines"), TWO]
    ended = Report(steps)
    ended.unfinished([Outcome(step, "passed", 61.0, "why") for step in (ONE, steps[1])])
    # `more` did not run, and needs what `machines` leaves in the region
    assert Report(steps).taken() == [Outcome(ONE, "passed", 61.0, "why")]
    (report.parents[1] / "code.py").write_text("changed")
    assert Report(steps).taken() == []


def test_a_failed_run_leaves_what_it_did(report: Path) -> None:
    ended = Report([ONE, TWO])
    outcomes = [Outcome(ONE, "passed"), Outcome(TWO, "failed")]
    ended.unfinished(outcomes)
    ended.finished(outcomes, interrupted=False)
    assert Report([ONE, TWO]).taken() == [Outcome(ONE, "passed")]


def test_resume_is_refused_without_a_full_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        ci.main(["--resume"])
    assert "--resume goes with --full" in capsys.readouterr().err


def test_a_run_that_a_signal_ended_is_called_interrupted(report: Path) -> None:
    outcomes = [Outcome(ONE, "passed"), Outcome(TWO, "interrupted")]
    Report([ONE, TWO]).finished(outcomes, interrupted=True)
    assert "- Result: **interrupted**: 1 passed, 0 failed, 1 interrupted in" in report.read_text()
    assert not all_well(outcomes)


def test_a_checkout_is_not_changed_by_its_report(report: Path) -> None:
    clean = ci_report.commit()
    report.write_text("of an earlier run, interrupted")
    assert ci_report.commit() == clean
    (report.parents[1] / "code.py").write_text("changed")
    assert ci_report.commit() == f"{clean}-dirty"


def test_how_long_it_takes_is_told_by_the_committed_report(report: Path) -> None:
    report.write_text("of an earlier run, interrupted")
    told = estimate([ONE, TWO], ci_report.committed_times())
    assert told == (
        "2 steps, which took 1 min 01 s in the last committed report; not in it: two (at most 360 min)"
    )


def test_the_committed_report_can_be_read() -> None:
    known = times((ROOT / "docs/test-full-report.md").read_text())
    assert known["ruff check"] < known["rehearse"]


# --- which steps there are ----------------------------------------------------------------------------------


def test_two_runs_do_not_share_the_region(tmp_path: Path) -> None:
    """The second would purge the first one's machines."""
    with (tmp_path / "ci.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert not ci.claim_region(tmp_path / "ci.lock")
    assert ci.claim_region(tmp_path / "ci.lock")


def test_the_cheapest_checks_come_first() -> None:
    groups = list(dict.fromkeys(check.group for check in ci.checks() if not check.long))
    assert groups[:3] == ["lint", "unit", "source"]
    assert groups.index("rehearse") < groups.index("docs")
    everything = list(dict.fromkeys(check.group for check in ci.checks()))
    assert everything[-2:] == ["arm64", "graviton"]
    assert [check.name for check in ci.checks()][-2:] == ["graviton4", "graviton3, compiled"]


def test_what_a_step_needs_comes_before_it() -> None:
    names = [check.name for check in ci.checks()]
    for number, item in enumerate(ci.checks()):
        assert not item.needs or item.needs in names[:number]


@pytest.mark.parametrize(
    ("group", "first", "others"),
    [
        ("molecule", "an image for the scenarios", "molecule ray"),
        ("docs", "rehearse", "commands of the documents"),
    ],
)
def test_a_group_alone_makes_what_it_needs_first(
    group: str, first: str, others: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ci.main(["--only", group, "--list"]) == 0
    listed = [line[10:] for line in capsys.readouterr().out.splitlines()]
    assert listed[0] == first and others in listed
    assert "first causes" not in listed


def test_a_part_of_a_full_run_writes_no_report(
    report: Path, own_region: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = report.read_text()
    monkeypatch.setattr(ci, "checks", lambda: [check("one", "true", "lint"), check("two", "true", "unit")])
    assert ci.main(["--full", "--only", "lint"]) == 0
    assert report.read_text() == before
    assert ci.main(["--full"]) == 0
    assert "2 passed, 0 failed" in report.read_text()


def test_every_step_names_a_program_that_is_there() -> None:
    for item in ci.checks():
        assert Path(item.argv[0]).exists(), item.name
    assert sys.executable.startswith(str(ROOT / ".venv"))


# --- the image of the scenarios -----------------------------------------------------------------------------


def test_a_bake_that_fails_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_: Rehearsal) -> None:
        raise RehearsalError("`packer build` failed (status 1)")

    monkeypatch.setattr(Rehearsal, "bring_up", lambda _: None)
    monkeypatch.setattr(Rehearsal, "bake", lambda _: None)
    assert bake.main() == 0
    monkeypatch.setattr(Rehearsal, "bake", fails)
    assert bake.main() == 1
    assert "`packer build` failed" in capsys.readouterr().err
