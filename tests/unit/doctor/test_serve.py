"""A deployment ends with its first failure, and is made again when the head forgot it."""

from __future__ import annotations

import io
import socket
import urllib.error
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from ingot.doctor import serve
from ingot.doctor.causes import match


def answer(
    status: str = "DEPLOYING", replicas: int = 1, message: str = "", died: float | None = None
) -> dict[str, Any]:
    """What the controller says; ``died``: a replica was started then and is dead."""
    dead = [{"state": "STOPPED", "node_ip": "10.0.0.9", "start_time_s": died}] if died is not None else []
    return {
        "applications": {
            "llm": {
                "status": status,
                "message": message,
                "deployments": {
                    "LLMServer:m": {
                        "status": "UPDATING",
                        "message": message,
                        "target_num_replicas": 3,
                        "replicas": [{"state": "RUNNING", "node_ip": "10.0.0.1"}] * replicas,
                        "recent_dead_replicas": dead,
                    }
                },
            }
        }
    }


class FakeDashboard(serve.Dashboard):
    """Answers what it was told to, one after the other; the last for ever."""

    answers: list[Any]
    put: list[Any]

    def __init__(self, answers: list[Any]) -> None:
        super().__init__("http://test")
        object.__setattr__(self, "answers", answers)
        object.__setattr__(self, "put", [])

    def call(self, method: str, path: str, body: object = None) -> Any:
        if method == "PUT":
            return self.put.append(body)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


NOW = 1_000_000.0
CONFIG = {
    "applications": [{"name": "llm", "args": {"llm_configs": [{"runtime_env": {"env_vars": {"A": "1"}}}]}}]
}


def deploy(answers: list[Any], timeout: float = 100, dashboard: FakeDashboard | None = None) -> list[str]:
    said: list[str] = []
    clock = Clock()
    serve.deploy(
        dashboard or FakeDashboard([{}, *answers]),
        CONFIG,
        timeout=timeout,
        say=said.append,
        clock=clock,
        sleep=clock.sleep,
        epoch=lambda: NOW,
    )
    return said


def test_deploy_ends_when_every_application_runs_and_says_each_step_once() -> None:
    said = deploy([{}, answer(), answer(), answer(replicas=2), answer("RUNNING", replicas=3)])
    assert [line.split(": ", 1)[1] for line in said] == [
        "the controller has not taken the application up yet",
        "LLMServer:m 1/3",
        "LLMServer:m 2/3",
        "LLMServer:m 3/3",
    ]


def test_deploy_ends_at_the_first_failed_replica_with_node_and_cause() -> None:
    message = (
        "failed to start 1 times.\nImportError: libnuma.so.1: cannot open shared object file: No such file"
    )
    with pytest.raises(serve.DeployError) as error:
        deploy([answer(), answer(message=message, died=NOW + 5), answer("RUNNING")])
    assert "failed on 10.0.0.9" in str(error.value)
    assert "The shared library libnuma.so.1 is not on this machine." in str(error.value)


def test_a_replica_that_this_deployment_replaced_is_no_failure() -> None:
    assert deploy([answer(died=NOW - 500), answer("RUNNING", replicas=3, died=NOW - 500)])


def test_deploy_ends_when_the_controller_gives_up() -> None:
    with pytest.raises(serve.DeployError, match="DEPLOY_FAILED: no such import path"):
        deploy([answer("DEPLOY_FAILED", message="no such import path")])


def test_what_failed_before_is_tried_again_though_nothing_changed() -> None:
    """Serve keeps a failed deployment as it is when it gets the same configuration again."""
    dashboard = FakeDashboard([answer("DEPLOY_FAILED"), answer("RUNNING", replicas=3)])
    deploy([], dashboard=dashboard)
    environment = dashboard.put[0]["applications"][0]["args"]["llm_configs"][0]["runtime_env"]["env_vars"]
    assert environment == {"A": "1", "INGOT_ATTEMPT": str(int(NOW))}
    assert "INGOT_ATTEMPT" not in str(CONFIG)

    dashboard = FakeDashboard([answer("RUNNING", replicas=3)])
    deploy([], dashboard=dashboard)
    assert dashboard.put == [CONFIG], "what runs is not rolled for nothing"


def test_a_wrong_token_is_named() -> None:
    class Refusing(FakeDashboard):
        def call(self, method: str, path: str, body: object = None) -> Any:
            raise urllib.error.HTTPError(path, 401, "Unauthorized", Message(), io.BytesIO(b"no"))

    with pytest.raises(serve.DeployError) as error:
        deploy([], dashboard=Refusing([]))
    assert match(str(error.value)).cause == "wrong-token"  # type: ignore[union-attr]


def test_deploy_gives_up_in_time_and_points_to_the_workers() -> None:
    with pytest.raises(serve.DeployError, match=r"after 10 s \(LLMServer:m 1/3\).*ray-worker"):
        deploy([answer()], timeout=10)


def test_an_application_that_the_head_forgot_is_deployed_again() -> None:
    """After READY: the head was restarted once, then the test ends the endless watch."""
    said: list[str] = []
    clock = Clock()
    dashboard = FakeDashboard([answer("RUNNING", replicas=3), {}, {}, {}, answer("RUNNING", replicas=3)])

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.now > 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        serve.watch(dashboard, {"the": "config"}, timeout=60, say=said.append, clock=clock, sleep=sleep)
    assert dashboard.put == [{"the": "config"}]
    assert said.index("the head has forgotten the application: deploying it again") == 1
    assert said[-1].endswith("LLMServer:m 3/3")


def test_a_head_that_is_away_does_not_end_the_watch() -> None:
    class Away(serve.Dashboard):
        def call(self, method: str, path: str, body: object = None) -> Any:
            raise ConnectionRefusedError("refused")

    said: list[str] = []
    clock = Clock()

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.now > 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        serve.watch(Away("http://test"), {}, timeout=60, say=said.append, clock=clock, sleep=sleep)
    assert said == ["the head does not answer (refused)"]


def test_notify_reaches_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "n"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "n"))
        serve.notify("READY=1")
        assert server.recv(100) == b"READY=1"
