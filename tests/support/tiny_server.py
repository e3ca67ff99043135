"""A server on localhost that speaks what the correctness gate asks of vLLM's API, over a TinyLlama."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from tiny_llama import Rounding, Shape, TinyLlama, Weights, log_softmax, softmax

from ingot.gate.reference import Chat, Message, Reference, Scored, Spelled, Texts

MODEL = "org/tiny"
KEY = "k-1"
Json = dict[str, Any]


class Tokenizer:
    """Bytes, the pairs of bytes that are frequent in the gate's own texts, and two marks for chats."""

    def __init__(self, texts: Texts) -> None:
        said = [text.text.encode() for text in texts.texts]
        pairs = Counter(part[at : at + 2] for part in said for at in range(len(part) - 1))
        frequent = sorted(pairs, key=lambda pair: (-pairs[pair], pair))[:120]
        self._pieces = [bytes([byte]) for byte in range(256)] + frequent + [b"<|start|>", b"<|end|>"]
        self._ids = {piece: at for at, piece in enumerate(self._pieces)}
        self.size = len(self._pieces)

    def encode(self, text: str) -> list[int]:
        data, at, found = text.encode(), 0, []
        while at < len(data):
            for length in (9, 7, 2, 1):
                piece = data[at : at + length]
                if piece in self._ids:
                    found.append(self._ids[piece])
                    at += len(piece)
                    break
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        return b"".join(self._pieces[token] for token in tokens).decode("utf-8", "replace")

    def chat(self, messages: Sequence[Json]) -> list[int]:
        told = "".join(f"<|start|>{one['role']}\n{one['content']}<|end|>\n" for one in messages)
        return self.encode(told + "<|start|>assistant\n")


class WrongTokenizer(Tokenizer):
    """Another version's: it knows no pairs in words with capital letters."""

    def encode(self, text: str) -> list[int]:
        if text.islower() or "<|" in text:
            return super().encode(text)
        return list(text.encode())


class WrongTemplate(Tokenizer):
    """A template that leaves the role of the system out."""

    def chat(self, messages: Sequence[Json]) -> list[int]:
        return super().chat([one for one in messages if one["role"] != "system"])


def reference(shape: Shape, weights: Weights, tokenizer: Tokenizer, texts: Texts) -> Reference:
    """What fp32.py makes of a model, for this one."""

    def scored(name: str, tokens: list[int]) -> Scored:
        model = TinyLlama(shape, weights, Rounding(bf16=False))
        sequence, logits = model.start(tokens[:-1], "", shared=False), []
        while sequence.done < len(sequence.tokens):
            logits.append(model.step([sequence])[0])
        logprobs = log_softmax(np.concatenate(logits))
        order = np.argsort(logprobs, -1)
        rows = np.arange(len(logprobs))
        best, second = logprobs[rows, order[:, -1]], logprobs[rows, order[:, -2]]
        entropy = -(np.exp(logprobs) * logprobs).sum(-1)
        return Scored(
            name=name,
            tokens=tuple(tokens),
            logprobs=tuple(logprobs[rows, tokens[1:]].tolist()),
            top=tuple(order[:, -1].tolist()),
            top_logprob=tuple(best.tolist()),
            margin=tuple((best - second).tolist()),
            entropy=tuple(entropy.tolist()),
            variance=tuple(((np.exp(logprobs) * logprobs**2).sum(-1) - entropy**2).tolist()),
        )

    tokens = [tokenizer.encode(text.text) for text in texts.texts]
    messages = [message.model_dump() for message in texts.conversation]
    whole = [token for part in tokens for token in part] * 9
    return Reference(
        model_id=MODEL,
        key="0" * 32,
        made_with="numpy",
        texts=tuple(scored(text.name, ids) for text, ids in zip(texts.texts, tokens, strict=True)),
        long=scored("long", whole[: shape.context]),
        strings=tuple(
            Spelled(text=text, tokens=tuple(ids), read=tokenizer.decode(ids))
            for text in texts.strings
            for ids in [tokenizer.encode(text)]
        ),
        chat=Chat(
            messages=tuple(Message(**message) for message in messages),
            tokens=tuple(tokenizer.chat(messages)),
            dated=False,
        ),
    )


