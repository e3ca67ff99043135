"""Deploy the Serve application, and keep it deployed.

Ray Serve tries a broken replica again and again and reports at the end that it "failed to start 11 times in a
row". Here the first failure ends the start, with the controller's message and the way to the cause. Once all
replicas run, systemd is told that the unit is ready; from then on a head that was restarted, and so has
forgotten the application, gets it again.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from .causes import REFUSED, first_cause
from .settings import read_json

PATH = "/api/serve/applications/"
FAILED = "DEPLOY_FAILED"
POLL = 2.0
WATCH = 15.0
# The dashboard comes up after the GCS, 5 s on an idle machine.
DASHBOARD_TIMEOUT = 120.0


class DeployError(Exception):
    """The application does not start; the message is for the journal."""


@dataclass(frozen=True)
class Dashboard:
    """Ray's REST interface on the head, with the cluster's token."""

    url: str
    token: str = ""

    def call(self, method: str, path: str, body: object = None) -> Any:
        """One request; the answer is parsed JSON, or None."""
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as response:
            text = response.read()
        return json.loads(text) if text else None


@dataclass(frozen=True)
class State:
    """Where a deployment stands."""

    done: bool
    failed: bool
    summary: str


def read_state(answer: Mapping[str, Any], since: float = 0.0) -> State:
    """Judge the controller's answer: done, failed, or under way.

    A replica that was started after ``since`` (seconds since the epoch) and is dead is a failed start, long
    before the controller has tried often enough to say so. Older ones were replaced by this deployment.
    """
    applications = answer.get("applications") or {}
    if not applications:
        return State(False, False, "the controller has not taken the application up yet")
    parts, failed, done = [], False, True
    for name, application in applications.items():
        done = done and application.get("status") == "RUNNING"
        if application.get("status") == FAILED:
            failed = True
            parts.append(f"{name}: {FAILED}: {application.get('message', '')}")
        for deployment, details in (application.get("deployments") or {}).items():
            replicas = details.get("replicas") or []
            running = sum(replica.get("state") == "RUNNING" for replica in replicas)
            line = f"{deployment} {running}/{details.get('target_num_replicas', len(replicas))}"
            dead = [
                replica
                for replica in details.get("recent_dead_replicas") or []
                if (replica.get("start_time_s") or 0.0) > since
            ]
            if dead:
                failed = True
                nodes = sorted({replica.get("node_ip") or "?" for replica in dead})
                line += f", failed on {', '.join(nodes)}: {details.get('message', '')}"
            parts.append(line)
    return State(done and not failed, failed, "; ".join(parts))


def attempt(config: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The same configuration in words new to Serve, which does not try a failed one again."""
    copy: dict[str, Any] = json.loads(json.dumps(config))
    for application in copy["applications"]:
        for llm in application["args"]["llm_configs"]:
            llm.setdefault("runtime_env", {}).setdefault("env_vars", {})["INGOT_ATTEMPT"] = str(number)
    return copy


def deploy(
    dashboard: Dashboard,
    config: Mapping[str, Any],
    *,
    timeout: float,
    say: Callable[[str], None] = print,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    epoch: Callable[[], float] = time.time,
) -> None:
    """Put the configuration and wait for every replica.

    Raises:
        DeployError: the first replica failed, the token is wrong, or time is up.
    """
    started, since = clock(), epoch()
    before = _patiently(dashboard, "GET", None, started + DASHBOARD_TIMEOUT, clock, sleep)
    if any(item.get("status") == FAILED for item in (before.get("applications") or {}).values()):
        config = attempt(config, int(since))
    _patiently(dashboard, "PUT", config, started + DASHBOARD_TIMEOUT, clock, sleep)
    said = ""
    while True:
        state = read_state(dashboard.call("GET", PATH), since)
        if state.summary != said:
            said = state.summary
            say(f"{clock() - started:.0f} s: {said}")
        if state.done:
            return
        if state.failed:
            raise DeployError(_explain(state.summary))
        if clock() - started > timeout:
            raise DeployError(
                f"not all replicas run after {timeout:.0f} s ({state.summary}). A replica that cannot be "
                f"placed waits "
                "for a node: are all workers joined (`systemctl status ray-worker` there)?"
            )
        sleep(POLL)


def _patiently(
    dashboard: Dashboard,
    method: str,
    body: object,
    deadline: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> Any:
    """One call to a dashboard that may still be starting."""
    while True:
        try:
            return dashboard.call(method, PATH, body)
        except urllib.error.HTTPError as error:
            text = error.read().decode("utf-8", "replace")
            if error.code in {401, 403}:
                raise DeployError("InvalidAuthToken: the head's dashboard refuses the Ray token") from None
            if error.code < 500:
                raise DeployError(
                    f"the head refuses the application's configuration: {text.strip()}"
                ) from None
            problem = text
        except OSError as error:
            problem = str(error)
        if clock() > deadline:
            raise DeployError(
                f"Unable to connect to GCS or dashboard at {dashboard.url}: {problem.strip()[:500]}"
            )
        sleep(POLL)


def _explain(summary: str) -> str:
    cause = first_cause(summary.splitlines())
    text = f"a replica failed to start: {summary}"
    return f"{text}\n{cause.text()}" if cause else text


def watch(
    dashboard: Dashboard,
    config: Mapping[str, Any],
    *,
    timeout: float,
    say: Callable[[str], None] = print,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> NoReturn:
    """Deploy again whenever the head has lost the application; say it when a deployment changes.

    A single replica that dies is Serve's to replace. A head that is away is systemd's to bring back.
    """
    said = ""
    while True:
        sleep(WATCH)
        try:
            answer = dashboard.call("GET", PATH)
        except OSError as error:
            state = State(False, False, f"the head does not answer ({error})")
        else:
            if not answer.get("applications"):
                say("the head has forgotten the application: deploying it again")
                deploy(dashboard, config, timeout=timeout, say=say, clock=clock, sleep=sleep)
            state = read_state(answer)
        if state.summary != said:
            said = state.summary
            say(said)


def notify(state: str) -> None:
    """Tell systemd, where it listens (sd_notify)."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.connect("\0" + path[1:] if path.startswith("@") else path)
        channel.sendall(state.encode())


def main(config: Path, url: str, timeout: float) -> int:
    """Entry of ``ingot serve``; returns only when the application does not start."""
    token_path = os.environ.get("RAY_AUTH_TOKEN_PATH")
    try:
        token = Path(token_path).read_text(encoding="utf-8").strip() if token_path else ""
    except OSError as error:
        raise SystemExit(
            f"{REFUSED} the Ray token {token_path} cannot be read ({error.strerror}). Do: run site.yml"
        ) from None
    dashboard = Dashboard(url, token)
    application = read_json(config)

    def say(text: str) -> None:
        print(text, flush=True)

    try:
        deploy(dashboard, application, timeout=timeout, say=say)
        notify("READY=1")
        watch(dashboard, application, timeout=timeout, say=say)
    except DeployError as error:
        print(f"ingot: {error}", file=sys.stderr)
        return 1
