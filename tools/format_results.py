"""What was found of each number format on CPUs, by where it was tried, and the page made of it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import Field

from ingot import formats
from ingot.table import Strict

LOSS_BOUND = 0.02
"""Nats a token: what rounding to bf16 may do. A wrong scale or swapped nibbles are off by whole nats."""
ACTIVATIONS_BOUND = 0.1
"""The same where activations are rounded to 8 bits too, which the fp32 run does not do."""


class Run(Strict):
    """One call of the bench: ``emulated`` is the core that was, or empty."""

    date: str  # to the second, so that no two runs are alike
    commit: str
    machine: str
    emulated: str
    engine: str
    extension: str

    def line(self) -> str:
        """For the page."""
        how = f"**emulated** as {self.emulated} on" if self.emulated else "native,"
        return (
            f"{self.date[:10]}, commit `{self.commit}`, {how} {self.machine}; {self.engine}, which loads"
            f" `{self.extension}` there"
        )


class Outcome(Strict):
    """One format: the engine's log-probabilities against fp32 with the same rounded weights, and its speed.

    ``loss`` and ``apart_*`` are in nats a token, ``tokens_s`` in tokens a second by prompts at a time; there
    are none of an emulated core.
    """

    name: str
    run: Run
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
        speeds = [f"{value:.0f} tokens/s at {batch}" for batch, value in self.tokens_s.items()]
        return (
            f"{self.name}: {self.verdict} (loss {self.loss:.4f}, fp32 {self.loss_expected:.4f},"
            f" p99 {self.apart_p99:.3f}), {', '.join([*speeds, *self.kernels])}"
        )


class Trials(Strict):
    """All that was found, by place (`ingot.formats`): the last of each format there."""

    places: dict[formats.Place, list[Outcome]] = Field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Trials:
        return cls.model_validate_json(path.read_text()) if path.exists() else cls()

    def with_outcome(self, place: formats.Place, outcome: Outcome) -> Trials:
        """The same with this instead of what was found there of that format before."""
        others = [other for other in self.places.get(place, []) if other.name != outcome.name]
        return Trials(places={**self.places, place: [*others, outcome]})

    def plain(self, place: formats.Place, outcome: Outcome) -> Outcome | None:
        """What bf16 did in the same run, if it did."""
        return next(
            (o for o in self.places[place] if (o.name, o.run, o.error) == ("bf16", outcome.run, "")), None
        )

    def verdict(self, place: formats.Place, outcome: Outcome) -> str:
        """The format's own, or that it is none: then each log-probability is bf16's."""
        plain = self.plain(place, outcome)
        if plain is None or outcome.name == "bf16":
            return outcome.verdict
        same = (outcome.loss, outcome.apart_median) == (plain.loss, plain.apart_median)
        return "does nothing: bf16's numbers" if same else outcome.verdict

    def faster(self, place: formats.Place, outcome: Outcome, batch: str) -> str:
        """Speed over that of bf16 in the same run."""
        plain = self.plain(place, outcome)
        if plain is None or not (plain.tokens_s and outcome.tokens_s):
            return "-"
        return f"{outcome.tokens_s[batch] / plain.tokens_s[batch]:.2f}"


def page(trials: Trials, names: Iterable[str]) -> str:
    """docs/formats.md, its rows in the order of ``names``."""
    lines = [
        "# Number formats on CPUs",
        "",
        "Written by `make bench-formats` (`tools/bench_formats.py --image graviton3` for Arm); do not edit.",
        "",
        "Each format is made from the same bf16 weights (SmolLM2-135M), rounded to nearest, and asked for the"
        " log-probabilities of one text. *Right* means: as fp32 computes them **with the same rounded"
        f" weights**, to {LOSS_BOUND} nats a token in the mean, or {ACTIVATIONS_BOUND} where activations are"
        " rounded as well. So it tells of the engine's kernels and not of how good a quantised model is:"
        " that is a matter of its calibration. An emulated core tells what loads and what is right; its"
        " times say nothing of the core, and are left out.",
        "",
        "| format | on | | loss, engine / fp32 | furthest of 99 % | size | speed at 1 / 16, bf16 = 1 | kernel"
        " | run |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    runs: list[Run] = []
    for name in names:
        for place in formats.PLACES:
            for outcome in trials.places.get(place, []):
                if outcome.name != name:
                    continue
                if outcome.run not in runs:
                    runs.append(outcome.run)
                number = runs.index(outcome.run) + 1
                lines.append(f"| `{name}` | {place} | {_cells(trials, place, outcome)} | {number} |")
    lines += ["", "Runs:", "", *(f"{number}. {run.line()}." for number, run in enumerate(runs, 1))]
    lines += ["", "## Not tried", "", *_not_tried(names)]
    return "\n".join([*lines, ""])


def _cells(trials: Trials, place: formats.Place, outcome: Outcome) -> str:
    if outcome.error:
        return f"does not work | | | | | {outcome.error.replace('|', '/')}"
    return (
        f"{trials.verdict(place, outcome)} | {outcome.loss:.4f} / {outcome.loss_expected:.4f}"
        f" | {outcome.apart_p99:.3f}"
        f" | {outcome.bytes / 1e6:.0f} MB"
        f" | {trials.faster(place, outcome, '1')} / {trials.faster(place, outcome, '16')}"
        f" | {', '.join(outcome.kernels) or '-'}"
    )


def _not_tried(names: Iterable[str]) -> list[str]:
    """The other formats of files/formats.yml, with what is said of them there."""
    tried = {name.partition("-")[0] if name.startswith("fp8") else name for name in names}
    lines = ["| format | on | | read in |", "|---|---|---|---|"]
    for name, one in formats.load().formats.items():
        if name in tried:
            continue
        for claim in one.vllm:
            if cpus := [place for place in claim.places if place in formats.CPUS]:
                how = "nobody looked" if claim.how == "unknown" else claim.how
                lines.append(f"| {name} | {', '.join(cpus)} | {how} | {claim.source or '-'} |")
    return [*lines, "", "The words are those of [`files/formats.yml`](../files/formats.yml)."]