class Served:
    """What the server does with a request."""

    def __init__(self, model: TinyLlama, tokenizer: Tokenizer, *, temperature: float | None = None) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.temperature = temperature
        """The one that it takes, whatever a request says."""
        self.lock = threading.Lock()
        self.like_ray = False
        """Whether it tells as little as Ray Serve does: no context in its list of models, no metrics."""

    def complete(self, prompts: list[list[int]], body: Json) -> list[Json]:
        """All prompts in one batch, token by token."""
        wanted = body.get("prompt_logprobs")
        with self.lock:
            running = [
                self.model.start(prompt, body.get("cache_salt", ""), shared=wanted is None)
                for prompt in prompts
            ]
            kept: list[list[Any]] = [[] for _ in prompts]
            while pending := [one for one in running if one.done < len(one.tokens)]:
                for one, logits in zip(pending, self.model.step(pending), strict=True):
                    kept[running.index(one)].append(logits)
            told: list[list[Json]] = [[] for _ in prompts]
            last = [part[-1][-1] for part in kept]
            for step in range(body["max_tokens"]):
                for row, one in enumerate(running):
                    told[row].append(self._choose(last[row], body, step))
                    one.tokens.append(told[row][-1]["token"])
                if step + 1 < body["max_tokens"]:
                    last = [logits[-1] for logits in self.model.step(running)]
        return [
            {
                "index": row,
                "tokens": told[row],
                "prompt": self._prompt(prompt, np.concatenate(kept[row])) if wanted is not None else None,
            }
            for row, prompt in enumerate(prompts)
        ]

    def _choose(self, logits: Any, body: Json, step: int) -> Json:
        logprobs = log_softmax(logits)
        order = np.argsort(logprobs)[::-1][:5]
        token = int(order[0])
        temperature = body["temperature"] if self.temperature is None else self.temperature
        if temperature:
            rng = np.random.default_rng([body["seed"], step] if "seed" in body else None)
            token = int(rng.choice(len(logprobs), p=softmax(logprobs / temperature)))
        top = {int(at): float(logprobs[at]) for at in [*order, token]}
        return {"token": token, "logprob": float(logprobs[token]), "top": top}

    def _prompt(self, prompt: list[int], logits: Any) -> list[Json | None]:
        found: list[Json | None] = [None]
        for row, token in zip(log_softmax(logits[:-1]), prompt[1:], strict=True):
            best = int(row.argmax())
            place = {str(best): {"logprob": float(row[best]), "rank": 1}}
            rank = int((row > row[token]).sum()) + 1
            place[str(token)] = {"logprob": float(row[token]), "rank": rank}
            found.append(place)
        return found


def _told(tokens: list[Json]) -> Json:
    return {
        "tokens": [f"token_id:{one['token']}" for one in tokens],
        "token_logprobs": [one["logprob"] for one in tokens],
        "top_logprobs": [
            {f"token_id:{token}": value for token, value in one["top"].items()} for one in tokens
        ],
    }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"
    served: Served

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def answer(self, text: str, status: int = 200) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self) -> None:
        shape = self.served.model.shape
        match self.path:
            case "/v1/models":
                told = {} if self.served.like_ray else {"max_model_len": shape.context}
                self.answer(json.dumps({"data": [{"id": MODEL, **told}]}))
            case "/metrics":
                if self.served.like_ray:
                    self.answer("", 404)
                    return
                name = 'vllm:prefix_cache_hits_total{engine="0",model_name="tiny"}'
                self.answer(f"# TYPE x counter\n{name} {float(self.served.model.hits)}\n")
            case _:
                self.answer("", 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.startswith("/v1") and self.headers.get("Authorization") != f"Bearer {KEY}":
            self.answer('{"error": "Unauthorized"}', 401)
            return
        tokenizer = self.served.tokenizer
        match self.path:
            case "/v1/completions":
                prompt = body["prompt"]
                prompts = prompt if isinstance(prompt[0], list) else [prompt]
                choices = self.served.complete(prompts, body)
                self._completions(choices, stream=body.get("stream", False))
            case "/v1/chat/completions":
                tokens = tokenizer.chat(body["messages"])
                (choice,) = self.served.complete([tokens], body)
                content = [
                    {
                        "token": f"token_id:{one['token']}",
                        "logprob": one["logprob"],
                        "top_logprobs": [
                            {"token": f"token_id:{token}", "logprob": value}
                            for token, value in one["top"].items()
                        ],
                    }
                    for one in choice["tokens"]
                ]
                found = {
                    "prompt_token_ids": tokens,
                    "usage": {"prompt_tokens": len(tokens)},
                    "choices": [{"logprobs": {"content": content}}],
                }
                self.answer(json.dumps(found))
            case "/tokenize":
                context = self.served.model.shape.context
                tokens = tokenizer.encode(body["prompt"])
                self.answer(json.dumps({"tokens": tokens, "max_model_len": context}))
            case "/detokenize":
                self.answer(json.dumps({"prompt": tokenizer.decode(body["tokens"])}))
            case _:
                self.answer("", 404)

    def _completions(self, choices: list[Json], *, stream: bool) -> None:
        decode = self.served.tokenizer.decode
        if not stream:
            found = [
                {
                    "index": choice["index"],
                    "text": decode([one["token"] for one in choice["tokens"]]),
                    "logprobs": _told(choice["tokens"]),
                    "prompt_logprobs": choice["prompt"],
                }
                for choice in choices
            ]
            self.answer(json.dumps({"choices": found}))
            return
        tokens = [one["token"] for one in choices[0]["tokens"]]
        before, lines = "", []
        for at, one in enumerate(choices[0]["tokens"]):
            # Half a character waits for its other half, as servers do it.
            text = decode(tokens[: at + 1])
            text = before if text.endswith("\ufffd") and at + 1 < len(tokens) else text
            part = {"index": 0, "text": text[len(before) :], "logprobs": _told([one])}
            before = text
            lines.append("data: " + json.dumps({"choices": [part]}) + "\n\n")
        self.answer("".join(lines) + "data: [DONE]\n\n")


class Server(ThreadingHTTPServer):
    request_queue_size = 64  # a connection that finds no room is tried again after a second


@contextlib.contextmanager
def serving(served: Served) -> Iterator[str]:
    """The server for as long as it is wanted: its address."""
    handler = type("Serving", (Handler,), {"served": served})
    with Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
