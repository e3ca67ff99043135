"""The doctor's table against the lines that real failures left, and its checks against planted defects."""

from __future__ import annotations

import io
import json
import os
import pwd
import socket
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from ingot.doctor import checks, collect, launch, serve, settings
from ingot.doctor.__main__ import main
from ingot.doctor.causes import TABLE, first_cause, match
from ingot.doctor.finding import Finding, ordered
from ingot.doctor.settings import Settings

LINES = [
    ("vllm.service: Main process exited, code=dumped, status=4/ILL", "wrong-processor", "does not have"),
    ("Worker proc VllmWorker-0 died with signal 4", "wrong-processor", "does not have"),
    (
        "ImportError: libnuma.so.1: cannot open shared object file: No such file or directory",
        "missing-library",
        "libnuma.so.1",
    ),
    (
        "AttributeError: '_OpNamespace' '_C' object has no attribute 'init_cpu_memory_env'",
        "extension-not-imported",
        "swallows",
    ),
    ("'_C' object has no attribute 'init_cpu_memory_env'", "extension-not-imported", "swallows"),
    (
        "ImportError: /opt/v/torch/lib/libtorch_python.so: undefined symbol: _ZN3c10",
        "undefined-symbol",
        "_ZN3c10",
    ),
    ("RPC error: InvalidAuthToken: Authentication token is missing or incorrect.", "wrong-token", "token"),
    (
        "RuntimeError: Version mismatch: The cluster was started with:",
        "version-mismatch",
        "another Ray or Python",
    ),
    ("vllm.service: Failed to set up credentials: No such file or directory", "credentials", "credential"),
    (
        "ray-head.service: Failed to load environment files: No such file or directory",
        "environment-file",
        "not been configured",
    ),
    ("OSError: [Errno 28] No space left on device: '/var/cache/ingot/x'", "disk-full", "full"),
    ("Out of memory: Killed process 4711 (VLLM::Worker)", "out-of-memory", "ran out of memory"),
    (
        "ray-worker.service: A process of this unit has been killed by the OOM killer.",
        "out-of-memory",
        "ran out",
    ),
    (
        "Task was killed due to the node running low on memory.",
        "out-of-memory",
        "ran out",
    ),
    (
        "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes",
        "out-of-memory",
        "ran out",
    ),
    ("vllm.service: Main process exited, code=killed, status=9/KILL", "killed", "SIGKILL"),
    (
        "PermissionError: [Errno 13] Permission denied: '/opt/ingot/models/a/b/config.json'",
        "model-unreadable",
        "/opt/ingot/models/a/b/config.json",
    ),
    (
        "OSError: /opt/ingot/models/x does not appear to have a file named config.json. Checkout",
        "model-missing",
        "not where",
    ),
    (
        "safetensors_rust.SafetensorError: Error while deserializing header: InvalidHeaderDeserialization",
        "model-damaged",
        "cut short",
    ),
    ("PermissionError: [Errno 13] Permission denied: '/.cache'", "permission", "/.cache"),
    (
        "OSError: [Errno 98] error while attempting to bind on address: address already in use",
        "port-taken",
        "",
    ),
    ("RuntimeError: Failed to bind to address '0.0.0.0:8000'.", "port-taken", "taken"),
    (
        "[ALERT] (99) : Starting frontend api: cannot bind socket (Address already in use) [10.0.0.1:8080]",
        "port-taken",
        "taken",
    ),
    (
        "torch._inductor.exc.InvalidCxxCompiler: No working C++ compiler found",
        "no-compiler",
        "C++ compiler",
    ),
    ("OSError: [Errno 24] Too many open files", "limits", "limit"),
    ("api_server.py: error: unrecognized arguments: --device cpu", "engine-argument", "argument"),
    ("ValueError: Unknown engine argument: device", "engine-argument", "argument"),
    ("ModuleNotFoundError: No module named 'grpc_reflection'", "module-missing", "grpc_reflection"),
    ("vllm.service: Failed at step EXEC: status=203/EXEC", "executable", "program"),
    ("ray-head.service: Main process exited, code=exited, status=226/NAMESPACE", "sandbox", "sandbox"),
    (
        "ingot: the head 10.0.0.1:6379 does not answer (connection refused)",
        "gcs-unreachable",
        "does not answer",
    ),
    ("rpc_client.h:153: Failed to connect to GCS at address 10.0.0.1:6379", "gcs-unreachable", "head"),
    (
        "[ALERT]    (7) : config : parsing [/etc/haproxy/haproxy.cfg:9] : unknown keyword",
        "haproxy-config",
        ":9",
    ),
    ("vllm.service: Start request repeated too quickly.", "start-limit", "given up"),
    ("The deployment failed to start 11 times in a row.", "deployment-failed", "replica"),
    (
        "ValueError: To serve at least one request, 1.5 GiB KV cache is needed, which is larger than the "
        "available KV cache memory (1.0 GiB)",
        "kv-cache-too-small",
        "KV cache",
    ),
    (
        "ingot: refused: this node's lock is aaa and the head's is bbb. Do: launch both from one image",
        "refused",
        "aaa and the head's is bbb",
    ),
]


