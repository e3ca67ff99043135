"""Ask an engine, as it serves, for all that the correctness gate looks at; print it as JSON.

Run it on the node whose engine it is:

    ask.py --url http://10.0.0.7:8000 --model ID --reference FILE [--key-file FILE] [--requests 1000]

It speaks OpenAI's API as vLLM does. Standard library only; it decides nothing (``ingot.gate.checks`` does).
``ingot.gate.measured`` says what is printed.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import re
import secrets
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

CONTINUED = 16
"""Tokens that are generated after each text."""
ALTERNATIVES = 5
"""Likeliest tokens that are told at each of them."""
AT_ONCE = 8
"""Requests under way at a time, where an answer's order does not matter."""
DRAWN_AT, SEEDS = 8, 8
"""Positions where tokens are drawn, and how often at each."""
CACHED_PROMPTS, CACHED_MOST = 3, 3 * 1024
"""Prompts that the prefix cache is asked with, and tokens of all: each is several blocks of any engine's."""
LONG_ENDS = 4
"""Lengths at the end of the context that are asked for."""
REPEATS = 3
#: Nothing of the model's own settings, which vLLM takes from its generation_config.json.
NEUTRAL = {
    "temperature": 0,
    "top_p": 1,
    "top_k": -1,
    "min_p": 0,
    "repetition_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "ignore_eos": True,
}
#: Tokens by number: their text may be half a character.
TOLD = {"return_tokens_as_token_ids": True, "return_token_ids": True, "logprobs": ALTERNATIVES}

Json = dict[str, Any]


class AskError(Exception):
    """The engine did not answer what was asked; the message says what it did."""


