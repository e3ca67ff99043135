"""What a person reads."""

from __future__ import annotations

from ingot.preflight.refusal import Refusal, report


def test_the_report_counts_and_says_what_to_do() -> None:
    refusals = [Refusal("no-head", "there is none", "Tag one"), Refusal("x", "y", "Z")]
    text = report(refusals)
    assert "2 things stand in the way. Nothing was changed." in text
    assert "no-head: there is none." in text
    assert "Tag one." in text