@pytest.mark.parametrize(("line", "cause", "says"), LINES, ids=[line[:40] for line, _, _ in LINES])
def test_a_line_means(line: str, cause: str, says: str) -> None:
    finding = match(line)
    assert finding is not None
    assert finding.cause == cause
    assert says in finding.what
    assert finding.action
    assert finding.evidence == line


def test_every_entry_of_the_table_is_tried() -> None:
    assert {cause.id for cause in TABLE} == {cause for _, cause, _ in LINES}


@pytest.mark.parametrize(
    "line",
    [
        "INFO 11-30 13:00:00 [api_server.py:1] Starting vLLM API server",
        "WARNING libtcmalloc is not found in LD_PRELOAD.",
        "raylet: memory usage 0.5",
    ],
)
def test_an_ordinary_line_means_nothing(line: str) -> None:
    assert match(line) is None


def test_the_root_wins_over_its_consequences_wherever_it_stands() -> None:
    chain = [
        "The deployment failed to start 11 times in a row.",
        "AttributeError: '_C' object has no attribute 'init_cpu_memory_env'",
        "vllm.service: Start request repeated too quickly.",
        "ImportError: libnuma.so.1: cannot open shared object file: No such file or directory",
    ]
    finding = first_cause(chain)
    assert finding is not None and finding.cause == "missing-library"
    assert first_cause(["all is well"]) is None


def test_ordered_gives_roots_first_and_each_once() -> None:
    late = Finding("b", "b", "do", rank=5, unit="u")
    early = Finding("a", "a", "do", rank=1, unit="u")
    assert ordered([late, early, late]) == [early, late]


def test_text_says_what_where_and_what_to_do() -> None:
    text = Finding("a", "It broke.", "Mend it.", 1, "n1", "vllm.service", "journal", "the line").text()
    assert text == "It broke.  [n1, vllm.service, journal]\n    seen: the line\n    do:   Mend it."


# --- checks -----------------------------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "models" / "smol"
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(b"weights")
    for directory in (path, path.parent, tmp_path):
        directory.chmod(0o755)
    return path


@pytest.fixture
def anybody(monkeypatch: pytest.MonkeyPatch) -> str:
    """A user who owns nothing, whoever runs the test; directories above the test's own are passable."""
    allowed = checks._allowed

    def only_below(path: Path, user: str, wanted: int) -> bool:
        return "models" not in path.parts or allowed(path, user, wanted)

    monkeypatch.setattr(checks, "_allowed", only_below)
    return "nobody"


def found(check: Any, **values: Any) -> list[str]:
    return [finding.cause for finding in check(Settings(**values))]


def test_a_whole_readable_model_passes(model: Path, anybody: str) -> None:
    assert found(checks.model_files, model_path=str(model), user=anybody) == []


@pytest.mark.parametrize("blocked", [".", "config.json", "model.safetensors"])
def test_a_model_that_the_service_user_may_not_read(model: Path, anybody: str, blocked: str) -> None:
    (model / blocked).chmod(0o700)
    findings = list(checks.model_files(Settings(model_path=str(model), user=anybody)))
    assert [item.cause for item in findings] == ["model-unreadable"]
    assert str((model / blocked).resolve()) in findings[0].what


def test_a_file_that_the_index_names_is_missing(model: Path, anybody: str) -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    (model / "model-1.safetensors").write_bytes(b"x")
    findings = list(checks.model_files(Settings(model_path=str(model), user=anybody, model_id="smol")))
    assert [item.cause for item in findings] == ["model-missing"]
    assert "model-2.safetensors" in findings[0].what


def test_a_model_that_is_not_there(tmp_path: Path, anybody: str) -> None:
    assert found(checks.model_files, model_path=str(tmp_path / "none"), user=anybody) == ["model-missing"]


def test_an_empty_weight_file(model: Path, anybody: str) -> None:
    (model / "model.safetensors").write_bytes(b"")
    assert found(checks.model_files, model_path=str(model), user=anybody) == ["model-damaged"]


