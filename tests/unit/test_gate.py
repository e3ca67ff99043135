"""The correctness gate: each planted defect is caught by the named check, and rounding raises no alarm.

The engine is a small Llama in numpy behind a server on localhost; the gate asks it as it asks vLLM.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import random
from typing import Any

import pytest
import tiny_gate
import tiny_server
import yaml
from tiny_llama import (
    Broken,
    Rounding,
    truncated,
    with_swapped_head,
    with_theta,
    with_transposed_block,
)
from tiny_server import WrongTemplate, WrongTokenizer

from ingot.checkout import ROOT
from ingot.filters import gate as filters
from ingot.gate import ask, judge, limits
from ingot.gate.differences import Agreement, of_answers
from ingot.gate.measured import Generated, Measured
from ingot.gate.reference import parse
from ingot.preflight.gate import refusals
from ingot.table import TableError
from ingot.verify.rows import LEFT_OUT, PASSED

PLANTED: dict[str, tuple[str, Any]] = {
    "a wrong rope theta": ("gate-quantiles", lambda: {"of_shape": with_theta(tiny_gate.shape(), 1e5)}),
    "a rope theta that is wrong by a little": (
        "gate-long-context",
        lambda: {"of_shape": with_theta(tiny_gate.shape(), 13000)},
    ),
    "one swapped head": (
        "gate-quantiles",
        lambda: {"of_weights": with_swapped_head(tiny_gate.weights(), tiny_gate.shape())},
    ),
    "one transposed block of weights": (
        "gate-quantiles",
        lambda: {"of_weights": with_transposed_block(tiny_gate.weights())},
    ),
    "a kernel that is wrong only in batches": ("gate-batch", lambda: {"broken": Broken(batch=True)}),
    "a stale KV block": ("gate-prefix-cache", lambda: {"broken": Broken(stale_block=True)}),
    "a wrong chat template": (
        "gate-chat-template",
        lambda: {"of_tokenizer": WrongTemplate(tiny_gate.texts())},
    ),
    "a wrong tokenizer": ("gate-tokenizer", lambda: {"of_tokenizer": WrongTokenizer(tiny_gate.texts())}),
    "temperature ignored, always the likeliest": ("gate-sampling", lambda: {"temperature": 0}),
    "temperature ignored, always drawn": ("gate-greedy", lambda: {"temperature": 1}),
    "truncated weights": ("gate-mean", lambda: {"of_weights": truncated(tiny_gate.weights())}),
    "another model of the same shape": ("gate-top-1", lambda: {"of_weights": tiny_gate.weights(2)}),
}


@pytest.fixture(autouse=True)
def _asks_for_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of what an engine is asked for: it shows less, and takes half of the time."""
    for name, few in (
        ("CONTINUED", 8),
        ("SEEDS", 4),
        ("CACHED_PROMPTS", 2),
        ("LONG_ENDS", 2),
        ("REPEATS", 2),
    ):
        monkeypatch.setattr(ask, name, few)


@pytest.mark.planted("an engine that computes something else", check=lambda defect: PLANTED[defect][0])
@pytest.mark.parametrize("defect", PLANTED)
def test_a_planted_defect_is_caught_by_its_check(defect: str) -> None:
    check, changes = PLANTED[defect]
    assert check in tiny_gate.failed(tiny_gate.rows(tiny_gate.engine(**changes())))


def test_an_engine_in_order_passes_every_check() -> None:
    found = tiny_gate.rows(tiny_gate.engine())
    assert {row.verdict for row in found} == {PASSED}
    assert len({row.name for row in found}) == len(found) == 14


@pytest.mark.parametrize("seed", range(1, 53))
def test_rounding_alone_raises_no_alarm(seed: int) -> None:
    """Another kernel, another model, other texts in another order: what differs is right each time."""
    rng = random.Random(seed)
    names = tuple(rng.sample(tiny_gate.NAMES, rng.randint(3, 5)))
    model = 1 + seed % 3
    served = tiny_gate.engine(
        of_weights=tiny_gate.weights(model), rounding=Rounding(bf16=seed % 13 != 0, seed=seed)
    )
    found = tiny_gate.rows(served, tiny_gate.reference(names, model))
    assert not tiny_gate.failed(found)
    assert all(row.verdict == PASSED for row in found)


# --- the checks by themselves -------------------------------------------------------------------------------


def generated(*tokens: int, top: float = -0.5, second: float = -1.5) -> Generated:
    """Each token the likeliest, with another below it: a token's neighbour is one more."""
    return Generated(
        tokens=tokens,
        logprobs=tuple(top for _ in tokens),
        top=tuple({token: top, token + 1: second} for token in tokens),
    )


def test_answers_that_part_at_a_tie_agree() -> None:
    found = of_answers([(generated(1, 2, 9, second=-0.6), generated(1, 3, 4, second=-0.6))])
    assert found.places == 2  # what follows is another text
    assert found.within(0.08, 0.75) is False  # the second place names no token in common that is near


