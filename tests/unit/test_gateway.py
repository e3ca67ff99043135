"""The gateway's configuration, run: a real HAProxy on loopback before engines that behave or misbehave."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from certificate import issue
from program import load
from role_templates import render

from ingot import certificates

KEY = "sk-client-canary-0123456789"
OTHER = "sk-second-client-0123456789"
ENGINE_KEY = "sk-engine-canary-0123456789"


class Engine(ThreadingHTTPServer):
    """Speaks just enough of the API; what it was asked is kept."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.dead = False  # answers /health, generates nothing
        self.wants_key = ""
        self.seen: list[tuple[str, dict[str, str], bytes]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def probes(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, headers, body in self.seen if headers.get("host") == "ingot"]

    def requests(self) -> list[tuple[str, dict[str, str], bytes]]:
        return [item for item in self.seen if item[1].get("host") != "ingot"]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Engine

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, status: int, text: str = "{}") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self) -> None:
        self.server.seen.append((self.path, {k.lower(): v for k, v in self.headers.items()}, b""))
        self.answer(200)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {key.lower(): value for key, value in self.headers.items()}
        self.server.seen.append((self.path, headers, body))
        if self.server.wants_key and headers.get("authorization") != f"Bearer {self.server.wants_key}":
            self.answer(401)
        elif self.server.dead:
            self.answer(500)
        elif b'"stream"' in body:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for number in range(3):
                event = f"data: {number}\n\n".encode()
                self.wfile.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
                self.wfile.flush()
                time.sleep(0.4)
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.answer(200, '{"object":"text_completion"}')


class Gateway:
    """A running HAProxy, and a client of it."""

    def __init__(self, directory: Path, engines: list[Engine], **variables: Any) -> None:
        self.directory = directory
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
            self.port = free.getsockname()[1]
        credentials = directory / "credentials"
        credentials.mkdir(exist_ok=True)
        (credentials / "gateway-keys").write_text(f"{KEY}\n{OTHER}\n")
        pools = [f"{pool['name']} Bearer {pool['key']}\n" for pool in variables.get("gateway_pools", [])]
        keys = [f"authorization Bearer {ENGINE_KEY}\n", *pools]
        (credentials / "gateway-backend-key").write_text("".join(keys))
        text = render(
            "gateway",
            "haproxy.cfg.j2",
            {
                "gateway_port": self.port,
                "gateway_backends": [
                    {"name": f"n{number}", "address": "127.0.0.1", "port": engine.port}
                    for number, engine in enumerate(engines)
                ],
                "gateway_api_keys": [KEY, OTHER],
                "gateway_model_id": "HuggingFaceTB/SmolLM2-135M-Instruct",
                "gateway_probe_interval": 1,
                "__gateway_credentials": str(credentials),
                **variables,
            },
        )
        # What belongs to the machine and not to the behaviour: a test has no chroot and no user of its own.
        for line in ("  chroot /var/lib/haproxy\n", "  user haproxy\n", "  group haproxy\n"):
            assert line in text
            text = text.replace(line, "")
        self.socket = directory / "admin.sock"
        text = text.replace("/run/haproxy/admin.sock", str(self.socket))
        text = text.replace("fastinter 2s downinter 3s", "fastinter 200ms downinter 300ms")
        self.config = directory / "haproxy.cfg"
        self.config.write_text(text)
        check = subprocess.run(
            ["haproxy", "-c", "-f", str(self.config)], capture_output=True, text=True, check=False
        )
        assert check.returncode == 0, check.stderr
        assert "WARNING" not in check.stderr, check.stderr
        self.log = (directory / "log").open("w+")
        self.process = subprocess.Popen(
            ["haproxy", "-db", "-f", str(self.config)], stdout=self.log, stderr=subprocess.STDOUT
        )

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(10)
        self.log.close()

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, key: str = KEY
    ) -> tuple[int, dict[str, str], Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        sent = {"Authorization": f"Bearer {key}"} if key else {}
        text = json.dumps(body) if body is not None else None
        connection.request(method, path, text, sent | (headers or {}))
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        received = {name.lower(): value for name, value in answer.getheaders()}
        try:
            return answer.status, received, json.loads(content)
        except ValueError:
            return answer.status, received, content

    def admin(self, command: str) -> str:
        with socket.socket(socket.AF_UNIX) as channel:
            channel.connect(str(self.socket))
            channel.sendall(command.encode() + b"\n")
            return b"".join(iter(lambda: channel.recv(4096), b"")).decode()

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 15
        while not condition():
            assert time.monotonic() < deadline, what
            time.sleep(0.05)

    def wait_health(self, status: int) -> None:
        def reached() -> bool:
            try:
                return self.ask("GET", "/health", key="")[0] == status
            except OSError:
                return False

        self.wait(reached, f"/health never answered {status}")


@pytest.fixture
def engine() -> Iterator[Engine]:
    server = Engine()
    yield server
    server.shutdown()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Gateway]]:
    if not shutil.which("haproxy"):
        pytest.fail("haproxy is missing: install the package haproxy")
    running: list[Gateway] = []

    def run(*engines: Engine, **variables: Any) -> Gateway:
        gateway = Gateway(tmp_path, list(engines), **variables)
        running.append(gateway)
        gateway.wait(lambda: all(engine.probes() for engine in engines), "no health check came")
        return gateway

    yield run
    for gateway in running:
        gateway.stop()


