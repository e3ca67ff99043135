"""What `make bench-cpu` keeps of its runs, refuses, and writes."""

from __future__ import annotations

from typing import Any

import pytest

from bench_cpu import LOADS, VARIANTS, Measured, as_run, load_command, order, stock_command
from bench_results import STOCK, TUNED, Results, Run, Start, goals, page
from ingot import graphs
from ingot.doctor.__main__ import parser as doctor_parser
from ingot.graphs import ANEW, CACHED, RELOAD_FAILED
from steps import ROOT, ToolError


def a_run(variant: str, number: int, tokens: float, concurrency: int = 16, itl: float = 10) -> Run:
    return Run(
        round=number,
        variant=variant,
        concurrency=concurrency,
        requests=64,
        output_tokens_s=tokens,
        ttft_ms=100,
        ttft_p99_ms=200,
        itl_ms=itl,
        itl_p99_ms=20,
    )


def results(*runs: Run, triad: float = 40e9) -> Results:
    return Results(
        date="2026-11-30",
        commit="abc",
        machine="2 cores",
        vllm="vLLM",
        model="m",
        weight_bytes=200_000_000,
        input_tokens=128,
        output_tokens=64,
        variants={name: variant.description for name, variant in VARIANTS.items()},
        triad_bytes_s=[triad],
        runs=list(runs),
        starts=[Start(round=1, variant=TUNED, graphs=ANEW), Start(round=1, variant="eager", graphs="")],
    )


def measured(**changes: Any) -> dict[str, Any]:
    figures = ("output_throughput", "median_ttft_ms", "p99_ttft_ms", "median_itl_ms", "p99_itl_ms")
    return {"completed": LOADS[4], **dict.fromkeys(figures, 1.0), **changes}


def test_ratios_are_those_of_one_round() -> None:
    # The machine was half as fast in the second round: the ratio is the same, that of the medians is not.
    run = results(
        a_run(TUNED, 1, 150),
        a_run(STOCK, 1, 100),
        a_run(TUNED, 2, 75),
        a_run(STOCK, 2, 50),
        a_run(TUNED, 3, 9),
    )
    assert run.ratios(TUNED, STOCK, 16) == [1.5, 1.5]
    assert "1.50 (1.50 to 1.50) times the tokens a second (goal 1.3: reached)" in goals(run)[0]


def test_a_goal_that_is_missed_is_said() -> None:
    run = results(a_run(TUNED, 1, 120), a_run(STOCK, 1, 100))
    assert "1.20 times the tokens a second (goal 1.3: missed)" in goals(run)[0]


@pytest.mark.parametrize(("triad", "said"), [(20e9, "reached"), (40e9, "missed")])
def test_decoding_is_held_against_the_bandwidth(triad: float, said: str) -> None:
    # 100 tokens a second, each of which reads 200 MB: 20 GB/s.
    run = results(a_run(TUNED, 1, 1, concurrency=1, itl=10), triad=triad)
    assert run.of_bandwidth() == pytest.approx(20e9 / triad)
    assert f"goal 0.7: {said}" in goals(run)[0]


def test_a_run_with_lost_requests_is_refused() -> None:
    with pytest.raises(ToolError, match=f"tuned, 4 at a time: 3 of {LOADS[4]} requests were answered"):
        as_run(1, TUNED, 4, measured(completed=3))
    assert as_run(1, TUNED, 4, measured(output_throughput=5.0)).output_tokens_s == 5.0


def test_what_was_measured_before_a_failure_is_kept_by_whole_rounds() -> None:
    names = [TUNED, STOCK]
    done = Measured("vLLM", 200_000_000, triads={1: 40e9, 2: 30e9})
    assert done.results(names) is None
    done.runs += [a_run(variant, 1, 100, load) for variant in names for load in LOADS]
    done.runs += [a_run(TUNED, 2, 50, load) for load in LOADS]  # stock was refused
    kept = done.results(names)
    assert kept
    assert (kept.rounds, kept.triad_bytes_s, len(kept.runs)) == ([1], [40e9], 2 * len(LOADS))


def test_every_round_begins_with_another_variant() -> None:
    assert [order(["a", "b", "c"], number) for number in (1, 2, 4)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["a", "b", "c"],
    ]


def test_stock_has_nothing_of_what_site_yml_sets() -> None:
    command = " ".join(stock_command("10.0.0.1", 1024))
    assert "--kv-cache-memory-bytes 1024" in command  # which both have
    assert "LD_PRELOAD" not in command
    assert "--config" not in command
    assert "--max-num-seqs" not in command


def test_the_key_is_in_no_command() -> None:
    command = load_command("10.0.0.1", 4, 7)
    assert "OPENAI_API_KEY=api-key" in command  # the name of the credential, not its content
    assert command[command.index("--seed") + 1] == "7"


def test_a_node_takes_the_command_of_the_load() -> None:
    """What stands before the client's own program is for the node's `ingot`, whose parser is this one."""
    command = load_command("10.0.0.1", 4, 7)
    start = command.index("/usr/bin/ingot")
    taken = doctor_parser().parse_args(command[start + 1 : command.index("--", start)])
    assert (taken.command, taken.credential) == ("launch", ["OPENAI_API_KEY=api-key"])


def test_the_page_says_what_each_setting_is_worth() -> None:
    run = results(a_run(TUNED, 1, 120), a_run(STOCK, 1, 100), a_run("no allocator", 1, 80))
    text = page(run, ["bench-cpu/ttft.svg"])
    assert "| allocator (`cpu_tuning_allocator: none`) | 1.50 |" in text
    assert "| tuned | 16 | 120.0 | 100 / 200 | 10.0 / 20.0 |" in text
    assert "![ttft](bench-cpu/ttft.svg)" in text


@pytest.mark.parametrize(
    ("line", "origin"),
    [
        ("INFO Compiling a graph for compile range (1, 2048) takes 9.31 s", ANEW),
        ("INFO Directly load AOT compilation from path /var/cache/ingot/vllm/torch_aot_compile/ab", CACHED),
        ("INFO Directly load the compiled graph(s) for compile range (1, 2048)", CACHED),
        (
            "WARN Compiling model again due to a load failure from /x, reason: No module named 'b'",
            RELOAD_FAILED,
        ),
        ("INFO Application startup complete.", ""),
    ],
)
def test_the_log_says_where_compiled_graphs_came_from(line: str, origin: str) -> None:
    assert graphs.origin(f"INFO before\n{line}\nINFO after") == origin


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (CACHED, "from the cache in 1 of 1 starts."),
        (RELOAD_FAILED, "in 0 of 1 starts (tuned in round 2: compiled again, for the cache failed to load)."),
    ],
)
def test_the_page_says_whether_a_second_start_took_the_cache(graph: str, said: str) -> None:
    run = results(a_run(TUNED, 1, 120))
    assert "took its graphs" not in page(run, [])
    again = Start(round=2, variant=TUNED, graphs=graph)
    assert said in page(run.model_copy(update={"starts": [*run.starts, again]}), [])


def test_knobs_are_variables_of_roles() -> None:
    said = "".join(path.read_text() for path in ROOT.glob("roles/*/defaults/main.yml"))
    for variant in VARIANTS.values():
        for name in variant.variables:
            assert f"\n{name}:" in said, f"no role has {name}"