def test_a_taken_port_names_its_holder() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (finding,) = checks.port_taken(Settings(address="127.0.0.1", port=port))
    assert finding.cause == "port-taken" and finding.transient
    assert f"(pid {os.getpid()})" in finding.what
    assert found(checks.port_taken, address="127.0.0.1", port=port) == []


def test_what_our_own_engine_holds_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A start that replaces a running engine, or Serve's proxy, finds the port held and the memory used."""
    monkeypatch.setattr(checks, "_meminfo", lambda: {"MemAvailable": 1})
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        values: dict[str, Any] = {"venv": str(tmp_path), "cache": "/none", "ray_logs": "/none/a/b"}
        values |= {"address": "127.0.0.1", "port": port, "engine_bytes": 2}
        me = pwd.getpwuid(os.getuid()).pw_name
        assert found(checks.preflight, user=me, **values) == ["environment-missing"]
        causes = found(checks.preflight, user="no-such-user", **values)
    assert causes == ["environment-missing", "port-taken", "memory-too-small"]


def test_an_address_that_the_node_no_longer_has() -> None:
    assert found(checks.port_taken, address="192.0.2.1", port=1) == ["wrong-address"]


def test_too_little_memory_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_meminfo", lambda: {"MemAvailable": 2 * checks.GIB})
    (finding,) = checks.memory(Settings(engine_bytes=3 * checks.GIB, model_id="smol"))
    assert "smol needs 3.00 GiB here and 2.00 GiB are available" in finding.what
    assert found(checks.memory, engine_bytes=checks.GIB) == []
    assert list(checks.memory(Settings(engine_bytes=3 * checks.GIB), ours=checks.GIB)) == []


def test_resident_memory_of_a_user() -> None:
    me = pwd.getpwuid(os.getuid()).pw_name
    assert checks.resident(me) > 10 << 20, "this test's own process at least"
    assert checks.resident("no-such-user") == 0


@pytest.mark.parametrize("mode", ["vllm", "ray_serve"])
def test_a_node_without_its_engine_is_asked_for_port_and_memory(
    mode: str, system: System, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(checks, "_meminfo", lambda: {"MemAvailable": 1})
    with socket.create_server(("127.0.0.1", 0)) as server:
        settings = Settings(
            mode=mode,
            user="no-such-user",
            venv=str(tmp_path),
            cache="/none",
            ray_logs=str(tmp_path / "a/b"),
            address="127.0.0.1",
            port=server.getsockname()[1],
            engine_bytes=2,
        )
        causes = [finding.cause for finding in collect.diagnose(settings)]
    assert causes == ["environment-missing", "port-taken", "memory-too-small"]


def test_a_library_that_the_linker_does_not_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = tmp_path / "lib/python3.13/site-packages"
    for path in ("vllm/_C.abi3.so", "torch/lib/libtorch.so"):
        (packages / path).parent.mkdir(parents=True)
        (packages / path).write_bytes(b"")

    def ldd(*_: Any, **__: Any) -> subprocess.CompletedProcess[str]:
        text = (
            "\tlibnuma.so.1 => not found\n\tlibtorch.so => not found\n\tlibc.so.6 => /lib/libc.so.6 (0x0)\n"
        )
        return subprocess.CompletedProcess([], 0, text, "")

    monkeypatch.setattr(subprocess, "run", ldd)
    findings = list(checks.missing_libraries(Settings(venv=str(tmp_path))))
    assert [item.evidence for item in findings] == ["libnuma.so.1 => not found"], "torch's own is no defect"
    assert "libnuma1" in findings[0].action


GRAVITON3 = (
    "processor\t: 0\nFeatures\t: fp asimd atomics asimddp sve bf16 i8mm\nCPU implementer\t: 0x41\n"
    "CPU part\t: 0xd40\n\nprocessor\t: 1\nFeatures\t: fp asimd atomics asimddp sve bf16 i8mm\n"
)


def processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpuinfo: str, compiled: Any) -> list[Finding]:
    facts = tmp_path / "vllm.json"
    facts.write_text(json.dumps({"compiled": compiled}))
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr(checks, "CPUINFO", tmp_path / "cpuinfo")
    return list(checks.processor(Settings(facts=str(facts))))


def test_an_image_for_another_core_is_refused_before_it_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    v2 = {"cpu": "neoverse-v2", "cpu_features": ["sve", "sve2", "svebitperm", "bf16"]}
    (finding,) = processor(tmp_path, monkeypatch, GRAVITON3, v2)
    assert finding.cause == "wrong-processor"
    assert "compiled for neoverse-v2, and this processor lacks sve2, svebitperm" in finding.what
    assert finding.evidence.endswith("CPU implementer 0x41, part 0xd40")
    assert not finding.transient
    line = launch.refusal(finding)
    assert line.startswith("ingot: refused: vLLM was compiled for neoverse-v2")
    again = match(line)
    assert again and again.cause == "refused" and "lacks sve2" in again.what