def test_with_a_certificate_it_speaks_tls_as_clients_ask_for_it(
    engine: Engine, start: Callable[..., Gateway], tmp_path: Path
) -> None:
    """The playbook's own closing question, by the module that asks it."""
    issued = issue("llm.example.com")
    path = tmp_path / "certificate.pem"
    path.write_text(issued.public + issued.private())
    (tmp_path / "credentials").mkdir()
    shutil.copy(path, tmp_path / "credentials/gateway.pem")
    gateway = start(engine, gateway_tls_certificate=str(path))
    found = certificates.endpoint(
        {
            "inventory_hostname": "127.0.0.1",
            "gateway_port": gateway.port,
            "gateway_tls_certificate": str(path),
            "cluster_name": "ingot",
            "ingot_config_dir": str(tmp_path),
        }
    )
    module = load(Path(__file__).parents[2] / "plugins/modules/ask_endpoint.py")

    def status(key: str) -> int:
        question = {"model": "m", "messages": []}
        answer = module.ask(found.url, found.address, key, question, found.certificates, 10)
        return int(answer["status"])

    gateway.wait(lambda: status(KEY) == 200, "it never answered")
    assert status("wrong") == 401


def completion(gateway: Gateway, **more: Any) -> tuple[int, dict[str, str], Any]:
    return gateway.ask("POST", "/v1/completions", {"model": "m", "prompt": "hello"}, **more)


def test_keys_health_and_what_stays_inside(start: Callable[..., Gateway], engine: Engine) -> None:
    gateway = start(engine)
    gateway.wait_health(200)
    assert completion(gateway)[2] == {"object": "text_completion"}
    assert completion(gateway, key=OTHER)[0] == 200

    for wrong in ("", "sk-wrong", KEY + "x", KEY[:-1]):
        status, headers, body = completion(gateway, key=wrong)
        assert status == 401
        assert headers["www-authenticate"] == "Bearer"
        assert headers["content-type"] == "application/json"
        assert body["error"]["code"] == "invalid_api_key"
        assert set(body["error"]) == {"message", "type", "param", "code"}

    for path in ("/metrics", "/docs", "/", "/v2/x"):
        status, _, body = gateway.ask("GET", path)
        assert (status, body["error"]["code"]) == (404, "not_found"), path
    assert all(path.startswith("/v1/") for path, _, _ in engine.requests())
    assert gateway.ask("GET", "/health", key="")[2] == {"status": "ready"}


def test_the_client_s_key_never_reaches_an_engine(start: Callable[..., Gateway], engine: Engine) -> None:
    completion(start(engine))
    assert KEY not in str(engine.seen)
    assert "authorization" not in engine.requests()[0][1]


def test_engines_with_a_key_get_theirs(start: Callable[..., Gateway], engine: Engine) -> None:
    engine.wants_key = ENGINE_KEY
    gateway = start(engine, gateway_backend_key=ENGINE_KEY)
    gateway.wait_health(200)
    assert completion(gateway)[0] == 200
    assert KEY not in str(engine.seen)
    assert ENGINE_KEY not in gateway.config.read_text(), "keys stand in files of their own"
    assert KEY not in gateway.config.read_text()


