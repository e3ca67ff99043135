"""The checks of the gate: each makes a row of a verdict from what was measured and what is known."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping

from ingot.gate.differences import Agreement, agreement, far, of_answers, quantile
from ingot.gate.limits import Figures
from ingot.gate.measured import Cached, Drawn, Generated, LongEnd, Measured, Place, Reading
from ingot.gate.reference import Reference, Scored
from ingot.verify.rows import Row, held, left_out, some

Readings = Mapping[str, Reading]


def _limit(limits: Figures) -> str:
    return f"{limits.again} apart in the mean, {limits.parted} at most"


def _row(name: str, found: Agreement, limits: Figures, told: str = "") -> Row:
    """A row for two ways to ask the engine the same."""
    evidence = f"{told}{found}"
    return held(f"gate-{name}", found.within(limits.again, limits.parted), evidence, _limit(limits))


# --- against the reference ----------------------------------------------------------------------------------


def _places(read: Readings, reference: Reference) -> Iterator[tuple[Place, Scored, int]]:
    for text in reference.texts:
        if text.name in read:
            for at, place in enumerate(read[text.name].scores):
                yield place, text, at


def _apart(read: Readings, reference: Reference) -> list[float]:
    return [place.logprob - text.logprobs[at] for place, text, at in _places(read, reference)]


def mean(read: Readings, reference: Reference, limits: Figures) -> Row:
    """Mean difference of log-probabilities, with its sign."""
    apart = _apart(read, reference)
    off = statistics.fmean(apart)
    evidence = f"{off:+.4f} over {len(apart)} tokens"
    return held("gate-mean", abs(off) <= limits.mean, evidence, f"at most {limits.mean} either way")


def quantiles(read: Readings, reference: Reference, limits: Figures) -> Row:
    """Median and 99th percentile of the differences without their sign."""
    apart = [far(difference, 0) for difference in _apart(read, reference)]
    middle, high = quantile(apart, 0.5), quantile(apart, 0.99)
    return held(
        "gate-quantiles",
        middle <= limits.median and high <= limits.p99,
        f"median {middle:.4f}, 99th percentile {high:.3f}, {len(apart)} tokens",
        f"median {limits.median}, 99th percentile {limits.p99}",
    )


def top(read: Readings, reference: Reference, limits: Figures) -> Row:
    """The likeliest token, where the reference has no doubt."""
    sure = [
        (place.top == text.top[at], f"{text.name}, token {at + 1}")
        for place, text, at in _places(read, reference)
        if text.margin[at] > limits.confident
    ]
    limit = f"the reference's, wherever it is {limits.confident} ahead of the second"
    if not sure:
        return left_out("gate-top-1", "the reference is sure nowhere", limit)
    wrong = [where for right, where in sure if not right]
    evidence = f"another in {len(wrong)} of {len(sure)} places: {some(wrong, 3)}"
    return held("gate-top-1", not wrong, evidence if wrong else f"the same in {len(sure)} places", limit)


def long_context(ends: tuple[LongEnd, ...], served: int, long: Scored, limits: Figures) -> Row:
    """The next token, where the context is nearly full."""
    apart = []
    for end in ends:
        at = end.length - 1
        apart.append(far(end.generated.top[0].get(long.top[at], -math.inf), long.top_logprob[at]))
    most = max(apart, default=math.inf)
    evidence = f"{most:.3f} off after up to {max((end.length for end in ends), default=0)} of {served} tokens"
    limit = f"what the reference finds likeliest is at most {limits.p99} off"
    return held("gate-long-context", most <= limits.p99, evidence, limit)


# --- against itself -----------------------------------------------------------------------------------------


def _same(name: str, one: Readings, other: Readings, limits: Figures, told: str) -> Row:
    """Texts that were read and continued twice."""
    scores = [
        far(mine.logprob, theirs.logprob)
        for text in one
        for mine, theirs in zip(one[text].scores, other[text].scores, strict=True)
    ]
    read = agreement(scores)
    wrote = of_answers((one[text].generated, other[text].generated) for text in one)
    good = quantile(scores, 0.99) <= limits.p99 and read.mean <= limits.again
    row = _row(name, wrote, limits, f"{told}read: {read.mean:.3f} apart in the mean; continued: ")
    return row if good else held(row.name, False, row.evidence, row.limit)


def batch(alone: Readings, together: Readings, limits: Figures) -> Row:
    """All texts, of different lengths, in one request, against each by itself."""
    return _same("batch", alone, together, limits, f"{len(alone)} texts at once; ")


def worn(alone: Readings, after: Readings, requests: int, limits: Figures) -> Row:
    """The first questions again, after many others."""
    return _same("worn", alone, after, limits, f"after {requests} requests; ")


def decode(alone: Readings, rescored: Mapping[str, tuple[float, ...]], limits: Figures) -> Row:
    """What was said of each token when it was generated, and when it was read."""
    apart = [
        far(mine, theirs)
        for name, read in alone.items()
        for mine, theirs in zip(read.generated.logprobs, rescored[name], strict=True)
    ]
    return _row("decode", agreement(apart), limits)


def prefix_cache(found: Cached, limits: Figures) -> Row:
    """Where the prefix cache may be read, against where it may not: the same and a similar prompt."""
    if found.hits == 0:
        return left_out("gate-prefix-cache", "by its own count the engine has none", _limit(limits))
    kinds = sorted({one.name for one in found.asked})
    agreed = {
        kind: of_answers((one.afresh, one.found) for one in found.asked if one.name == kind) for kind in kinds
    }
    good = all(one.within(limits.again, limits.parted) for one in agreed.values())
    hits = "whether it was read is not told" if found.hits is None else f"{found.hits} tokens from it"
    seen = "; ".join(f"{kind}: {one}" for kind, one in agreed.items())
    return held(
        "gate-prefix-cache", good, f"prompts of {found.length} tokens, {hits}; {seen}", _limit(limits)
    )


def chunked_prefill(length: int, whole: Generated, pieces: Generated, limits: Figures) -> Row:
    """A long prompt at once, against its thirds one after the other."""
    return _row("chunked-prefill", of_answers([(whole, pieces)]), limits, f"{length} tokens; ")


def streamed(found: Measured, limits: Figures) -> Row:
    """A stream, against the answer in one piece; the same tokens must read the same."""
    of = found.streamed
    row = _row("streamed", of_answers([(of.whole, of.stream)]), limits)
    if of.whole.tokens == of.stream.tokens and of.whole_text != of.stream_text:
        return held(row.name, False, f"{of.stream_text!r} as a stream, else {of.whole_text!r}", row.limit)
    return row


def greedy(repeats: tuple[Generated, ...], limits: Figures) -> Row:
    """At temperature 0: the likeliest token each time, and so the same."""
    chosen = agreement(
        far(logprob, max(place.values()))
        for one in repeats
        for logprob, place in zip(one.logprobs, one.top, strict=True)
    )
    agreed = of_answers((repeats[0], one) for one in repeats[1:])
    row = _row("greedy", agreed, limits, f"{len(repeats)} times the same; ")
    if chosen.worst > limits.parted:
        return held(row.name, False, f"a token {chosen.worst:.2f} below the likeliest was taken", row.limit)
    return row


def sampling(drawn: tuple[Drawn, ...], reference: Reference, most: float) -> Row:
    """At temperature 1: tokens as often as the reference says.

    The surprisal of a drawn token has the entropy as its mean. An engine that takes the likeliest is far less
    surprised, one that draws from all alike far more.
    """
    texts = {text.name: text for text in reference.texts}
    spread = math.sqrt(sum(texts[one.text].variance[one.at] for one in drawn))
    limit = f"at most {most} standard deviations from the entropy, and not always the same token"
    if not spread:
        return left_out("gate-sampling", "the reference is sure everywhere", limit)
    off = sum(-one.logprob - texts[one.text].entropy[one.at] for one in drawn) / spread
    places = {(one.text, one.at) for one in drawn}
    kinds = len({(one.text, one.at, one.token) for one in drawn})
    evidence = (
        f"{off:+.1f} standard deviations; {kinds} different tokens in {len(drawn)} at {len(places)} places"
    )
    return held("gate-sampling", abs(off) <= most and kinds > len(places), evidence, limit)


# --- what is around the model -------------------------------------------------------------------------------


def chat_template(found: Measured, reference: Reference, limits: Figures) -> Row:
    """The conversation as tokens, and the answer to it."""
    limit = "the tokens that the model's own template and tokenizer make, and the answer to these"
    known = reference.chat
    if known is None or found.chat is None:
        return left_out("gate-chat-template", "the model has no chat template", limit)
    if known.dated:
        return left_out("gate-chat-template", "its template tells the day: no two days are the same", limit)
    seen = found.chat
    if seen.tokens is not None and seen.tokens != known.tokens:
        pairs = zip(seen.tokens, known.tokens, strict=False)
        at = next((n for n, (one, other) in enumerate(pairs) if one != other), None)
        where = f"the first at {at}" if at is not None else "one goes on where the other ends"
        evidence = f"other tokens: {len(seen.tokens)}, not {len(known.tokens)}; {where}"
        return held("gate-chat-template", False, evidence, limit)
    if seen.count != len(known.tokens):
        evidence = f"{seen.count} tokens, not {len(known.tokens)}"
        return held("gate-chat-template", False, evidence, limit)
    agreed = of_answers([(seen.meant, seen.answered)])
    told = f"{seen.count} tokens" + ("" if seen.tokens is not None else " by their number alone")
    row = _row("chat-template", agreed, limits, f"{told}; ")
    return held(row.name, row.verdict == "passed", row.evidence, limit)


def tokenizer(found: Measured, reference: Reference) -> Row:
    """Strings to tokens and back."""
    limit = "what the model's own tokenizer makes of each string, and of its tokens"
    if found.strings is None:
        return left_out("gate-tokenizer", "the server has no /tokenize", limit)
    seen = {one.text: one for one in found.strings}
    wrong = [
        f"{known.text!r}: {len(seen[known.text].tokens)} tokens, not {len(known.tokens)}"
        if seen[known.text].tokens != known.tokens
        else f"{known.text!r} reads {seen[known.text].read!r}"
        for known in reference.strings
        if (seen[known.text].tokens, seen[known.text].read) != (known.tokens, known.read)
    ]
    return held("gate-tokenizer", not wrong, some(wrong, 3) or f"{len(seen)} strings, both ways", limit)
