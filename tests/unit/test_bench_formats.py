"""What `make bench-formats` takes for right, and what it says of formats that do not load."""

from __future__ import annotations

from typing import cast

import pytest

from bench_formats import LIMIT_SECONDS, first_error, trial
from bench_node import Node
from format_results import Outcome, Trials, page


def outcome(name: str, loss: float, *, speed: float = 10) -> Outcome:
    return Outcome(
        name=name, loss=loss, loss_expected=2.0, bytes=1, tokens=100, tokens_s={"1": speed, "16": speed}
    )


def trials(*outcomes: Outcome) -> Trials:
    return Trials(
        date="2026-11-30", commit="abc", machine="m", engine="e", extension="_C", outcomes=list(outcomes)
    )


@pytest.mark.parametrize(
    ("name", "loss", "verdict"),
    [
        ("int4-gptq", 2.01, "right"),
        ("int4-gptq", 2.05, "WRONG"),
        ("int4-gptq", 1.9, "WRONG"),  # too good is wrong, too: it computed something else
        ("int8-w8a8", 2.05, "right"),  # activations are rounded as well
        ("int8-w8a8", 2.2, "WRONG"),
        ("int8-online", 2.05, "WRONG"),  # weights alone
    ],
)
def test_right_is_what_fp32_says_of_the_same_weights(name: str, loss: float, verdict: str) -> None:
    assert outcome(name, loss).verdict == verdict


def test_the_first_exception_is_the_reason() -> None:
    said = (
        "(EngineCore pid=12) ERROR 11-30 20:00:00 [core.py:99] ValueError: no kernel for W4A8 on this CPU\n"
        "Traceback (most recent call last):\n"
        "RuntimeError: Engine core initialization failed\n"
    )
    assert first_error(said) == "ValueError: no kernel for W4A8 on this CPU"
    assert first_error("Killed\n") == "Killed"
    assert first_error("") == "it said nothing"


def test_a_format_that_never_ends_is_ended_and_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        def root(self, command: str) -> str:
            assert f"RuntimeMaxSec={LIMIT_SECONDS}" in command
            return "Using Dynamic4bitLinearKernel for it"

    clock = iter([0.0, LIMIT_SECONDS + 1.0])
    monkeypatch.setattr("bench_formats.time.monotonic", lambda: next(clock))
    found = trial(cast(Node, Slow()), "int4-w4a8")
    assert (found.error, found.kernels) == ("not done after 300 s", ["Dynamic4bitLinearKernel"])


def test_the_page_has_speed_by_bf16_and_what_does_not_load() -> None:
    broken = Outcome(name="fp8-w8a8", error="NotImplementedError: a | b")
    text = page(trials(outcome("bf16", 2.0), outcome("int4-gptq", 2.0, speed=15), broken))
    assert "| `int4-gptq` | right | 2.0000 / 2.0000 | 0.000 | 0 MB | 1.50 / 1.50 | - |" in text
    assert "| `fp8-w8a8` | does not work | | | | | NotImplementedError: a / b |" in text


def test_without_bf16_there_is_no_ratio() -> None:
    assert trials().faster(outcome("int4-gptq", 2.0), "1") == "-"
