"""What `make bench-formats` takes for right, what it says of formats that do not load, and what it keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

import bench_formats
from bench_formats import WAYS, first_error, place_of, require_wheel, trial
from bench_node import Node
from format_results import Outcome, Run, Trials, page
from steps import ToolError

NATIVE = Run(
    date="2026-11-30 12:00:00", commit="abc", machine="2 cores", emulated="", engine="vLLM", extension="_C"
)
EMULATED = NATIVE.model_copy(update={"emulated": "Neoverse-V1"})
NAMES = ["bf16", "int4-gptq", "fp8-w8a8", "int8-online"]


def outcome(name: str, loss: float, *, speed: float = 10, run: Run = NATIVE) -> Outcome:
    speeds = {} if run.emulated else {"1": speed, "16": speed}
    return Outcome(name=name, run=run, loss=loss, loss_expected=2.0, bytes=1, tokens=100, tokens_s=speeds)


def trials(*outcomes: Outcome) -> Trials:
    return Trials(places={"x86-64-v4": list(outcomes)})


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


@pytest.mark.parametrize("image", list(WAYS))
def test_a_format_that_never_ends_is_ended_and_said_to_be(
    image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = WAYS[image].limit

    class Slow:
        def root(self, command: str) -> str:
            assert f"RuntimeMaxSec={limit}" in command
            assert f"VLLM_ENGINE_READY_TIMEOUT_S={limit}" in command  # vLLM's own is ten minutes
            assert ("--untimed" in command) == (image != "x86")
            return "Using Dynamic4bitLinearKernel for it"

    clock = iter([0.0, limit + 1.0])
    monkeypatch.setattr("bench_formats.time.monotonic", lambda: next(clock))
    found = trial(cast(Node, Slow()), WAYS[image], "int4-w4a8", NATIVE)
    assert (found.error, found.kernels) == (f"not done after {limit} s", ["Dynamic4bitLinearKernel"])


def test_the_page_has_speed_by_bf16_and_what_does_not_load() -> None:
    broken = Outcome(name="fp8-w8a8", run=NATIVE, error="NotImplementedError: a | b")
    text = page(trials(outcome("bf16", 2.0), outcome("int4-gptq", 2.01, speed=15), broken), NAMES)
    row = "| `int4-gptq` | x86-64-v4 | right | 2.0100 / 2.0000 | 0.000 | 0 MB | 1.50 / 1.50 | - | 1 |"
    assert row in text
    assert "| `fp8-w8a8` | x86-64-v4 | does not work | | | | | NotImplementedError: a / b | 1 |" in text
    assert "1. 2026-11-30, commit `abc`, native, 2 cores; vLLM, which loads `_C` there." in text


def test_a_format_with_the_very_numbers_of_bf16_does_nothing() -> None:
    text = page(trials(outcome("bf16", 2.001), outcome("int8-online", 2.001)), NAMES)
    assert "| `int8-online` | x86-64-v4 | does nothing: bf16's numbers |" in text
    assert "| `bf16` | x86-64-v4 | right |" in text


def test_an_emulated_core_has_no_speed_and_is_said_to_be_emulated() -> None:
    found = trials(outcome("bf16", 2.0)).with_outcome("arm", outcome("bf16", 2.0, run=EMULATED))
    text = page(found, NAMES)
    assert "| `bf16` | arm | right | 2.0000 / 2.0000 | 0.000 | 0 MB | - / - | - | 2 |" in text
    assert "2. 2026-11-30, commit `abc`, **emulated** as Neoverse-V1 on 2 cores;" in text
    assert "tokens/s" not in outcome("bf16", 2.0, run=EMULATED).line()


def test_bf16_of_another_run_is_no_measure() -> None:
    later = NATIVE.model_copy(update={"date": "2026-12-01 12:00:00"})
    found = trials(outcome("bf16", 2.0), again := outcome("int4-gptq", 2.0, run=later))
    assert found.faster("x86-64-v4", again, "1") == "-"


def test_one_processor_does_not_lose_what_was_found_on_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_formats, "DATA", tmp_path / "formats.json")
    monkeypatch.setattr(bench_formats, "PAGE", tmp_path / "formats.md")
    bench_formats.keep("x86-64-v4", outcome("bf16", 2.0))
    bench_formats.keep("arm", outcome("bf16", 2.0, run=EMULATED))
    bench_formats.keep("arm", outcome("int4-gptq", 2.0, run=EMULATED))
    bench_formats.keep("arm", outcome("bf16", 3.0, run=EMULATED))  # the last one counts
    kept: dict[str, Any] = json.loads((tmp_path / "formats.json").read_text())["places"]
    found = {place: {row["name"]: row["loss"] for row in rows} for place, rows in kept.items()}
    assert found == {"x86-64-v4": {"bf16": 2.0}, "arm": {"bf16": 3.0, "int4-gptq": 2.0}}
    text = (tmp_path / "formats.md").read_text()
    assert "| `bf16` | x86-64-v4 | right |" in text and "| `bf16` | arm | WRONG |" in text


def test_what_is_not_tried_is_listed_with_its_source() -> None:
    text = page(Trials(), ["bf16", "fp8-online"])
    rest = text.partition("## Not tried")[2]
    assert "| gguf | x86-64-v3, x86-64-v4, x86-64-amx, arm | none | docs/features/quantization" in rest
    assert "| fp8 |" not in rest and "| bf16 |" not in rest and "| nvfp4 |" in rest


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ("flags : sse avx2 fma", "x86-64-v3"),
        ("flags : avx2 avx512f avx512_bf16", "x86-64-v4"),
        ("flags : avx512f amx_tile", "x86-64-amx"),
        ("Features : fp asimd sve", "arm"),
    ],
)
def test_the_processor_says_where_it_is(words: str, place: str) -> None:
    assert place_of(words) == place


def test_a_vllm_that_would_have_to_be_compiled_first_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGOT_CACHE", str(tmp_path))
    with pytest.raises(ToolError, match=r"no vLLM for graviton3.*tools/graviton.py --image graviton3"):
        require_wheel("graviton3")
    require_wheel("x86")