def test_a_tie_is_as_wide_as_either_answer_says() -> None:
    one = Generated(tokens=(1,), logprobs=(-0.6,), top=({1: -0.6, 2: -0.7},))
    other = Generated(tokens=(2,), logprobs=(-0.6,), top=({2: -0.6, 1: -0.65},))
    found = of_answers([(one, other)])
    assert found.worst == pytest.approx(0.1)
    assert found.within(0.08, 0.75)


def test_answers_of_different_length_do_not_agree() -> None:
    assert of_answers([(generated(1, 2), generated(1))]).worst == float("inf")


def test_nothing_compared_is_no_agreement() -> None:
    assert not of_answers([]).within(1, 1)
    assert not Agreement(0, 0.0, 0.0).within(1, 1)


def test_a_number_that_is_none_is_infinitely_far() -> None:
    wrong = generated(1, 2, top=float("nan"))
    assert not of_answers([(generated(1, 2), wrong)]).within(0.08, 0.75)


def of(model: Any, **changes: Any) -> Any:
    return model.model_copy(update=changes)


@pytest.fixture(scope="module")
def good() -> Measured:
    return tiny_gate.measure(tiny_gate.engine(), tiny_gate.reference())


def verdicts(found: Measured, known: Any = None) -> dict[str, str]:
    known = known or tiny_gate.reference()
    return {row.name: row.verdict for row in judge.rows(found, known, limits.load(), ["bf16"])}


def test_what_an_engine_does_not_have_is_left_out(good: Measured) -> None:
    none = of(good, chat=None, strings=None, cache=of(good.cache, hits=0))
    found = verdicts(none, of(tiny_gate.reference(), chat=None))
    assert [name for name, verdict in found.items() if verdict == LEFT_OUT] == [
        "gate-prefix-cache",
        "gate-chat-template",
        "gate-tokenizer",
    ]


def test_a_template_that_tells_the_day_is_left_out(good: Measured) -> None:
    known = tiny_gate.reference()
    assert known.chat
    found = verdicts(good, of(known, chat=of(known.chat, dated=True)))
    assert found["gate-chat-template"] == LEFT_OUT


def test_a_server_that_tells_no_tokens_of_a_chat_is_held_to_their_number(good: Measured) -> None:
    assert good.chat
    assert verdicts(of(good, chat=of(good.chat, tokens=None)))["gate-chat-template"] == PASSED
    wrong = of(good.chat, tokens=None, count=good.chat.count - 1)
    assert verdicts(of(good, chat=wrong))["gate-chat-template"] == "failed"


def test_a_stream_with_other_text_fails(good: Measured) -> None:
    streamed = of(good.streamed, stream_text=good.streamed.stream_text[:-1])
    assert verdicts(of(good, streamed=streamed))["gate-streamed"] == "failed"


def test_an_engine_that_wears_fails(good: Measured) -> None:
    worn = {
        name: of(read, scores=tuple(of(place, logprob=place.logprob - 0.2) for place in read.scores))
        for name, read in good.worn.items()
    }
    assert verdicts(of(good, worn=worn))["gate-worn"] == "failed"


def test_a_decoder_that_says_else_than_what_is_read_fails(good: Measured) -> None:
    wrong = {name: tuple(value - 0.2 for value in values) for name, values in good.rescored.items()}
    assert verdicts(of(good, rescored=wrong))["gate-decode"] == "failed"


def test_pieces_that_give_another_answer_fail(good: Measured) -> None:
    pieces = of(good.pieces, pieces=good.streamed.whole)
    assert verdicts(of(good, pieces=pieces))["gate-chunked-prefill"] == "failed"


# --- asking -------------------------------------------------------------------------------------------------


def test_an_engine_behind_ray_serve_is_asked_as_well() -> None:
    served = tiny_gate.engine(of_shape=dataclasses.replace(tiny_gate.shape(), context=256))
    served.like_ray = True
    found = tiny_gate.measure(served, tiny_gate.reference())
    assert (found.limit, found.cache.hits) == (256, None)
    assert set(verdicts(found).values()) == {PASSED}


def test_a_wrong_key_is_told() -> None:
    with pytest.raises(ask.AskError, match="status 401"):
        tiny_gate.measure(tiny_gate.engine(), tiny_gate.reference(), key="k-2")


def test_another_model_than_the_asked_one_is_told() -> None:
    served = tiny_gate.engine()
    with tiny_server.serving(served) as url:
        engine = ask.Engine(url, "org/other", tiny_server.KEY, 5)
        with pytest.raises(ask.AskError, match="it serves org/tiny, and not org/other"):
            ask.served(engine)


