"""An image proves itself on clones and goes through the channels; one that somebody has changed does not."""

from __future__ import annotations

import os

from release_account import Account

PLANTED = {
    "hygiene-fresh": "echo export HF_TOKEN=x > /root/.bash_history",
    "surface-fresh": "cp /usr/bin/env /usr/local/bin/env && chmod 4755 /usr/local/bin/env",
    "manifest-weights": "cd /opt/ingot/models/*/*/ && truncate --size=-4096 model.safetensors",
}
"""What is done to the image, by the check that names it."""


def test_an_image_is_verified_and_released(account: Account) -> None:
    image = account.newest()
    image_id, canary = image["ImageId"], os.environ.get("INGOT_CANARY_FILE", "")
    said, verdict = account.verify(image_id, verify_canary_file=canary)
    rows = {row["name"]: row for row in verdict["rows"]}
    assert [row for row in rows.values() if row["verdict"] == "failed"] == [], said
    assert rows["second-boot-answer"]["verdict"] == "passed"
    for moment in ("fresh", "unbooted"):
        assert rows[f"canary-{moment}"]["verdict"] == ("passed" if canary else "left out")
    report = account.verdict(image_id).with_name("report.html").read_text()
    assert "May be published" in report
    first = account.channel("promote", "candidate", str(account.verdict(image_id)))
    if verdict["tags"]["ingot:commit"].endswith("-dirty"):  # somebody's own checkout, on the way to a commit
        assert "no-commit" in first.stdout
        return
    for channel in ("beta", "stable"):
        assert account.channel("promote", channel).returncode == 0
    assert f"x86 {image_id}" in account.channel("list").stdout


def test_an_image_that_was_changed_is_stopped_before_promotion(account: Account) -> None:
    plant = "; ".join(PLANTED.values())
    with account.changed(account.newest(), plant, "ingot-x86-changed") as bad:
        said, verdict = account.verify(bad)
        refused = account.channel("promote", "candidate", str(account.verdict(bad)))
    failed = {row["name"] for row in verdict["rows"] if row["verdict"] == "failed"}
    assert set(PLANTED) <= failed, said
    assert "first-boot-answer" not in {row["name"] for row in verdict["rows"]}, "it was not even configured"
    assert refused.returncode != 0
    assert "verdict-failed" in refused.stdout
