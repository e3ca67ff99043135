"""`ingot`: every command says in a line what is wrong with its surroundings, and never with a traceback."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from typer.testing import CliRunner

from ingot import images, rehearse, rehearse_target
from ingot.cli import app
from ingot.preflight.refusal import Refusal
from ingot.rehearsal import control, host
from ingot.rehearsal.config import Settings
from ingot.rehearsal.control import Control

# With arguments that are right where there is a region.
LOCAL: dict[str, tuple[str, ...]] = {
    "up": (),
    "down": (),
    "run": ("--", "true"),
    "shell": (),
    "ssh": ("head",),
    "logs": ("head",),
    "ports": (),
    "status": (),
}


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials, no region, no cache but those of a test."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "INGOT_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("INGOT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("INGOT_LOCAL_NAME", "test-cli-nowhere")
    monkeypatch.setenv("COLUMNS", "500")
    monkeypatch.setattr(host, "check_root", lambda _: None)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # it keeps the first test's credentials


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in (1, 2)
    return " ".join(result.output.replace("│", " ").split())


def test_the_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"ingot {version('ingot')}\n")


# --- ingot local --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", LOCAL)
def test_who_is_not_root_is_told_so(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Refusal("not root", "this runs as user 1000", "Run it as root")
    monkeypatch.setattr(host, "check_root", lambda _: real)
    monkeypatch.setattr(host, "require", lambda _: pytest.fail("it went on"))
    assert "not root: this runs as user 1000" in refused("local", command, *LOCAL[command])


@pytest.mark.parametrize("command", sorted(set(LOCAL) - {"up", "down"}))
def test_a_region_that_is_down_is_said_with_how_to_start_it(command: str) -> None:
    said = refused("local", command, *LOCAL[command])
    assert "the local region 'test-cli-nowhere' is down: `ingot local up` starts it" in said


@pytest.mark.parametrize("command", [*LOCAL, "mirror"])
@pytest.mark.parametrize(
    ("variable", "value"), [("INGOT_LOCAL_NAME", "../etc"), ("INGOT_LOCAL_MEMORY_SCALE", "much")]
)
def test_a_wrong_setting_is_named(
    command: str, variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    assert variable in refused("local", command, *LOCAL.get(command, ()))


def test_a_cache_that_cannot_be_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_CACHE", "/dev/null")
    assert "/dev/null/mirror: Not a directory" in refused("local", "mirror")


def test_a_record_of_settings_that_was_cut_short_does_not_keep_a_region_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings.from_environment().model_copy(update={"runtime_root": tmp_path})
    settings.runtime.mkdir()
    (settings.runtime / "settings.json").write_text('{"name": "te')
    assert control.settings_of_running(settings) == settings


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """A region whose processes run and whose API does not answer."""
    client = boto3.client(
        "ec2",
        endpoint_url="http://127.0.0.1:1",
        region_name="us-east-1",
        aws_access_key_id="a",
        aws_secret_access_key="b",
        config=Config(retries={"total_max_attempts": 1}),
    )
    monkeypatch.setattr(Control, "is_up", lambda _: True)
    monkeypatch.setattr(Control, "ec2", client)


@pytest.mark.parametrize(
    "arguments", [("status",), ("ssh", "head"), ("logs", "head"), ("ports", "--open", "1:head:2")]
)
def test_an_api_that_does_not_answer_is_said(deaf: None, arguments: tuple[str, ...]) -> None:
    said = refused("local", *arguments)
    assert 'the region\'s API: Could not connect to the endpoint URL: "http://127.0.0.1:1/"' in said
    assert "`ingot local down`" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("ports", "--open", "8080"), "--open takes LOCAL:INSTANCE:PORT"),
        (("ports", "--open", "a:head:b"), "--open takes LOCAL:INSTANCE:PORT"),
        (("ssh", "head", "--key", "/none"), "does not exist"),
        (("ssh", "head", "--key", "/etc"), "is a directory"),
        (("ssh",), "Missing argument"),
        (("run",), "Missing argument"),
    ],
)
def test_a_wrong_argument_is_named(deaf: None, arguments: tuple[str, ...], said: str) -> None:
    assert said in refused("local", *arguments)


# --- ingot rehearse -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("launch_workers: [", "cannot be read"),
        ("", "the inventory does not set 'gateway_port'"),
        ("- a\n", "the inventory does not set 'gateway_port'"),
        ("launch_workers: two\n", "bad-value: launch_workers is 'two'"),
        ("launch_instance_type: m7i.lrge\n", "unknown-instance-type"),
    ],
)
def test_a_rehearsal_with_a_broken_inventory(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "group_vars/all.yml"
    path.parent.mkdir()
    path.write_text(text)
    monkeypatch.setattr(rehearse_target, "INVENTORY", tmp_path)
    monkeypatch.setattr(Control, "up", lambda _: pytest.fail("it went on"))
    answer = refused("rehearse")
    assert str(path) in answer and said in answer


def test_a_rehearsal_on_a_host_that_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearse, "host_memory", lambda: 64 << 30)
    monkeypatch.setattr(host, "check_root", lambda _: Refusal("not root", "this runs as user 7", "Do"))
    assert "not root: this runs as user 7" in refused("rehearse")


def test_a_rehearsal_with_a_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_LOCAL_NAME", "../etc")
    assert "INGOT_LOCAL_NAME" in refused("rehearse")


# --- ingot images -------------------------------------------------------------------------------------------


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        ("http://127.0.0.1:1", "Could not connect to the endpoint URL"),
        ("garbage", "Invalid endpoint: garbage"),
    ],
)
def test_an_endpoint_that_does_not_answer(
    credentials: None, endpoint: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    assert said in refused("images", "base", "x86")


@pytest.fixture
def forbidding() -> Iterator[str]:
    """An EC2 that lets nobody do anything."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = (
                b"<Response><Errors><Error><Code>UnauthorizedOperation</Code>"
                b"<Message>You are not authorized</Message></Error></Errors></Response>"
            )
            self.send_response(403)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_missing_permission(credentials: None, forbidding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", forbidding)
    said = refused("images", "base", "x86")
    assert "UnauthorizedOperation" in said and "DescribeImages" in said


def test_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    assert "Unable to locate credentials" in refused("images", "base", "x86")


def test_a_table_that_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "images.yml").write_text("images: [")
    monkeypatch.setattr(images, "TABLE", tmp_path / "images.yml")
    assert "bad-image-table" in refused("images", "base", "x86")


def test_an_image_that_there_is_not() -> None:
    assert "unknown-image: packer/images.yml has no image 'x68'" in refused("images", "base", "x68")