@pytest.mark.parametrize(
    ("cpuinfo", "compiled"),
    [
        (GRAVITON3, {"cpu": "neoverse-v1", "cpu_features": ["sve", "bf16", "i8mm"]}),
        (GRAVITON3, None),
        ("processor : 0\nflags : fpu avx avx2\nmodel name : X\n", {"cpu": "x", "cpu_features": ["avx2"]}),
        ("", {"cpu": "neoverse-v2", "cpu_features": ["sve2"]}),
    ],
    ids=["the same core", "a wheel", "x86", "a /proc that does not say"],
)
def test_a_core_that_has_everything_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpuinfo: str, compiled: Any
) -> None:
    assert processor(tmp_path, monkeypatch, cpuinfo, compiled) == []


def test_one_core_of_another_kind_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = GRAVITON3 + "processor\t: 2\nFeatures\t: fp asimd\n"
    (finding,) = processor(tmp_path, monkeypatch, mixed, {"cpu": "neoverse-v1", "cpu_features": ["sve"]})
    assert "lacks sve" in finding.what


def test_a_node_whose_image_says_nothing_is_not_refused(tmp_path: Path) -> None:
    assert list(checks.processor(Settings(facts=str(tmp_path / "none.json")))) == []


def test_no_environment(tmp_path: Path) -> None:
    assert found(checks.missing_libraries, venv=str(tmp_path)) == ["environment-missing"]


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "FREE_DISK_MINIMUM", 1 << 60)
    assert found(checks.disk, cache=str(tmp_path), ray_logs="/nowhere/a/b") == ["disk-full"]


# --- collecting -------------------------------------------------------------------------------------------


def test_only_dead_workers_and_fresh_logs_are_read(tmp_path: Path) -> None:
    defect = "ImportError: libnuma.so.1: cannot open shared object file: No such file or directory\n"
    dead = tmp_path / "worker-aa-01000000-999999999.err"
    alive = tmp_path / f"worker-bb-01000000-{os.getpid()}.err"
    old = tmp_path / "worker-cc-01000000-999999998.err"
    for path in (dead, alive, old):
        path.write_text("loading\n" + defect)
    os.utime(old, (0, 0))
    findings = list(collect.ray_findings(Settings(ray_logs=str(tmp_path), node="n2")))
    assert [(item.cause, item.node, item.source) for item in findings] == [
        ("missing-library", "n2", str(dead))
    ]


class System:
    """systemctl and journalctl, as far as the doctor asks them."""

    def __init__(self) -> None:
        self.units: dict[str, dict[str, str]] = {}
        self.journal: list[str] = []

    def run(self, *command: str) -> str:
        if command[0] == "systemctl":
            return "\n".join(f"{key}={value}" for key, value in self.units.get(command[2], {}).items())
        return "\n".join(json.dumps({"MESSAGE": line}) for line in self.journal)


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> System:
    fake = System()
    monkeypatch.setattr(collect, "_run", fake.run)
    return fake


FAILED = {"ActiveState": "failed", "SubState": "failed", "Result": "exit-code", "NRestarts": "5"}


def test_a_failed_unit_is_explained_by_its_journal(system: System) -> None:
    system.units["vllm.service"] = FAILED
    system.journal = [
        "Traceback",
        "PermissionError: [Errno 13] Permission denied: '/opt/ingot/models/m/config.json'",
    ]
    findings = list(collect.unit_findings(Settings(units=("vllm.service",), node="n1")))
    assert [(item.cause, item.node, item.unit) for item in findings] == [
        ("model-unreadable", "n1", "vllm.service")
    ]


def test_a_failed_unit_without_a_known_cause_still_says_so(system: System) -> None:
    system.units["vllm.service"] = FAILED
    (finding,) = collect.unit_findings(Settings(units=("vllm.service",)))
    assert finding.cause == "unit-failed"
    assert "after 5 restarts" in finding.what
    assert "journalctl -u vllm.service" in finding.action


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        ({"ActiveState": "active", "NRestarts": "3"}, None),
        ({"ActiveState": "activating", "SubState": "start", "NRestarts": "0"}, None),
        ({"ActiveState": "activating", "SubState": "auto-restart", "NRestarts": "1"}, "unit-failed"),
        ({"ActiveState": "inactive", "SubState": "dead"}, "unit-stopped"),
        ({"ActiveState": "inactive", "LoadState": "not-found"}, "unit-missing"),
    ],
)
def test_unit_states(system: System, state: dict[str, str], cause: str | None) -> None:
    system.units["ray-head.service"] = state
    findings = list(collect.unit_findings(Settings(units=("ray-head.service",))))
    assert [item.cause for item in findings] == ([cause] if cause else [])