def test_the_health_check_generates_one_token(start: Callable[..., Gateway], engine: Engine) -> None:
    start(engine)
    assert engine.probes()[0] == {
        "model": "HuggingFaceTB/SmolLM2-135M-Instruct",
        "prompt": "1",
        "max_tokens": 1,
    }


def test_an_engine_whose_core_is_dead_gets_nothing_and_comes_back(
    start: Callable[..., Gateway], engine: Engine
) -> None:
    gateway = start(engine)
    gateway.wait_health(200)
    engine.dead = True
    gateway.wait_health(503)
    status, headers, body = completion(gateway)
    assert (status, body["error"]["code"], headers["retry-after"]) == (503, "no_engine", "5")
    engine.dead = False
    gateway.wait_health(200)
    assert completion(gateway)[0] == 200


def test_one_failed_check_is_forgiven(start: Callable[..., Gateway], engine: Engine) -> None:
    gateway = start(engine, gateway_probe_fall=1000)
    gateway.wait_health(200)
    before = len(engine.probes())
    engine.dead = True
    gateway.wait(lambda: len(engine.probes()) > before + 2, "checks stopped")
    assert gateway.ask("GET", "/health", key="")[0] == 200


def test_a_stream_arrives_token_by_token(start: Callable[..., Gateway], engine: Engine) -> None:
    gateway = start(engine)
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=10)
    connection.request("POST", "/v1/completions", '{"stream": true}', {"Authorization": f"Bearer {KEY}"})
    answer = connection.getresponse()
    times = []
    while line := answer.readline():
        if line.startswith(b"data"):
            times.append(time.monotonic())
    connection.close()
    assert len(times) == 3
    assert times[2] - times[0] > 0.6, "the events were held back and came at once"


