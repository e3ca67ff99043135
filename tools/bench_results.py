"""What `make bench-cpu` measured, and the page and plots made of it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from ingot.graphs import CACHED
from ingot.table import Strict

TUNED, STOCK = "tuned", "stock"
GOAL_THROUGHPUT = 1.3  # tuned against stock, at 16 requests at a time
GOAL_CONCURRENCY = 16
GOAL_BANDWIDTH = 0.7  # of the tokens a second that reading the weights once for each would allow


class Run(Strict):
    """One variant under one load, in one round: tokens a second, and times in milliseconds."""

    round: int
    variant: str
    concurrency: int
    requests: int
    output_tokens_s: float
    ttft_ms: float
    ttft_p99_ms: float
    itl_ms: float
    itl_p99_ms: float


class Start(Strict):
    """One start of a variant's engine, and where its compiled graphs came from."""

    round: int
    variant: str
    graphs: str  # of ingot.graphs, or nothing where none are used


class Results(Strict):
    """All runs of one bench, and what they were run on."""

    date: str
    commit: str
    machine: str
    vllm: str
    model: str
    weight_bytes: int
    input_tokens: int
    output_tokens: int
    variants: dict[str, str]
    triad_bytes_s: list[float]
    runs: list[Run]
    starts: list[Start]

    @property
    def rounds(self) -> list[int]:
        return sorted({run.round for run in self.runs})

    @property
    def concurrencies(self) -> list[int]:
        return sorted({run.concurrency for run in self.runs})

    def of(self, variant: str, concurrency: int) -> list[Run]:
        return [run for run in self.runs if (run.variant, run.concurrency) == (variant, concurrency)]

    def median(self, variant: str, concurrency: int, figure: str) -> float:
        return statistics.median(float(getattr(run, figure)) for run in self.of(variant, concurrency))

    def ratios(self, variant: str, other: str, concurrency: int) -> list[float]:
        """Throughput of a variant over another's, round by round: what was measured side by side."""
        of_other = {run.round: run.output_tokens_s for run in self.of(other, concurrency)}
        return [
            run.output_tokens_s / of_other[run.round]
            for run in self.of(variant, concurrency)
            if run.round in of_other
        ]

    def of_bandwidth(self) -> float:
        """Decoding at batch 1, as a share of what the triad's bandwidth allows.

        Each token reads all weights once; the KV cache of a short request is small beside them.
        """
        decoded = 1000 / self.median(TUNED, 1, "itl_ms")
        return decoded / (statistics.median(self.triad_bytes_s) / self.weight_bytes)


def of_compile_cache(results: Results) -> str:
    """How often an engine that was compiled before took its graphs from there; empty where none was."""
    seen: set[str] = set()
    later = []
    for start in results.starts:
        if start.graphs and start.variant in seen:
            later.append(start)
        seen.add(start.variant)
    if not later:
        return ""
    others = [
        f"{start.variant} in round {start.round}: {start.graphs}" for start in later if start.graphs != CACHED
    ]
    took = f"{len(later) - len(others)} of {len(later)} starts"
    return f"Started again after it had been compiled, an engine took its graphs from the cache in {took}" + (
        f" ({'; '.join(others)})." if others else "."
    )


def spread(values: Sequence[float]) -> str:
    """Median, and from what to what."""
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def verdict(value: float, goal: float) -> str:
    return f"goal {goal:g}: {'reached' if value >= goal else 'missed'}"


def goals(results: Results) -> list[str]:
    """The two goals, each with what came of it."""
    lines = []
    if ratios := results.ratios(TUNED, STOCK, GOAL_CONCURRENCY):
        lines.append(
            f"Tuned against stock, {GOAL_CONCURRENCY} requests at a time: {spread(ratios)} times the tokens a"
            f" second ({verdict(statistics.median(ratios), GOAL_THROUGHPUT)})."
        )
    if results.triad_bytes_s and results.of(TUNED, 1):
        share = results.of_bandwidth()
        lines.append(
            f"Decoding one request: {share:.2f} of what memory allows, by a triad of"
            f" {statistics.median(results.triad_bytes_s) / 1e9:.1f} GB/s in the same minutes and"
            f" {results.weight_bytes / 1e6:.0f} MB of weights a token ({verdict(share, GOAL_BANDWIDTH)})."
        )
    return lines


