"""Entries of the catalogue: from a directory and from a hub, and what neither can be made of."""

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

from ingot import model_lock
from ingot.cli import app
from ingot.models import ModelError, parse_catalog

CONFIG = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "max_position_embeddings": 128,
    "dtype": "bfloat16",
}


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
    model = parse_catalog(yaml.safe_load(result.stdout)).model("me/mine")
    assert [file.path for file in model.files] == [
        "config.json",
        "model.safetensors",
        "tokenizer_config.json",
    ]
    assert model.shape.head_dim == 16
    assert model.shape.weight_bytes == len(b"weights")
    assert model.source.kind == "directory"


@pytest.mark.parametrize(
    ("name", "content", "formats"),
    [
        ("config.json", CONFIG, ()),
        ("config.json", CONFIG | {"quantization_config": {"quant_method": "awq", "bits": 4}}, ("int4-awq",)),
        ("hf_quant_config.json", {"quantization": {"quant_algo": "NVFP4"}}, ("nvfp4",)),
    ],
)
def test_the_entry_says_what_the_weights_are_in(
    directory: Path, name: str, content: dict[str, Any], formats: tuple[str, ...]
) -> None:
    (directory / name).write_text(json.dumps(content))
    model = model_lock.lock_directory(directory, "1", "mit")
    assert model.quantization == formats
    again = parse_catalog(yaml.safe_load(model_lock.render_entry("me/mine", model)))
    assert again.model("me/mine") == model


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.json", json.dumps(CONFIG | {"quantization_config": {"quant_method": "aqlm"}}), "aqlm"),
        ("hf_quant_config.json", "{", "hf_quant_config.json beside .* is no JSON"),
    ],
)
def test_a_format_that_nobody_knows_is_refused(directory: Path, name: str, content: str, said: str) -> None:
    (directory / name).write_text(content)
    with pytest.raises(ModelError, match=said):
        model_lock.lock_directory(directory, "1", "mit")


def test_what_is_no_model_is_refused(tmp_path: Path, directory: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        model_lock.lock_directory(tmp_path, "1", "mit")
    (directory / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="num_attention_heads"):
        model_lock.lock_directory(directory, "1", "mit")


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
    model = model_lock.lock_huggingface("me/mine", token="secret", endpoint=hub)
    assert model.revision == "c0ffee"
    assert model.licence == "mit"
    assert model.files == model_lock.lock_directory(directory, "1", "mit").files


def test_a_gated_model_says_so(hub: str) -> None:
    with pytest.raises(ModelError, match="401: it is gated or private"):
        model_lock.lock_huggingface("me/mine", endpoint=hub)


def test_a_hub_that_cannot_be_reached_is_no_traceback() -> None:
    result = CliRunner(env={"HF_ENDPOINT": "http://127.0.0.1:1"}).invoke(app, ["models", "lock", "a/b"])
    assert result.exit_code == 1
    assert "cannot be reached" in result.stderr


def lock(*arguments: str, **environment: str) -> str:
    """What `ingot models lock` says of a defect: in one line, with status 1 or 2 and no traceback."""
    result = CliRunner(env=environment).invoke(app, ["models", "lock", *arguments])
    assert result.exit_code in (1, 2)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.stdout == ""
    return " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("{", "config.json: Invalid JSON"),
        ("", "config.json: size: Input should be greater than 0"),
        ("[]", "config.json: it is no mapping of names to values"),
        (
            json.dumps(CONFIG | {"num_attention_heads": "many"}),
            "num_attention_heads: Input should be a valid",
        ),
        (
            json.dumps(CONFIG | {"num_attention_heads": 0}),
            "num_attention_heads: Input should be greater than 0",
        ),
        (json.dumps(CONFIG | {"hidden_size": None}), "neither head_dim nor hidden_size"),
        (json.dumps({}), "num_hidden_layers: Field required"),
        (json.dumps(CONFIG | {"dtype": "int8"}), "dtype: Input should be 'bfloat16'"),
    ],
)
def test_a_config_that_describes_no_decoder_is_refused(directory: Path, config: str, said: str) -> None:
    (directory / "config.json").write_text(config)
    answer = lock("me/mine", "--directory", str(directory))
    assert said in answer


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("model.safetensors", None, "no .safetensors file"),
        ("config.json", None, "has no config.json"),
        ("tokenizer_config.json", None, "tokenizer_config.json is not among the files"),
        ("empty.txt", b"", "empty.txt: size: Input should be greater than 0"),
        ("a name.json", b"{}", "'a name.json' is not a plain path"),
        ("config.json", b"\xff\xfe", "config.json: Invalid JSON"),
    ],
)
def test_a_directory_with_a_defect_is_refused(
    directory: Path, name: str, content: bytes | None, said: str
) -> None:
    if content is None:
        (directory / name).unlink()
    else:
        (directory / name).write_bytes(content)
    assert said in lock("me/mine", "--directory", str(directory))