def test_a_silence_longer_than_allowed_is_a_504_of_the_api(
    start: Callable[..., Gateway], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = start(engine, gateway_generation_timeout=1)
    gateway.wait_health(200)
    release = threading.Event()
    original: Callable[[Handler], None] = Handler.do_POST

    def slow(handler: Handler) -> None:
        if handler.headers.get("Host") != "ingot":
            release.wait(5)
        original(handler)

    monkeypatch.setattr(Handler, "do_POST", slow)
    try:
        status, _, body = completion(gateway)
    finally:
        release.set()
    assert (status, body["error"]["code"]) == (504, "timeout")


def test_requests_that_are_too_large_or_without_length(start: Callable[..., Gateway], engine: Engine) -> None:
    gateway = start(engine, gateway_max_body_bytes=1000)
    assert gateway.ask("POST", "/v1/completions", {"prompt": "x" * 2000})[0] == 413
    status, _, body = gateway.ask("POST", "/v1/completions", headers={"Transfer-Encoding": "chunked"})
    assert (status, body["error"]["type"]) == (411, "invalid_request_error")
    assert engine.requests() == []


def test_a_client_that_dribbles_its_body_holds_no_engine(
    start: Callable[..., Gateway], engine: Engine
) -> None:
    gateway = start(engine, gateway_request_timeout=1)
    with socket.create_connection(("127.0.0.1", gateway.port)) as client:
        client.sendall(
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
            "Content-Length: 500\r\n\r\n{".encode()
        )
        client.settimeout(10)
        assert client.recv(100).startswith(b"HTTP/1.1 408")
    assert engine.requests() == []


def test_draining_moves_new_requests_to_the_others(start: Callable[..., Gateway], engine: Engine) -> None:
    second = Engine()
    try:
        gateway = start(engine, second)
        gateway.wait_health(200)
        gateway.admin("set server engines/n0 state drain")
        for _ in range(6):
            assert completion(gateway)[0] == 200
        assert engine.requests() == []
        assert len(second.requests()) == 6
    finally:
        second.shutdown()


def test_no_key_in_the_log(start: Callable[..., Gateway], engine: Engine) -> None:
    gateway = start(engine)
    completion(gateway)
    completion(gateway, key="sk-mistyped-key-of-a-client")
    gateway.wait(lambda: "/v1/completions" in (gateway.directory / "log").read_text(), "nothing was logged")
    log = (gateway.directory / "log").read_text()
    assert KEY not in log
    assert "sk-mistyped" not in log


def test_tls(tmp_path: Path, engine: Engine) -> None:
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    key, cert = tmp_path / "key", tmp_path / "cert"
    openssl = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=gateway"
    subprocess.run([*openssl.split(), "-keyout", key, "-out", cert], check=True, capture_output=True)
    (credentials / "gateway.pem").write_text(cert.read_text() + key.read_text())
    (credentials / "gateway-keys").write_text(KEY)
    text = render(
        "gateway",
        "haproxy.cfg.j2",
        {
            "gateway_backends": [{"name": "n0", "address": "127.0.0.1", "port": engine.port}],
            "gateway_api_keys": [KEY],
            "gateway_model_id": "m",
            "gateway_tls_certificate": "gateway.pem",
            "__gateway_credentials": str(credentials),
        },
    )
    (tmp_path / "haproxy.cfg").write_text(
        text.replace("  group haproxy\n", "").replace("  user haproxy\n", "")
    )
    check = subprocess.run(
        ["haproxy", "-c", "-f", str(tmp_path / "haproxy.cfg")], capture_output=True, check=False
    )
    assert check.returncode == 0, check.stderr
    assert "bind 127.0.0.1:8080 ssl crt" in text


@pytest.fixture
def second() -> Iterator[Engine]:
    server = Engine()
    server.wants_key = "sk-pool-canary-0123456789"
    yield server
    server.shutdown()


def pooled(start: Callable[..., Gateway], engine: Engine, second: Engine) -> Gateway:
    pool = {
        "name": "made_up",
        "model_id": "made/up",
        "key": second.wants_key,
        "backends": [{"name": "inf2", "address": "127.0.0.1", "port": second.port}],
    }
    gateway = start(engine, gateway_pools=[pool])
    body = {"model": "made/up", "prompt": "x"}
    gateway.wait(lambda: gateway.ask("POST", "/v1/completions", body)[0] == 200, "the pool never came up")
    gateway.wait(lambda: len(engine.probes()) > 0, "no health check came")
    second.seen.clear()
    return gateway


def test_a_request_goes_to_the_pool_of_the_model_that_it_names(
    start: Callable[..., Gateway], engine: Engine, second: Engine
) -> None:
    gateway = pooled(start, engine, second)

    def asked(model: str) -> int:
        return gateway.ask("POST", "/v1/completions", {"model": model, "prompt": "x"})[0]

    assert (asked("made/up"), len(second.requests()), len(engine.requests())) == (200, 1, 0)
    assert second.requests()[0][1]["authorization"] == f"Bearer {second.wants_key}", "its own key"
    assert (asked("HuggingFaceTB/SmolLM2-135M-Instruct"), len(engine.requests())) == (200, 1)
    assert "authorization" not in engine.requests()[0][1], "and nobody else gets that"
    assert (asked("another"), len(engine.requests())) == (200, 2), "an engine says that it has no such model"
    assert len(second.requests()) == 1
    _, _, listed = gateway.ask("GET", "/v1/models")
    assert [one["id"] for one in listed["data"]] == ["HuggingFaceTB/SmolLM2-135M-Instruct", "made/up"]


def test_a_request_whose_model_cannot_be_seen_goes_to_no_pool(
    start: Callable[..., Gateway], engine: Engine, second: Engine
) -> None:
    gateway = pooled(start, engine, second)
    status, _, answer = gateway.ask("POST", "/v1/completions", {"prompt": "x"})
    assert (status, answer["error"]["code"]) == (400, "no_model")
    late = {"prompt": "x" * 100_000, "model": "made/up"}
    assert gateway.ask("POST", "/v1/completions", late)[0] == 400
    early = {"model": "made/up", "prompt": "x" * 100_000}
    assert gateway.ask("POST", "/v1/completions", early)[0] == 200


def test_a_pool_without_an_engine_is_not_ready_and_the_other_serves(
    start: Callable[..., Gateway], engine: Engine, second: Engine
) -> None:
    gateway = pooled(start, engine, second)
    second.dead = True

    def ask(model: str) -> tuple[int, dict[str, str], Any]:
        return gateway.ask("POST", "/v1/completions", {"model": model, "prompt": "x"})

    gateway.wait(lambda: ask("made/up")[0] == 503, "the dead pool was never out")
    status, headers, answer = ask("made/up")
    assert (status, headers["retry-after"], answer["error"]["code"]) == (503, "5", "no_engine")
    assert ask("HuggingFaceTB/SmolLM2-135M-Instruct")[0] == 200
