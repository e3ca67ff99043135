"""`ingot channel`: what is promoted, refused, taken back and removed, against moto's EC2, SSM and STS."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.client import BaseClient
from channels import COMMIT, Region, account
from typer.testing import CliRunner

from ingot.channels import stores
from ingot.cli import app

OTHER = "b" * 40


@pytest.fixture
def region(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Region]:
    yield from account(tmp_path, monkeypatch, getattr(request, "param", "ssm"))


both_stores = pytest.mark.parametrize("region", ["ssm", "directory"], indirect=True)


@both_stores
def test_a_set_goes_from_verdicts_to_stable(region: Region) -> None:
    x86, arm = region.image(), region.image("graviton3")
    said = region.ok("promote", "candidate", region.verdict(x86), region.verdict(arm, "graviton3"))
    assert "promote: candidate holds aaaaaaaaaaaa-" in said
    region.ok("promote", "beta", "--why", "a week in candidate")
    region.ok("promote", "stable")
    assert region.holds("stable") == {"x86": x86, "graviton3": arm}
    assert "aaaaaaaaaaaa-" in region.ok("list", "--log")
    assert "holds aaaaaaaaaaaa-" in region.ok("promote", "stable"), "a second run changes nothing"


PLANTED: dict[str, tuple[str, Callable[[Region, str], list[str]]]] = {
    "a check that failed": (
        "verdict-failed",
        lambda r, i: [r.verdict(i, rows=[{**_row(), "verdict": "failed"}])],
    ),
    "a verdict without a check": (
        "verdict-failed: the verdict on .* failed: \\(no checks\\)",
        lambda r, i: [r.verdict(i, rows=[])],
    ),
    "a verdict 15 days old": ("verdict-too-old", lambda r, i: [r.verdict(i, days=15)]),
    "the verdict of another commit": ("verdict-of-another-commit", lambda r, i: [r.verdict(i, commit=OTHER)]),
    "the verdict of another image": ("verdict-of-another-image", lambda r, i: [r.verdict(i, "graviton3")]),
    "an image that is gone": (
        "image-not-available: there is no ami-0",
        lambda r, i: [r.verdict("ami-00000000000000000")],
    ),
    "images of two commits": (
        "mixed-set",
        lambda r, i: [
            r.verdict(i),
            r.verdict(r.image("graviton3", OTHER), "graviton3", OTHER),
        ],
    ),
    "images of a checkout that was changed": (
        "no-commit",
        lambda r, i: [r.verdict(r.image(commit=f"{COMMIT}-dirty"), commit=f"{COMMIT}-dirty")],
    ),
    "two images of one name": ("image-twice", lambda r, i: [r.verdict(i), r.verdict(r.image())]),
    "a file that is no verdict": ("no-verdict: .*unknown", lambda r, i: [r.verdict(i, unknown=1)]),
    "no verdict at all": ("no-verdicts", lambda r, i: []),
}


def _row() -> dict[str, str]:
    return {"name": "hygiene", "verdict": "passed", "evidence": "", "limit": ""}


@pytest.mark.planted("promotion", check=lambda name: PLANTED[name][0].partition(":")[0])
@pytest.mark.parametrize("name", PLANTED)
def test_what_must_not_become_a_candidate_is_refused_by_name(region: Region, name: str) -> None:
    refusal, plant = PLANTED[name]
    said = region.refused("promote", "candidate", *plant(region, region.image()))
    assert re.search(refusal, " ".join(said.split())), said


def test_a_set_that_lacks_an_image_of_the_channel_is_refused_unless_it_is_dropped(region: Region) -> None:
    both = [region.verdict(region.image()), region.verdict(region.image("graviton3"), "graviton3")]
    region.ok("promote", "candidate", *both)
    fewer = region.verdict(region.image(commit=OTHER), commit=OTHER)
    assert "set-lacks-image: candidate holds graviton3" in region.refused("promote", "candidate", fewer)
    region.ok("promote", "candidate", fewer, "--drop", "graviton3")
    assert list(region.holds("candidate")) == ["x86"]


def test_nothing_comes_from_an_empty_channel_or_to_an_unknown_one(region: Region) -> None:
    assert "channel-empty: candidate is empty" in region.refused("promote", "beta")
    assert "no-such-channel: there is no channel gold" in region.refused("promote", "gold")
    assert "no-verdicts-here" in region.refused("promote", "beta", region.verdict(region.image()))


def test_a_set_that_has_grown_old_or_lost_an_image_goes_no_further(region: Region) -> None:
    image_id = region.image()
    region.ok("promote", "candidate", region.verdict(image_id, days=5))
    assert "set-too-old" in region.refused("promote", "beta", "--most-days", "3")
    region.ec2.deregister_image(ImageId=image_id)
    assert f"image-not-available: there is no {image_id}" in region.refused("promote", "beta")


def test_a_pinned_channel_takes_nothing_until_it_is_unpinned(region: Region) -> None:
    region.released()
    region.ok("pin", "stable", "--why", "a launch on Friday")
    assert "channel-pinned" in region.refused("pin", "stable", "--why", "again")
    region.ok("promote", "candidate", region.verdict(region.image(commit=OTHER), commit=OTHER))
    region.ok("promote", "beta")
    said = region.refused("promote", "stable")
    assert "channel-pinned: stable was pinned on" in said
    assert "a launch on Friday" in said
    region.ok("unpin", "stable")
    region.ok("promote", "stable")
    assert "not-pinned" in region.refused("unpin", "stable")


def test_a_rollback_returns_to_the_last_good_set_and_what_was_given_up_does_not_come_back(
    region: Region,
) -> None:
    first, second = region.released(), region.released(commit=OTHER)
    assert region.holds("stable") == {"x86": second}
    region.ok("rollback", "stable", "--why", "wrong text at batch 8")
    assert region.holds("stable") == {"x86": first}
    said = region.refused("promote", "stable")
    assert "set-was-rolled-back" in said
    assert "wrong text at batch 8" in said
    assert "nothing-to-return-to: stable has held no other set" in region.refused(
        "rollback", "stable", "--why", "x"
    )


def test_a_set_that_was_given_up_comes_back_when_it_is_verified_again(region: Region) -> None:
    region.released()
    second = region.released(commit=OTHER)
    region.ok("rollback", "stable", "--why", "a mistake of the test's")
    region.ok("promote", "candidate", region.verdict(second, commit=OTHER))
    region.ok("promote", "beta")
    region.ok("promote", "stable")
    assert region.holds("stable") == {"x86": second}


def test_a_set_whose_images_are_gone_is_not_returned_to(region: Region) -> None:
    first, _ = region.released(), region.released(commit=OTHER)
    region.ec2.deregister_image(ImageId=first)
    assert "nothing-to-return-to: the images of" in region.refused("rollback", "stable", "--why", "x")


@both_stores
def test_of_two_who_promote_at_once_one_is_told(region: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    region.released("candidate")
    add = type(_store(region)).add

    def beaten(self: stores.Store, channel: str, number: int, text: str) -> None:
        add(self, channel, number, text.replace("user/moto", "user/colleague"))
        add(self, channel, number, text)

    monkeypatch.setattr(type(_store(region)), "add", beaten)
    status, said = region.run("promote", "beta")
    assert status == 1
    assert "changed-meanwhile" in said
    assert len(_store(region).log("beta")) == 1


def _store(region: Region) -> stores.Store:
    return stores.Ssm(region.ssm) if region.where == "ssm" else stores.Directory(Path(region.where))


@pytest.mark.parametrize("dies_at", range(8))
def test_killed_at_any_call_it_completes_when_it_is_run_again(
    region: Region, monkeypatch: pytest.MonkeyPatch, dies_at: int
) -> None:
    image_id = region.released("candidate")
    calls = 0
    send = BaseClient._make_api_call  # type: ignore[attr-defined]

    def dying(self: Any, operation: str, *rest: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > dies_at:
            raise KeyboardInterrupt
        return send(self, operation, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(BaseClient, "_make_api_call", dying)
        CliRunner().invoke(app, ["channel", "promote", "beta"])
    region.ok("promote", "beta")
    assert region.holds("beta") == {"x86": image_id}
    assert stores.Ssm(region.ssm).pointers("beta") == {"x86": image_id}
    assert len(stores.Ssm(region.ssm).log("beta")) == 1, "once, however often it was asked for"


@both_stores
def test_a_log_that_was_changed_is_not_trusted(region: Region) -> None:
    region.released(), region.released(commit=OTHER)
    first = region.state()[2][1][0]
    changed = first.replace("promote", "unpin", 1)
    if region.where == "ssm":
        region.ssm.put_parameter(Name="/ingot/channels/stable/000001", Value=changed, Overwrite=True)
    else:
        (Path(region.where) / "stable/000001.json").write_text(changed)
    assert "record 2 of stable does not follow the one before it" in region.refused("list")


def test_prune_shows_first_and_removes_only_what_nothing_needs(region: Region) -> None:
    released = region.released()
    started, templated, young, old = (region.image() for _ in range(4))
    region.ec2.run_instances(ImageId=started, MinCount=1, MaxCount=1)
    data = {"ImageId": templated}
    region.ec2.create_launch_template(LaunchTemplateName="workers", LaunchTemplateData=data)
    shown = region.ok("prune", "--retention-days", "0")
    for image_id, why in (
        (released, "in "),
        (started, "instance i-"),
        (templated, "launch template workers"),
    ):
        (line,) = (line for line in shown.splitlines() if line.startswith(image_id))
        assert why in line
    assert "2 images and 0 left-over snapshots would go" in shown
    assert "0 images" in region.ok("prune"), "all are younger than 30 days"
    snapshots = region.snapshots(old)
    region.ok("prune", "--retention-days", "0", "--delete")
    left = {image["ImageId"] for image in region.ec2.describe_images(Owners=["self"])["Images"]}
    assert {released, started, templated} <= left
    assert not left & {young, old}
    there = {each["SnapshotId"] for each in region.ec2.describe_snapshots(OwnerIds=["self"])["Snapshots"]}
    assert not there & set(snapshots)
