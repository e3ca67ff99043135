"""`ingot compare` against engines with planted faults: in batches, in the cache, in all they say."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ingot.doctor import settings as settings_module
from ingot.doctor.__main__ import main
from ingot.doctor.compare import WORDS, CannotAskError, compare, prompt
from ingot.doctor.settings import Settings

Fault = Callable[[str, int, bool], str]


class Engine(ThreadingHTTPServer):
    """Repeats the password; its fault is given the right answer, how many are in flight, and whether it knows
    the prompt already."""

    daemon_threads = True
    fault: Fault = staticmethod(lambda right, flying, known: right)
    answer: tuple[int, bytes] | None = None

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.flying = 0
        self.seen: set[str] = set()
        self.keys: set[str] = set()
        self.lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    server: Engine

    def do_POST(self) -> None:
        engine = self.server
        text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["prompt"]
        with engine.lock:
            engine.flying += 1
            engine.keys.add(self.headers.get("Authorization", ""))
            known = text in engine.seen
            engine.seen.add(text)
        time.sleep(0.02)
        said = re.search(r'My password is "(\w+)"', text)
        assert said
        body = {"choices": [{"text": engine.fault(f'{said[1]}".', engine.flying, known)}]}
        with engine.lock:
            engine.flying -= 1
        status, content = engine.answer or (200, json.dumps(body).encode())
        self.send_response(status)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def settings(engine: Engine, **more: Any) -> Settings:
    return Settings(
        address="127.0.0.1", port=engine.server_port, model_id="m", node="n1", **{"mode": "ray_serve", **more}
    )


def causes(engine: Engine) -> list[tuple[str, str]]:
    return [(finding.cause, finding.what) for finding in compare(settings(engine))]


def test_an_engine_that_answers_alike_is_right(engine: Engine) -> None:
    assert causes(engine) == []
    assert engine.keys == {""}


def test_one_that_is_wrong_in_a_batch(engine: Engine) -> None:
    engine.fault = lambda right, flying, known: right if flying == 1 else "xxxx"
    (finding, _) = compare(settings(engine))
    assert finding.cause == "answers-differ" and finding.node == "n1"
    assert re.search(r"of 8 questions .* answered wrong together with others", finding.what)
    assert re.search(r"'\w+': 'xxxx'", finding.evidence)
    assert "enable-prefix-caching" in finding.action


def test_one_that_is_wrong_from_its_cache_alone(engine: Engine) -> None:
    engine.fault = lambda right, flying, known: "walnut" if known else right
    ((cause, what),) = causes(engine)
    assert cause == "answers-differ"
    assert "7 of 8 questions" in what and "in the cache" in what


def test_one_that_knows_nothing_is_not_judged_by_its_batches(engine: Engine) -> None:
    engine.fault = lambda right, flying, known: "I do not know"
    assert [cause for cause, _ in causes(engine)] == ["answers-wrong"]


def test_a_weak_model_is_judged_by_what_it_can(engine: Engine) -> None:
    engine.fault = lambda right, flying, known: right if right < "m" else "?"
    assert sum(word < "m" for word in WORDS) > len(WORDS) // 2
    assert causes(engine) == []


def test_prompts_asked_alone_share_no_block_and_those_together_do() -> None:
    alone = [prompt(number, f"{number}") for number in range(len(WORDS))]
    together = [prompt(number, "of all") for number in range(len(WORDS))]
    assert len({text[:8] for text in alone}) == len(WORDS)
    assert len({text[:600] for text in together}) == 1
    assert len({len(text) for text in together}) == len(WORDS)


def test_the_key_goes_along_where_there_is_one(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-1\n")
    assert compare(settings(engine, mode="vllm"), tmp_path / "key") == []
    assert engine.keys == {"Bearer sk-1"}
    with pytest.raises(CannotAskError, match="none: No such file or directory; run this as root"):
        compare(settings(engine, mode="vllm"), tmp_path / "none")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((401, b"no key"), "answered 401: no key"),
        ((200, b"<html>"), "something else than a completion"),
        ((200, b"{}"), "something else than a completion"),
        ((200, b'{"choices": []}'), "something else than a completion"),
    ],
)
def test_an_engine_that_gives_no_answer(
    engine: Engine, answer: tuple[int, bytes], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.answer = answer
    monkeypatch.setattr(settings_module, "load", lambda: settings(engine))
    with pytest.raises(SystemExit, match=f"ingot compare: .*{said}"):
        main(["compare"])


def test_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_module, "load", lambda: Settings(address="127.0.0.1", port=1))
    with pytest.raises(SystemExit, match=r"127\.0\.0\.1:1/v1/completions does not answer: .*refused"):
        main(["compare"])
    monkeypatch.setattr(settings_module, "load", Settings)
    with pytest.raises(SystemExit, match=r"this node serves nothing: run site\.yml"):
        main(["compare"])