def test_an_engine_that_is_not_there_is_told() -> None:
    with pytest.raises(ask.AskError, match=r"GET /v1/models: .*refused"):
        ask.served(ask.Engine("http://127.0.0.1:9", "org/tiny", "", 5))


@pytest.mark.parametrize("url", ["https://127.0.0.1:8000", "127.0.0.1:8000"])
def test_only_an_engine_of_this_node_is_asked(url: str) -> None:
    with pytest.raises(ask.AskError, match="is no address of an engine"):
        ask.Engine(url, "org/tiny", "", 5)


def test_the_program_prints_what_the_judge_reads(
    tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reference.json").write_text(tiny_gate.reference().model_dump_json())
    (tmp_path / "key").write_text(f"{tiny_server.KEY}\n")
    with tiny_server.serving(tiny_gate.engine()) as url:
        words = ["--url", url, "--model", "org/tiny", "--requests", "2"]
        words += ["--reference", f"{tmp_path}/reference.json", "--key-file", f"{tmp_path}/key"]
        monkeypatch.setattr("sys.argv", ["ask.py", *words])
        assert ask.main() == 0
    assert verdicts(Measured.model_validate(json.loads(capsys.readouterr().out)))["gate-mean"] == PASSED


# --- the tables ---------------------------------------------------------------------------------------------


def test_a_model_in_several_formats_has_the_widest_limits() -> None:
    table = limits.load()
    assert table.of(["bf16", "fp8"]) == table.classes["rounded-activations"].figures
    assert table.of(["int4-awq"]) == table.classes["sixteen-bit"].figures
    with pytest.raises(KeyError, match="int3"):
        table.of(["int3"])


@pytest.mark.parametrize("plant", ["twice", "lost", "measure"])
def test_a_table_that_leaves_something_out_is_refused(plant: str) -> None:
    table = limits.load().model_dump()
    classes = table["classes"]
    if plant == "twice":
        classes["sixteen-bit"]["formats"] += ("fp8",)
    elif plant == "lost":
        classes["sixteen-bit"]["formats"] = ("bf16",)
    else:
        del table["measures"]["again"]
    with pytest.raises(ValueError, match=r"must be in one class|must explain each"):
        limits.Limits.model_validate(table)


def test_a_reference_that_is_none_is_named() -> None:
    broken = tiny_gate.reference().model_dump(mode="json")
    broken["texts"][0]["top"].pop()
    with pytest.raises(TableError, match=r"the reference r: texts\.0: top has not one entry"):
        parse(broken, "r")


def test_a_reference_of_another_model_is_refused() -> None:
    with pytest.raises(TableError, match="the reference r is that of another model"):
        parse(tiny_gate.reference().model_dump(mode="json"), "r")


# --- what playbooks/gate.yml decides ------------------------------------------------------------------------

ENTRY = yaml.safe_load((ROOT / "files/models.yml").read_text())["models"][
    "HuggingFaceTB/SmolLM2-135M-Instruct"
]
VARIABLES = {"serving_model_id": "org/tiny", "gate_requests": 1000}


def test_another_file_of_the_model_makes_another_reference() -> None:
    changed = copy.deepcopy(ENTRY)
    changed["files"][0]["sha256"] = "0" * 64
    assert filters.path(ENTRY, "/models") != filters.path(changed, "/models")
    assert filters.path(ENTRY, "/models").startswith("/models/.references/")


def test_a_model_without_a_reference_is_refused_with_the_command_that_makes_it() -> None:
    assert refusals(VARIABLES, "/models/r.json", there=True) == []
    (refusal,) = refusals(VARIABLES, "/models/r.json", there=False)
    assert refusal.name == "no-reference"
    assert "org/tiny" in refusal.why and "/models/r.json" in refusal.why
    assert "ansible-playbook playbooks/gate_reference.yml" in refusal.do


def test_an_engine_that_tells_no_log_probabilities_is_refused() -> None:
    other = {**VARIABLES, "serving_engine": "tensorrt_llm"}
    (refusal,) = refusals(other, "/models/r.json", there=False)
    assert refusal.name == "gate-needs-vllm"


def test_a_variable_that_is_not_set_is_named() -> None:
    (refusal,) = refusals({"serving_model_id": "org/tiny"}, "/r.json", there=True)
    assert (refusal.name, "'gate_requests'" in refusal.why) == ("missing-variable", True)


def test_the_playbook_gets_rows_as_the_verdict_has_them(good: Measured) -> None:
    known = of(tiny_gate.reference(), key=filters.key(ENTRY)).model_dump_json()
    found = filters.rows(good.model_dump_json(), known, ENTRY)
    assert {"name", "verdict", "evidence", "limit"} == set(found[0])
    assert {row["verdict"] for row in found} == {PASSED}
    with pytest.raises(TableError, match=r"what ask\.py found: limit: Field required"):
        filters.rows("{}", known, ENTRY)
