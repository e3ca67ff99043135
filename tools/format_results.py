"""What was found of each number format on CPUs, and the page made of it."""

from __future__ import annotations

from pydantic import Field

from bench_results import Data

LOSS_BOUND = 0.02
"""Nats a token: what rounding to bf16 may do. A wrong scale or swapped nibbles are off by whole nats."""
ACTIVATIONS_BOUND = 0.1
"""The same where activations are rounded to 8 bits too, which the fp32 run does not do."""


class Outcome(Data):
    """One format: the engine's log-probabilities against fp32 with the same rounded weights, and its speed.

    ``loss`` and ``apart_*`` are in nats a token, ``tokens_s`` in tokens a second by prompts at a time.
    """

    name: str
    kernels: list[str] = Field(default_factory=list)
    error: str = ""
    bytes: int = 0
    loss: float = 0
    loss_expected: float = 0
    apart_median: float = 0
    apart_p99: float = 0
    tokens: int = 0
    tokens_s: dict[str, float] = Field(default_factory=dict)

    @property
    def bound(self) -> float:
        rounds_activations = self.name.endswith(("a8", "online")) and not self.name.startswith("int8-online")
        return ACTIVATIONS_BOUND if rounds_activations else LOSS_BOUND

    @property
    def verdict(self) -> str:
        """``does not work``, ``right`` or ``WRONG``."""
        if self.error:
            return "does not work"
        return "right" if abs(self.loss - self.loss_expected) <= self.bound else "WRONG"

    def line(self) -> str:
        if self.error:
            return f"{self.name}: {self.verdict}: {self.error}"
        speeds = ", ".join(f"{value:.0f} tokens/s at {batch}" for batch, value in self.tokens_s.items())
        return (
            f"{self.name}: {self.verdict} (loss {self.loss:.4f}, fp32 {self.loss_expected:.4f},"
            f" p99 {self.apart_p99:.3f}), {speeds}, {', '.join(self.kernels) or 'no kernel named'}"
        )


class Trials(Data):
    """All formats on one processor."""

    date: str
    commit: str
    machine: str
    engine: str
    extension: str
    outcomes: list[Outcome]

    def faster(self, outcome: Outcome, batch: str) -> str:
        """Speed over that of bf16 in the same run."""
        plain = next((other for other in self.outcomes if other.name == "bf16" and not other.error), None)
        if plain is None or outcome.error:
            return "-"
        return f"{outcome.tokens_s[batch] / plain.tokens_s[batch]:.2f}"


def page(trials: Trials) -> str:
    """docs/formats.md."""
    lines = [
        "# Number formats on CPUs",
        "",
        "Written by `make bench-formats`; do not edit. Native x86-64: nothing here is of Graviton.",
        "",
        f"{trials.date}, commit `{trials.commit}`, {trials.machine}; {trials.engine}, which loads"
        f" `{trials.extension}` there.",
        "",
        "Each format is made from the same bf16 weights (SmolLM2-135M), rounded to nearest, and asked for the"
        " log-probabilities of one text. *Right* means: as fp32 computes them **with the same rounded"
        f" weights**, to {LOSS_BOUND} nats a token in the mean, or {ACTIVATIONS_BOUND} where activations are"
        " rounded as well. So it tells of the engine's kernels and not of how good a quantised model is:"
        " that is a matter of its calibration.",
        "",
        "| format | | loss, engine / fp32 | furthest of 99 % | size | speed at 1 / 16, bf16 = 1 | kernel |",
        "|---|---|---|---|---|---|---|",
    ]
    for outcome in trials.outcomes:
        if outcome.error:
            lines.append(f"| `{outcome.name}` | does not work | | | | | {outcome.error.replace('|', '/')} |")
            continue
        lines.append(
            f"| `{outcome.name}` | {outcome.verdict} | {outcome.loss:.4f} / {outcome.loss_expected:.4f}"
            f" | {outcome.apart_p99:.3f} | {outcome.bytes / 1e6:.0f} MB"
            f" | {trials.faster(outcome, '1')} / {trials.faster(outcome, '16')}"
            f" | {', '.join(outcome.kernels) or '-'} |"
        )
    lines.append("")
    return "\n".join(lines)