# --- launching --------------------------------------------------------------------------------------------


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    seen: dict[str, Any] = {}

    def become(file: str, argv: list[str], environment: dict[str, str]) -> None:
        seen.update(file=file, argv=argv, environment=environment)
        raise SystemExit(0)

    monkeypatch.setattr(os, "execvpe", become)
    yield seen


def test_launch_hands_over_a_credential_by_environment_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executed: dict[str, Any]
) -> None:
    (tmp_path / "api-key").write_text("sk-canary\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    with pytest.raises(SystemExit):
        launch.launch(Settings(), ["vllm", "serve"], credentials=["VLLM_API_KEY=api-key"], check=False)
    assert executed["environment"]["VLLM_API_KEY"] == "sk-canary"
    assert executed["argv"] == ["vllm", "serve"]


def test_the_command_line_of_a_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executed: dict[str, Any]
) -> None:
    (tmp_path / "api-key").write_text("sk-canary")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    with pytest.raises(SystemExit):
        main(
            [
                "launch",
                "--no-check",
                "--credential",
                "K=api-key",
                "--",
                "python",
                "-m",
                "vllm",
                "--config",
                "x",
            ]
        )
    assert executed["argv"] == ["python", "-m", "vllm", "--config", "x"]
    assert executed["environment"]["K"] == "sk-canary"


def test_launch_without_a_credential_directory_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    with pytest.raises(SystemExit, match="refused: credential api-key was not handed over"):
        launch.launch(Settings(), ["x"], credentials=["K=api-key"], check=False)


@pytest.mark.parametrize(("transient", "status"), [(True, launch.EX_TEMPFAIL), (False, launch.EX_CONFIG)])
def test_launch_refuses_in_one_line_that_the_doctor_reads_again(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    executed: dict[str, Any],
    transient: bool,
    status: int,
) -> None:
    defect = Finding("port-taken", "Port 8000 is taken by x (pid 1).", "Stop it.", 12, transient=transient)
    monkeypatch.setattr(launch, "preflight", lambda _: [defect])
    assert launch.launch(Settings(), ["vllm"]) == status
    assert not executed
    line = capsys.readouterr().err
    finding = match(line)
    assert finding is not None
    assert (finding.cause, finding.what, finding.action) == (
        "refused",
        "Port 8000 is taken by x (pid 1)",
        "Stop it.",
    )


# --- deploying --------------------------------------------------------------------------------------------


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


# --- the command ------------------------------------------------------------------------------------------


def test_settings_of_an_unconfigured_node_and_unknown_keys(tmp_path: Path) -> None:
    assert settings.load(tmp_path / "none").units == ()
    (tmp_path / "s.json").write_text('{"units": ["vllm.service"], "mode": "vllm"}')
    assert settings.load(tmp_path / "s.json").units == ("vllm.service",)
    (tmp_path / "s.json").write_text('{"unit": []}')
    with pytest.raises(SystemExit, match="unknown keys: unit"):
        settings.load(tmp_path / "s.json")


def test_doctor_as_json_and_exit_status(
    tmp_path: Path, system: System, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    system.units["vllm.service"] = FAILED
    config = tmp_path / "serving.json"
    config.write_text(json.dumps({"mode": "vllm", "units": ["vllm.service"], "venv": str(tmp_path)}))
    monkeypatch.setattr(settings, "PATH", config)
    monkeypatch.setattr(settings.load, "__defaults__", (config,))
    assert main(["doctor", "--json"]) == 1
    causes = [item["cause"] for item in json.loads(capsys.readouterr().out)]
    assert causes == ["environment-missing", "unit-failed"]


def test_it_runs_with_nothing_but_the_standard_library(tmp_path: Path) -> None:
    """As on a node: copied alone, system interpreter, no site-packages."""
    source = Path(checks.__file__).parent
    target = tmp_path / "ingot" / "doctor"
    target.mkdir(parents=True)
    (tmp_path / "ingot" / "__init__.py").write_text("")
    for path in source.glob("*.py"):
        (target / path.name).write_bytes(path.read_bytes())
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            f"import sys; sys.path.insert(0, {str(tmp_path)!r});"
            "from ingot.doctor.__main__ import parser; print(parser().prog)",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "ingot"), done.stderr
