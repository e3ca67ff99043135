"""The vendor's stubs: an engine that answers as vLLM 0.13 does a request that is too long, and its wheels.

What is proved is that the node's own arguments lead to that answer, by the words of vLLM 0.13.0's source; not
that engine.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from local_region import eventually
from program import load
from role_templates import render

from ingot import neuron_buckets, neuron_sets
from ingot.checkout import ROOT
from ingot.filters import FILTERS
from ingot.preflight import neuron

STUBS = ROOT / "tests/stubs/neuron"
ENGINE = STUBS / "engine/api_server.py"
MODEL = "made/up"
SHAPE = {
    "layers": 2,
    "attention_heads": 8,
    "kv_heads": 4,
    "head_dim": 64,
    "max_model_len": 64,
    "weight_bytes": 1 << 20,
}


def settings(port: int, **more: Any) -> str:
    """The engine's arguments as a node gets them."""
    device = FILTERS["ingot_neuron_cores_of"](
        "inf2.xlarge", ["Inferentia2"], MODEL, SHAPE, "bfloat16", max_num_seqs=2
    )
    given: dict[str, Any] = {
        "serving_mode": "vllm",
        "serving_model_id": MODEL,
        "serving_model_shape": SHAPE,
        "serving_instance_type": "inf2.xlarge",
        "serving_device_flags": device["flags"],
        "serving_engine_drains": False,
        "serving_node_address": "127.0.0.1",
        "serving_port": port,
    }
    return render("serving", "vllm.yaml.j2", given | more)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    (tmp_path / "programs/weights").mkdir(parents=True)
    (tmp_path / "programs/neuron_config.json").write_text("{}")
    (tmp_path / "programs/weights/tp0.safetensors").write_text("stub")
    return tmp_path / "programs"


def started(place: Path, text: str, programs: Path, **more: str) -> subprocess.Popen[str]:
    (place / "vllm.yaml").write_text(text)
    given = {"NEURON_COMPILED_ARTIFACTS": str(programs), "NEURON_RT_VISIBLE_CORES": "0"} | more
    return subprocess.Popen(
        [sys.executable, str(ENGINE), "--config", str(place / "vllm.yaml")],
        env=os.environ | given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture
def url(tmp_path: Path, programs: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    engine = started(tmp_path, settings(port), programs)
    address = f"http://127.0.0.1:{port}"
    try:
        eventually("an engine", lambda: ask(f"{address}/health")[0] == 200, 20)
        yield address
    finally:
        engine.kill()
        engine.communicate()


def ask(url: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
    data = None if body is None else json.dumps({"model": MODEL} | body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except OSError:
        return 0, {}


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_a_request_longer_than_the_largest_bucket_gets_a_400_that_says_so(url: str, path: str) -> None:
    def body(words: int, most: int | None = None) -> dict[str, Any]:
        text = "word " * words
        said = (
            {"prompt": text} if path == "completions" else {"messages": [{"role": "user", "content": text}]}
        )
        return said | ({"max_tokens": most} if most else {})

    assert ask(f"{url}/v1/{path}", body(63))[0] == 200
    status, answer = ask(f"{url}/v1/{path}", body(64))
    assert status == 400
    assert "This model's maximum context length is 64 tokens" in answer["error"]["message"]
    status, answer = ask(f"{url}/v1/{path}", body(60, 8))
    assert status == 400
    assert "(8 > 64 - 60)" in answer["error"]["message"]


def test_the_longest_request_is_the_largest_bucket() -> None:
    told = yaml.safe_load(settings(8000))
    chosen = neuron_buckets.choose([], [], told["max-model-len"])
    assert told["max-model-len"] == chosen.longest == chosen.context[-1] == 64


@pytest.mark.parametrize(
    ("more", "environment", "said"),
    [
        ({"serving_engine_drains": True}, {}, "unrecognized arguments: --shutdown-timeout"),
        ({"serving_device_flags": {}}, {}, "unrecognized arguments"),
        (
            {},
            {"NEURON_COMPILED_ARTIFACTS": "/nowhere"},
            "Unable to find precompiled artifacts from /nowhere. Recomp",
        ),
        (
            {},
            {"NEURON_RT_VISIBLE_CORES": "0-1"},
            "the programs are for 1 cores, and NEURON_RT_VISIBLE_CORES is '0-1'",
        ),
    ],
    ids=["a drain", "no flags of the chips", "nothing compiled", "other cores"],
)
def test_what_the_engine_does_not_start_with(
    tmp_path: Path, programs: Path, more: dict[str, Any], environment: dict[str, str], said: str
) -> None:
    engine = started(
        tmp_path,
        settings(8000, serving_model_shape=SHAPE | {"weight_bytes": 1 << 10}, **more),
        programs,
        **environment,
    )
    output, _ = engine.communicate(timeout=20)
    assert engine.returncode != 0
    assert said in output


def test_the_stub_of_the_index_has_a_lock_that_the_role_takes(tmp_path: Path) -> None:
    chosen = neuron_sets.load().sets["sdk-2.28.1"]
    command = [sys.executable, str(STUBS / "make_wheels.py"), str(tmp_path), chosen.model_dump_json()]
    subprocess.run(command, check=True)
    first = (tmp_path / "lock.txt").read_text()
    subprocess.run(command, check=True)
    assert (tmp_path / "lock.txt").read_text() == first, "the same bytes each time"
    given = {
        "neuron_set": "sdk-2.28.1",
        "neuron_lock": str(tmp_path / "lock.txt"),
        "neuron_python": "python3",
    }
    table, _ = neuron.read(None)
    assert neuron.check_environment("node", given, "3.12", table) == []
    assert load(STUBS / "make_wheels.py").distributions(chosen.model_dump())["vllm"] == "0.13.0"
