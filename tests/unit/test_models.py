"""The catalogue of models: what it accepts, what it refuses and in which words, and how an entry is made."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from ingot import models
from ingot.cli import app

ROOT = Path(__file__).parents[2]
SMOLLM = "HuggingFaceTB/SmolLM2-135M-Instruct"
CONFIG = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "max_position_embeddings": 128,
    "dtype": "bfloat16",
}


def entry(**changes: Any) -> dict[str, Any]:
    """A sound entry, with changes."""
    files = [
        {"path": name, "size": 3, "sha256": "a" * 64}
        for name in ("config.json", "tokenizer_config.json", "model.safetensors")
    ]
    shape = {
        "layers": 2,
        "attention_heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "max_model_len": 128,
        "weight_bytes": 3,
    }
    return {
        "revision": "abc",
        "licence": "mit",
        "dtype": "bfloat16",
        "shape": shape,
        "files": files,
    } | changes


@pytest.mark.parametrize("name", ["models.yml", "models.rehearsal.yml"])
def test_our_catalogues_are_valid_and_have_the_same_model(name: str) -> None:
    model = models.load_catalog(ROOT / "files" / name).model(SMOLLM)
    assert model.shape.weight_bytes == 269_060_552
    assert (model.shape.layers, model.shape.kv_heads, model.shape.head_dim) == (30, 3, 64)


@pytest.mark.parametrize(
    ("model_id", "words"),
    [
        ("../x", "'..'"),
        ("owner/../../etc", "'..'"),
        ("/etc/passwd", "absolute"),
        ("", "owner/name"),
        ("owner/name/more", "owner/name"),
        ("owner/.hidden", "owner/name"),
        ("owner/na me", "owner/name"),
        ("owner//name", "owner/name"),
    ],
)
def test_an_id_that_leaves_the_store_is_refused_by_name(model_id: str, words: str) -> None:
    with pytest.raises(models.ModelError) as refusal:
        models.parse_catalog({}).model(model_id)
    assert repr(model_id) in str(refusal.value)
    assert words in str(refusal.value)


def test_a_catalogue_cannot_bring_such_an_id_in() -> None:
    with pytest.raises(models.ModelError, match="leave the model store"):
        models.parse_catalog({"../x": entry()})


@pytest.mark.parametrize("path", ["../config.json", "/etc/passwd", "a//b", "a/./b", ".hidden"])
def test_a_file_that_leaves_its_model_is_refused(path: str) -> None:
    files = [*entry()["files"], {"path": path, "size": 1, "sha256": "b" * 64}]
    with pytest.raises(models.ModelError, match="not a plain path"):
        models.parse_catalog({"a/b": entry(files=files)})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"files": entry()["files"][:2]}, "no .safetensors"),
        ({"files": entry()["files"][1:]}, "config.json is not among the files"),
        ({"files": entry()["files"] * 2}, "listed twice"),
        ({"files": [{"path": "config.json", "size": 1, "sha256": "xyz"}]}, "a/b.files.0.sha256"),
        ({"dtype": "int8"}, "a/b.dtype"),
        ({"colour": "red"}, "a/b.colour"),
        ({"source": {"kind": "s3", "location": "https://x"}}, "begins with s3://"),
        ({"source": {"kind": "directory"}}, "begins with /"),
    ],
)
def test_a_bad_entry_is_refused_and_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(models.ModelError) as refusal:
        models.parse_catalog({"a/b": entry(**changes)}, "inventory")
    assert words in str(refusal.value)
    assert str(refusal.value).startswith("inventory is not valid")


def test_an_unknown_model_names_those_that_are_known_and_what_to_do() -> None:
    with pytest.raises(
        models.ModelError, match=r"it has: a/b\); make its entry with `ingot models lock c/d`"
    ):
        models.parse_catalog({"a/b": entry()}).model("c/d")


def test_where_files_are() -> None:
    model = models.parse_catalog({"a/b": entry()}).model("a/b")
    assert model.source.url("a/b", "abc", "x.json") == "https://huggingface.co/a/b/resolve/abc/x.json"
    mirror = models.override_source("a/b", {"kind": "http", "location": "http://mirror/models/"})
    assert mirror.url("a/b", "abc", "x.json") == "http://mirror/models/a/b/x.json"
    with pytest.raises(models.ModelError, match="s3"):
        models.override_source("a/b", {"kind": "s3", "location": "http://mirror"})


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(CONFIG))
    (made / "tokenizer_config.json").write_text("{}")
    (made / "model.safetensors").write_bytes(b"weights")
    (made / "pytorch_model.bin").write_bytes(b"the same weights again")
    return made


def test_an_entry_from_a_directory(directory: Path) -> None:
    runner = CliRunner()
    result = runner.invoke(
        app, ["models", "lock", "me/mine", "--directory", str(directory), "--revision", "1"]
    )
    assert result.exit_code == 0, result.output
    model = models.parse_catalog(yaml.safe_load(result.stdout)).model("me/mine")
    assert [file.path for file in model.files] == [
        "config.json",
        "model.safetensors",
        "tokenizer_config.json",
    ]
    assert model.shape.head_dim == 16
    assert model.shape.weight_bytes == len(b"weights")
    assert model.source.kind == "directory"


def test_what_is_no_model_is_refused(tmp_path: Path, directory: Path) -> None:
    with pytest.raises(models.ModelError, match=r"no config\.json"):
        models.lock_directory(tmp_path, "1", "mit")
    (directory / "config.json").write_text("{}")
    with pytest.raises(models.ModelError, match="num_attention_heads"):
        models.lock_directory(directory, "1", "mit")


@pytest.fixture
def hub(directory: Path) -> Iterator[str]:
    """A Hugging Face of one model, which wants a token."""
    weights = (directory / "model.safetensors").read_bytes()
    siblings: list[dict[str, Any]] = [
        {"rfilename": "config.json"},
        {"rfilename": "tokenizer_config.json"},
        {"rfilename": "README.md"},
        {"rfilename": "onnx/model.safetensors"},
        {
            "rfilename": "model.safetensors",
            "lfs": {"size": len(weights), "sha256": hashlib.sha256(weights).hexdigest()},
        },
    ]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("Authorization") != "Bearer secret":
                self.send_error(401)
                return
            if self.path == "/api/models/me/mine/revision/main?blobs=true":
                answer = {"sha": "c0ffee", "siblings": siblings, "cardData": {"license": "mit"}}
                body = json.dumps(answer).encode()
            else:
                prefix = "/me/mine/resolve/c0ffee/"
                assert self.path.startswith(prefix)
                assert "safetensors" not in self.path, "weights must not be downloaded to lock them"
                body = (directory / self.path.removeprefix(prefix)).read_bytes()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_entry_from_the_hub_is_that_of_the_same_files_here(hub: str, directory: Path) -> None:
    model = models.lock_huggingface("me/mine", token="secret", endpoint=hub)
    assert model.revision == "c0ffee"
    assert model.licence == "mit"
    assert model.files == models.lock_directory(directory, "1", "mit").files


def test_a_gated_model_says_so(hub: str) -> None:
    with pytest.raises(models.ModelError, match="401: it is gated or private"):
        models.lock_huggingface("me/mine", endpoint=hub)


def test_a_hub_that_cannot_be_reached_is_no_traceback() -> None:
    result = CliRunner(env={"HF_ENDPOINT": "http://127.0.0.1:1"}).invoke(app, ["models", "lock", "a/b"])
    assert result.exit_code == 1
    assert "cannot be reached" in result.stderr