def test_a_file_that_cannot_be_read_is_named(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for somebody who is not root, whoever runs the test."""

    def denied(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(model_lock, "sha256_of", denied)
    said = lock("me/mine", "--directory", str(directory))
    assert f"{directory / 'config.json'} cannot be read: Permission denied" in said


@pytest.mark.parametrize(
    ("option", "path", "said"),
    [
        ("--directory", "none", "does not exist"),
        ("--directory", "file", "is a file"),
        ("--token-file", "none", "does not exist"),
        ("--token-file", ".", "is a directory"),
        ("--token-file", "binary", "binary holds no token"),
        ("--token-file", "empty", "empty holds no token"),
        ("--token-file", "lines", "lines holds no token"),
    ],
)
def test_a_wrong_path_is_named(tmp_path: Path, option: str, path: str, said: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(b"\xff\x00")
    (tmp_path / "lines").write_text("hf_one\nhf_two\n")
    answer = lock("me/mine", option, str(tmp_path / path), HF_ENDPOINT="http://127.0.0.1:1", COLUMNS="300")
    assert said in answer
    assert "hf_one" not in answer


@pytest.mark.parametrize("model_id", ["", "a/b/c", "../x", "-x", "a b"])
def test_an_id_that_is_none_is_refused(model_id: str) -> None:
    assert "model id" in lock("--", model_id, HF_ENDPOINT="http://127.0.0.1:1")


def test_an_id_without_an_owner_is_one_of_the_hubs_first_models(directory: Path) -> None:
    result = CliRunner().invoke(app, ["models", "lock", "gpt2", "--directory", str(directory)])
    assert result.exit_code == 0, result.output
    assert parse_catalog(yaml.safe_load(result.stdout)).model("gpt2")


class Answer(BaseHTTPRequestHandler):
    """One answer to whatever is asked."""

    status, body = 200, b""

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (404, b"", "answered 404: there is no such model, or no such revision"),
        (401, b"", "answered 401: it is gated or private (give a token), or there is no such model"),
        (403, b"", "answered 403: it is gated or private, and the token does not let into it"),
        (500, b"", "answered 500"),
        (200, b"<html>Sign in</html>", "answered what no hub does"),
        (200, b"{}", "sha: Field required"),
        (200, b'{"sha": "c", "siblings": []}', "has no config.json"),
        (
            200,
            b'{"sha": "c", "siblings": [{"rfilename": "config.json"}]}',
            "num_hidden_layers: Field required",
        ),
    ],
)
def test_what_a_hub_answers_is_said_in_a_line(status: int, body: bytes, said: str) -> None:
    handler = type("Planted", (Answer,), {"status": status, "body": body})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            assert said in lock("me/mine", HF_ENDPOINT=f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()


def test_an_endpoint_that_is_no_url_is_said_in_a_line() -> None:
    assert "garbage" in lock("a/b", HF_ENDPOINT="garbage")