def page(results: Results, plots: Sequence[str]) -> str:
    """docs/bench-cpu.md."""
    knobs = [name for name in results.variants if name not in (TUNED, STOCK)]
    lines = [
        "# Tuned against stock, on CPUs",
        "",
        "Written by `make bench-cpu`; do not edit. Native x86-64 on the local EC2: no figure is of EC2 or of"
        " Graviton.",
        "",
        f"- {results.date}, commit `{results.commit}`, {results.machine}",
        f"- {results.vllm}, {results.model}, bfloat16; {results.input_tokens} tokens in,"
        f" {results.output_tokens} out, no two prompts alike; the client runs on the same cores",
        f"- rounds: {len(results.rounds)}; in each, every variant is started anew and asked in turn, the"
        " first one another each time. Medians; ratios are those of one round",
        "- Settings of the kernel (huge pages, swappiness) are the host's here and the same for all",
        "",
        *(f"- {line}" for line in (*goals(results), of_compile_cache(results)) if line),
        "",
        "## Throughput and latency",
        "",
        "| variant | requests at a time | tokens/s | TTFT ms, median / p99 | ITL ms, median / p99 |",
        "|---|---|---|---|---|",
    ]
    for concurrency in results.concurrencies:
        for variant in (TUNED, STOCK):
            if not results.of(variant, concurrency):
                continue
            figures = [
                results.median(variant, concurrency, name)
                for name in ("output_tokens_s", "ttft_ms", "ttft_p99_ms", "itl_ms", "itl_p99_ms")
            ]
            lines.append(
                f"| {variant} | {concurrency} | {figures[0]:.1f} | {figures[1]:.0f} / {figures[2]:.0f}"
                f" | {figures[3]:.1f} / {figures[4]:.1f} |"
            )
    lines += ["", *(f"![{Path(plot).stem}]({plot})" for plot in plots), ""]
    if knobs:
        lines += [
            "## What each setting is worth",
            "",
            "Tokens a second with all settings over those with that one off: above 1, it helps.",
            "",
            "| off | " + " | ".join(f"at {n}" for n in results.concurrencies) + " |",
            "|---|" + "---|" * len(results.concurrencies),
        ]
        for knob in knobs:
            cells = [results.ratios(TUNED, knob, n) for n in results.concurrencies]
            shown = " | ".join(spread(cell) if cell else "-" for cell in cells)
            lines.append(f"| {results.variants[knob]} | {shown} |")
        lines.append("")
    return "\n".join(lines)


def plot(results: Results, directory: Path) -> list[str]:
    """Throughput, TTFT and ITL over concurrency, as SVG files; their names."""
    import matplotlib as mpl  # the group `bench`, which nothing else needs

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "ingot"  # the same results give the same file
    from matplotlib import pyplot

    directory.mkdir(parents=True, exist_ok=True)
    files = []
    for name, field, label in (
        ("throughput", "output_tokens_s", "output tokens a second"),
        ("ttft", "ttft_ms", "time to first token, ms"),
        ("itl", "itl_ms", "time between tokens, ms"),
    ):
        figure, axes = pyplot.subplots(figsize=(5, 3.2), layout="constrained")
        for variant in (TUNED, STOCK):
            measured = [n for n in results.concurrencies if results.of(variant, n)]
            axes.plot(
                measured,
                [results.median(variant, n, field) for n in measured],
                marker="o",
                label=variant,
            )
        axes.set(xscale="log", xlabel="requests at a time", ylabel=label, ylim=(0, None))
        axes.set_xticks(results.concurrencies, [str(n) for n in results.concurrencies], minor=False)
        axes.minorticks_off()
        axes.legend()
        path = directory / f"{name}.svg"
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)
        files.append(path.name)
    return files
