"""A stub of vLLM 0.13 with its plugin for Neuron: knows their arguments and no other, counts words as tokens.

It loads what was compiled where NEURON_COMPILED_ARTIFACTS says; where that is missing it does what the plugin
does, which is to say so in a warning and to compile. Answers as vLLM does a request that is too long. It is
not the engine: nothing of it proves anything about that or about a chip.
"""

from __future__ import annotations

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

#: Of vllm/engine/arg_utils.py and vllm/entrypoints/openai/cli_args.py of 0.13.0, those that Ingot gives.
KNOWN = {
    "disable-uvicorn-access-log",
    "dtype",
    "enforce-eager",
    "host",
    "max-model-len",
    "max-num-seqs",
    "model",
    "no-enable-prefix-caching",
    "num-gpu-blocks-override",
    "port",
    "served-model-name",
    "tensor-parallel-size",
}


def arguments(path: Path) -> dict[str, str]:
    """The file of ``--config``: a name and a value a line."""
    lines = [
        line for line in path.read_text(encoding="utf-8").splitlines() if ": " in line and line[0] != "#"
    ]
    return {name: value.strip("'\"") for name, value in (line.split(": ", 1) for line in lines)}


def check(given: dict[str, str]) -> None:
    """What the real one would not start with."""
    if unknown := sorted(set(given) - KNOWN):
        sys.exit(f"api_server.py: error: unrecognized arguments: {' '.join('--' + name for name in unknown)}")
    if given.get("no-enable-prefix-caching") != "true":
        sys.exit("AssertionError: When prefix caching is enabled, block_size must be set.")
    place = Path(os.environ.get("NEURON_COMPILED_ARTIFACTS", "none"))
    if not (place / "neuron_config.json").is_file():
        print(f"WARNING: Unable to find precompiled artifacts from {place}. Recompiling...", flush=True)
        sys.exit("a stub compiles nothing")
    shards = len(list((place / "weights").glob("tp*.safetensors")))
    cores = os.environ.get("NEURON_RT_VISIBLE_CORES", "")
    first, _, last = cores.partition("-")
    if not first or int(last or first) - int(first) + 1 != shards:
        sys.exit(f"the programs are for {shards} cores, and NEURON_RT_VISIBLE_CORES is {cores!r}")


class Handler(BaseHTTPRequestHandler):
    """The API's answers."""

    model = ""
    longest = 0

    def log_message(self, *_: Any) -> None:
        """Requests are not logged."""

    def answer(self, status: int, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def refuse(self, status: int, message: str, kind: str) -> None:
        self.answer(status, {"error": {"message": message, "type": kind, "param": None, "code": status}})

    def do_GET(self) -> None:
        if self.path == "/health":
            self.answer(200, {})
        else:
            self.answer(200, {"object": "list", "data": [{"id": self.model, "max_model_len": self.longest}]})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = os.environ.get("VLLM_API_KEY")
        if key and self.headers.get("Authorization") != f"Bearer {key}":
            return self.refuse(401, "Unauthorized", "AuthenticationError")
        if asked.get("model") != self.model:
            return self.refuse(404, f"The model `{asked.get('model')}` does not exist.", "NotFoundError")
        prompt = asked.get("prompt") or " ".join(str(one["content"]) for one in asked["messages"])
        tokens = len(str(prompt).split())
        if tokens >= self.longest:
            return self.refuse(
                400,
                f"This model's maximum context length is {self.longest} tokens. However, your request has"
                f" {tokens} input tokens. Please reduce the length of the input messages.",
                "BadRequestError",
            )
        most = asked.get("max_completion_tokens") or asked.get("max_tokens")
        if most and tokens + most > self.longest:
            return self.refuse(
                400,
                f"'max_tokens' or 'max_completion_tokens' is too large: {most}. This model's maximum context"
                f" length is {self.longest} tokens and your request has {tokens} input tokens"
                f" ({most} > {self.longest} - {tokens}).",
                "BadRequestError",
            )
        text = "A stub answers, and no model: Paris."
        choice = {
            "index": 0,
            "text": text,
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop",
        }
        usage = {"prompt_tokens": tokens, "completion_tokens": 7, "total_tokens": tokens + 7}
        return self.answer(200, {"id": "stub", "model": self.model, "choices": [choice], "usage": usage})


def main() -> None:
    given = arguments(Path(sys.argv[sys.argv.index("--config") + 1]))
    check(given)
    Handler.model, Handler.longest = given["served-model-name"], int(given["max-model-len"])
    ThreadingHTTPServer((given["host"], int(given["port"])), Handler).serve_forever()


if __name__ == "__main__":
    main()