class Engine:
    """One engine, and how it is reached."""

    def __init__(self, url: str, model: str, key: str, timeout: float) -> None:
        there = urlsplit(url)
        if there.scheme != "http" or not there.hostname:
            raise AskError(f"{url} is no address of an engine: http://HOST:PORT is")
        self._host, self._port = there.hostname, there.port or 80
        self._key, self._timeout = key, timeout
        self.model = model
        self._salts = map(f"gate-{secrets.token_hex(8)}-{{}}".format, itertools.count())

    def request(self, method: str, path: str, body: Json | None = None) -> str:
        """The text of an answer.

        Raises:
            AskError: there is none in time, or it is no success.
        """
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
        try:
            connection.request(method, path, json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            text = answer.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            raise AskError(f"{method} {path}: {error or type(error).__name__}") from error
        finally:
            connection.close()
        if answer.status != 200:
            raise AskError(f"{method} {path}: status {answer.status}: {' '.join(text.split())[:300]}")
        return text

    def post(self, path: str, **body: Any) -> Json:
        text = self.request("POST", path, {"model": self.model, **body})
        try:
            found: Json = json.loads(text)
        except ValueError as error:
            raise AskError(f"POST {path}: the answer is no JSON: {text[:100]}") from error
        return found

    def maybe(self, path: str, **body: Any) -> Json | None:
        """The same of what not every server has."""
        try:
            return self.post(path, **body)
        except AskError as error:
            if ": status 404" in str(error) or ": status 405" in str(error):
                return None
            raise

    def salt(self) -> str:
        """One that no earlier request had: what is asked with it is found in no prefix cache."""
        return next(self._salts)

    def complete(self, prompts: list[list[int]], tokens: int, salt: str = "", **more: Any) -> list[Json]:
        """What follows each prompt, all in one request."""
        body = {**NEUTRAL, **TOLD, "max_tokens": tokens, "cache_salt": salt or self.salt(), **more}
        answer = self.post("/v1/completions", prompt=prompts, **body)
        choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
        if len(choices) != len(prompts):
            raise AskError(f"POST /v1/completions: {len(prompts)} prompts, {len(choices)} answers")
        return choices

    def continued(self, prompt: list[int], tokens: int, salt: str = "") -> Json:
        """What follows one prompt."""
        return generated(self.complete([prompt], tokens, salt)[0])

    def hits(self) -> int | None:
        """Tokens that its prefix cache has spared so far; None where it does not say."""
        try:
            text = self.request("GET", "/metrics")
        except AskError:
            return None
        found = re.findall(r"^vllm:prefix_cache_hits(?:_total)?(?:\{[^}]*\})? (\S+)$", text, re.MULTILINE)
        return int(sum(map(float, found))) if found else None


def number(token: str) -> int:
    """A token's number, of ``token_id:7``."""
    kind, _, digits = token.partition(":")
    if kind != "token_id" or not digits.isdecimal():
        raise AskError(f"the engine names a token {token!r}: it does not know return_tokens_as_token_ids")
    return int(digits)


def generated(choice: Json) -> Json:
    """The tokens of an answer, their log-probabilities, and the likeliest at each place."""
    told = choice["logprobs"]
    return {
        "tokens": [number(token) for token in told["tokens"]],
        "logprobs": told["token_logprobs"],
        "top": [{number(token): value for token, value in place.items()} for place in told["top_logprobs"]],
    }


def scores(choice: Json, prompt: list[int]) -> list[Json]:
    """What was said of each token of the prompt but the first."""
    places = choice.get("prompt_logprobs")
    if not places or len(places) != len(prompt):
        raise AskError(
            "POST /v1/completions: no prompt_logprobs for each token: the engine does not know them"
        )
    found = []
    for place, token in zip(places[1:], prompt[1:], strict=True):
        top = min(place, key=lambda name: int(place[name]["rank"]))
        found.append(
            {
                "logprob": place[str(token)]["logprob"],
                "top": int(top),
                "top_logprob": place[top]["logprob"],
            }
        )
    return found


def read(engine: Engine, prompts: dict[str, list[int]], *, together: bool) -> Json:
    """Each text scored and continued: in one request for all, or in one for each, one after the other."""
    names, tokens = list(prompts), list(prompts.values())
    if together:
        choices = engine.complete(tokens, CONTINUED, prompt_logprobs=1)
    else:
        choices = [engine.complete([prompt], CONTINUED, prompt_logprobs=1)[0] for prompt in tokens]
    return {
        name: {"scores": scores(choice, prompt), "generated": generated(choice)}
        for name, choice, prompt in zip(names, choices, tokens, strict=True)
    }


def rescored(engine: Engine, prompts: dict[str, list[int]], before: Json) -> Json:
    """What the engine says of its own continuations where it reads them at once."""
    found = {}
    for name, prompt in prompts.items():
        own = before[name]["generated"]["tokens"]
        choice = engine.complete([prompt + own], 1, prompt_logprobs=1)[0]
        found[name] = [place["logprob"] for place in scores(choice, prompt + own)[-len(own) :]]
    return found


def cached(engine: Engine, long: list[int]) -> Json:
    """Prompts that were asked before, or begin like one that was; each also where no cache has it."""
    before, length = engine.hits(), len(long) // CACHED_PROMPTS
    asked = []
    for prompt in (long[at * length :][:length] for at in range(CACHED_PROMPTS)):
        salt, sibling = engine.salt(), prompt[: length * 2 // 3] + prompt[:8]
        engine.continued(prompt, 1, salt)
        for name, tokens in (("asked again", prompt), ("begins alike", sibling)):
            asked.append((name, tokens, engine.continued(tokens, CONTINUED, salt)))
    after = engine.hits()
    return {
        "length": length,
        "hits": None if before is None or after is None else after - before,
        "asked": [
            {"name": name, "found": found, "afresh": engine.continued(tokens, CONTINUED)}
            for name, tokens, found in asked
        ],
    }


def in_pieces(engine: Engine, long: list[int], whole: str) -> Json:
    """A long prompt at once, and as three requests: each goes on where the cache has the one before."""
    salt = engine.salt()
    for part in (1, 2):
        engine.continued(long[: len(long) * part // 3], 1, salt)
    pieces = engine.continued(long, CONTINUED, salt)
    return {"length": len(long), "whole": engine.continued(long, CONTINUED, whole), "pieces": pieces}


def streamed(engine: Engine, prompt: list[int]) -> Json:
    """The same answer as a stream and not."""
    whole = engine.complete([prompt], CONTINUED)[0]
    body = {**NEUTRAL, **TOLD, "model": engine.model, "prompt": prompt, "max_tokens": CONTINUED}
    text = engine.request("POST", "/v1/completions", {**body, "stream": True, "cache_salt": engine.salt()})
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        raise AskError("POST /v1/completions: the stream has no end ([DONE])")
    parts = [choice for event in events[:-1] for choice in json.loads(event)["choices"]]
    told = [generated(part) for part in parts if part.get("logprobs")]
    return {
        "whole": generated(whole),
        "whole_text": whole["text"],
        "stream": {
            name: [value for part in told for value in part[name]] for name in ("tokens", "logprobs", "top")
        },
        "stream_text": "".join(part["text"] for part in parts),
    }


def near_the_limit(engine: Engine, long: list[int], limit: int, salt: str) -> list[Json]:
    """The next token after prompts that fill the context but for a few."""
    most = min(limit, len(long))
    lengths = range(max(1, most - LONG_ENDS), most)
    return [{"length": n, "generated": engine.continued(long[:n], 1, salt)} for n in lengths]


def wear(engine: Engine, prompts: list[list[int]], requests: int) -> None:
    """Many requests of other lengths."""

    def one(count: int) -> None:
        prompt = prompts[count % len(prompts)]
        engine.complete([prompt[: 1 + count * 7 % len(prompt)]], 1 + count % 4)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, range(requests)))


def drawn(engine: Engine, texts: list[Json]) -> list[Json]:
    """Tokens drawn with different seeds where the model is least sure."""
    places = sorted(
        ((entropy, text["name"], at) for text in texts for at, entropy in enumerate(text["entropy"])),
        reverse=True,
    )[:DRAWN_AT]
    tokens = {text["name"]: text["tokens"] for text in texts}

    def one(asked: tuple[int, tuple[float, str, int]]) -> Json:
        seed, (_, name, at) = asked
        (choice,) = engine.complete([tokens[name][: at + 1]], 1, temperature=1, seed=seed)
        found = generated(choice)
        return {"text": name, "at": at, "token": found["tokens"][0], "logprob": found["logprobs"][0]}

    asked = [(1000 * at + seed, place) for at, place in enumerate(places) for seed in range(SEEDS)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(one, asked))


def chat(engine: Engine, known: Json | None) -> Json | None:
    """The answer to the conversation, and that to the tokens that it should be."""
    if not known:
        return None
    answer = engine.post(
        "/v1/chat/completions",
        messages=known["messages"],
        max_tokens=CONTINUED,
        **NEUTRAL,
        logprobs=True,
        top_logprobs=ALTERNATIVES,
        return_tokens_as_token_ids=True,
        return_token_ids=True,
        cache_salt=engine.salt(),
    )
    told = answer["choices"][0]["logprobs"]["content"]
    return {
        "tokens": answer.get("prompt_token_ids"),
        "count": answer["usage"]["prompt_tokens"],
        "answered": {
            "tokens": [number(place["token"]) for place in told],
            "logprobs": [place["logprob"] for place in told],
            "top": [
                {number(one["token"]): one["logprob"] for one in place["top_logprobs"]} for place in told
            ],
        },
        "meant": engine.continued(known["tokens"], CONTINUED),
    }


def spelled(engine: Engine, strings: list[Json]) -> list[Json] | None:
    """The strings by the server's tokenizer; None where it cannot be asked."""
    found = []
    for string in strings:
        there = engine.maybe("/tokenize", prompt=string["text"])
        back = engine.maybe("/detokenize", tokens=string["tokens"])
        if there is None or back is None:
            return None
        found.append({"text": string["text"], "tokens": there["tokens"], "read": back["prompt"]})
    return found


def served(engine: Engine) -> int:
    """How many tokens of context the engine serves the model with."""
    models = json.loads(engine.request("GET", "/v1/models"))["data"]
    mine = [model for model in models if model["id"] == engine.model]
    if not mine:
        names = ", ".join(str(model["id"]) for model in models) or "none"
        raise AskError(f"GET /v1/models: it serves {names}, and not {engine.model}")
    if limit := mine[0].get("max_model_len"):
        return int(limit)
    told = engine.maybe("/tokenize", prompt="a") or {}  # Ray Serve's list of models leaves it out
    return int(told.get("max_model_len") or 0)


def measure(engine: Engine, reference: Json, requests: int) -> Json:
    """All of it, each part after the other."""
    long = reference["long"]["tokens"]
    limit = served(engine) or len(long)
    texts = [text for text in reference["texts"] if len(text["tokens"]) + CONTINUED < limit]
    if not texts:
        raise AskError(f"the engine's context of {limit} tokens is too short for any text of the reference")
    prompts = {text["name"]: text["tokens"] for text in texts}
    fits = long[: limit - 2 * CONTINUED]
    salt = engine.salt()  # one for the long prompts: so much is not read twice where there is a cache
    alone = read(engine, prompts, together=False)
    found = {
        "limit": limit,
        "alone": alone,
        "together": read(engine, prompts, together=True),
        "rescored": rescored(engine, prompts, alone),
        "cache": cached(engine, fits[:CACHED_MOST]),
        "pieces": in_pieces(engine, fits, salt),
        "streamed": streamed(engine, texts[0]["tokens"]),
        "long": near_the_limit(engine, long, limit, salt),
        "repeats": [engine.continued(texts[0]["tokens"], CONTINUED) for _ in range(REPEATS)],
        "drawn": drawn(engine, texts),
        "chat": chat(engine, reference["chat"]),
        "strings": spelled(engine, reference["strings"]),
        "requests": requests,
    }
    wear(engine, list(prompts.values()), requests)
    return {**found, "worn": read(engine, prompts, together=False)}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--key-file", type=Path)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--timeout", type=float, default=600)
    given = parser.parse_args()
    key = given.key_file.read_text().strip() if given.key_file else ""
    try:
        engine = Engine(given.url, given.model, key, given.timeout)
        found = measure(engine, json.loads(given.reference.read_text()), given.requests)
    except AskError as error:
        print(f"ask.py: {error}", file=sys.stderr)
        return 1
    except (KeyError, TypeError, IndexError, ValueError) as error:
        print(
            f"ask.py: the engine's answer is not as vLLM's: {type(error).__name__} {error}", file=sys.stderr
        )
        return 1
    json.dump(found, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
