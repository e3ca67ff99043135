"""Every unit that the roles render: systemd accepts it, and what a user relies on stands in it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleError, AnsibleFilterError
from role_templates import render

from ingot.filters import units

SHAPE = {"layers": 30, "kv_heads": 3, "head_dim": 64, "max_model_len": 8192, "weight_bytes": 269060552}
SERVING: dict[str, Any] = {
    "serving_model_id": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "serving_model_shape": SHAPE,
    "serving_api_key": "sk-canary-0123456789",
    "serving_allowed_sources": ["172.31.0.10"],
    "serving_is_head": True,
    "serving_node_count": 3,
}
RAY = {"ray_head_address": "172.31.0.10", "ray_token": "t" * 43}

UNITS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ray-head.service": ("ray", "ray.service.j2", RAY | {"__ray_role": "head"}),
    "ray-worker.service": ("ray", "ray.service.j2", RAY | {"__ray_role": "worker"}),
    "vllm.service": ("serving", "vllm.service.j2", SERVING | {"serving_mode": "vllm"}),
    "ingot-serve.service": ("serving", "ingot-serve.service.j2", SERVING),
    "ingot-firewall.service": ("serving", "ingot-firewall.service.j2", SERVING),
}
SERVICES = [name for name in UNITS if name != "ingot-firewall.service"]

# What the verifier of an older systemd, or of a machine without the programs, cannot know.
EXPECTED = re.compile(
    r"is not executable: No such file or directory"
    r"|Unknown key( name)? '(RestartSteps|RestartMaxDelaySec)' in section"
)


def unit(name: str, **more: Any) -> str:
    role, template, variables = UNITS[name]
    return render(role, template, variables | more)


def options(text: str, key: str) -> list[str]:
    joined = text.replace("\\\n", " ")
    return [line.partition("=")[2] for line in joined.splitlines() if line.startswith(f"{key}=")]


@pytest.mark.parametrize("name", UNITS)
def test_systemd_accepts(name: str, tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.fail("systemd-analyze is missing: install the package systemd")
    (tmp_path / name).write_text(unit(name))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(tmp_path / name)],
        capture_output=True,
        text=True,
        check=False,
    )
    complaints = [
        line for line in done.stderr.splitlines() if str(tmp_path) in line or line.startswith(name + ":")
    ]
    assert [line for line in complaints if not EXPECTED.search(line)] == []


def test_the_verifier_sees_a_planted_mistake(tmp_path: Path) -> None:
    (tmp_path / "x.service").write_text(unit("vllm.service").replace("RestartSec=2", "RestartSecs=2"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / "x.service")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "'RestartSecs' in section" in done.stderr


@pytest.mark.parametrize("name", UNITS)
def test_no_secret_stands_in_a_unit(name: str) -> None:
    text = unit(name)
    assert SERVING["serving_api_key"] not in text
    assert RAY["ray_token"] not in text
    assert "--api-key" not in text


@pytest.mark.parametrize("name", SERVICES)
def test_sandbox_limits_and_restart(name: str) -> None:
    text = unit(name)
    for line in (
        "NoNewPrivileges=yes",
        "CapabilityBoundingSet=",
        "ProtectSystem=strict",
        "ProtectHome=yes",
        "PrivateTmp=yes",
        "User=ingot",
        "SystemCallFilter=@system-service",
    ):
        assert line in text.splitlines(), line
    assert options(text, "Restart")[0] in {"always", "on-failure"}
    assert options(text, "StartLimitIntervalSec"), "a failure that repeats must become visible"


@pytest.mark.parametrize("name", ["ray-head.service", "ray-worker.service", "vllm.service"])
def test_what_runs_the_engine_has_room(name: str) -> None:
    text = unit(name)
    assert int(options(text, "LimitNOFILE")[0]) >= 65535
    assert options(text, "LimitMEMLOCK") == ["infinity"]
    assert options(text, "TasksMax") == ["infinity"]
    assert "HOME=/var/lib/ingot" in text
    assert "78" in options(text, "RestartPreventExitStatus")[0]


@pytest.mark.parametrize("name", ["ray-head.service", "ray-worker.service"])
def test_ray_is_supervised_authenticated_and_on_one_address(name: str) -> None:
    text = unit(name)
    command = options(text, "ExecStart")[0]
    assert command.startswith("/usr/bin/ingot launch --check processor -- ")
    assert "--block" in command
    assert "--node-ip-address ${RAY_NODE_ADDRESS}" in command
    assert "0.0.0.0" not in command
    assert "Environment=RAY_AUTH_MODE=token" in text
    assert "Environment=RAY_AUTH_TOKEN_PATH=%d/ray-token" in text
    assert options(text, "LoadCredential") == ["ray-token:/etc/ingot/credentials/ray-token"]
    # plasma_store's path below the session folder must fit AF_UNIX's 107 bytes
    root = command.split("--temp-dir ")[1].split()[0]
    assert len(root + "/session_2026-11-30_13-53-20_123456_1234567/sockets/plasma_store.sock") <= 107
    assert root in options(text, "ReadWritePaths")[0].split()


def test_the_dashboard_is_on_loopback_only() -> None:
    assert "--dashboard-host 127.0.0.1" in unit("ray-head.service")
    assert "--dashboard-host" not in unit("ray-worker.service")


def test_a_node_of_rays_own_launcher_has_the_same_flags_and_its_own_settings() -> None:
    """What is in ray-up.env wins over ray.env; without it the head has no option more than it had."""
    for name in ("ray-head.service", "ray-worker.service"):
        files = options(unit(name), "EnvironmentFile")
        assert files[:2] == ["/etc/ingot/ray.env", "-/etc/ingot/ray-up.env"]
    head = unit("ray-head.service")
    # A word of its own and without braces: systemd makes as many arguments of it as it has words, here none.
    assert options(head, "ExecStart")[0].split()[-1] == "$RAY_START_OPTIONS"
    assert "RAY_START_OPTIONS=" in options(head, "Environment")
    assert "RAY_START_OPTIONS" not in unit("ray-worker.service")


def test_a_worker_never_stops_trying_to_reach_its_head() -> None:
    assert options(unit("ray-worker.service"), "StartLimitIntervalSec") == ["0"]
    assert options(unit("ray-head.service"), "StartLimitIntervalSec") == ["15min"]


def test_ray_settings() -> None:
    text = render("ray", "ray.env.j2", RAY | {"ray_node_role": "head", "__ray_role": "head"})
    settings = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    assert settings["RAY_HEAD"] == "172.31.0.10:6379"
    assert settings["RAY_NUM_CPUS"] == "4"
    assert json.loads(settings["RAY_RESOURCES"].strip("'")) == {"ingot_replica": 1}
    changed = RAY | {"ray_node_role": "head", "__ray_role": "head", "ray_drain_seconds": 7}
    assert render("ray", "ray.env.j2", changed) != text, "a changed unit restarts Ray through this file"


def serve_application(**more: Any) -> dict[str, Any]:
    text = render("serving", "serve.json.j2", SERVING | more)
    application: dict[str, Any] = json.loads(text)
    return application


def test_one_replica_a_node_by_cpus_and_by_resource() -> None:
    application = serve_application()
    assert application["proxy_location"] == "EveryNode"
    arguments = application["applications"][0]["args"]
    llm = arguments["llm_configs"][0]
    assert llm["accelerator_config"] == {"kind": "cpu"}
    assert llm["placement_group_config"]["bundle_per_worker"] == {"CPU": 3, "ingot_replica": 1}
    assert llm["deployment_config"]["num_replicas"] == 3
    assert arguments["ingress_deployment_config"]["max_replicas_per_node"] == 1
    assert llm["engine_kwargs"]["max_model_len"] == 8192
    assert llm["engine_kwargs"]["kv_cache_memory_bytes"] > 0


def test_flags_of_the_user_win_and_reach_serve_by_its_names() -> None:
    flags = {"max-num-seqs": 3, "enable-prefix-caching": False}
    engine = serve_application(serving_engine_flags=flags)["applications"][0]["args"]["llm_configs"][0][
        "engine_kwargs"
    ]
    assert engine["max_num_seqs"] == 3
    assert engine["enable_prefix_caching"] is False


def test_vllm_arguments() -> None:
    text = render(
        "serving", "vllm.yaml.j2", SERVING | {"serving_mode": "vllm", "serving_enforce_eager": True}
    )
    arguments = yaml.safe_load(text)
    assert arguments["host"] == "172.31.0.10", "one address, never all"
    assert arguments["model"] == "/opt/ingot/models/HuggingFaceTB/SmolLM2-135M-Instruct"
    assert arguments["served-model-name"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert arguments["enforce-eager"] is True
    assert arguments["shutdown-timeout"] == 120
    assert isinstance(arguments["kv-cache-memory-bytes"], int)
    assert "api-key" not in arguments


def test_stop_outlasts_the_drain() -> None:
    text = render(
        "serving",
        "sizing.conf.j2",
        SERVING | {"serving_mode": "vllm", "serving_drain_seconds": 300},
    )
    assert int(options(text, "TimeoutStopSec")[0]) > 300
    start = int(options(text, "Environment")[0].split("=")[1])
    assert int(options(text, "TimeoutStartSec")[0]) > start


def test_doctor_settings_are_what_the_doctor_reads(tmp_path: Path) -> None:
    from ingot.doctor import settings

    path = tmp_path / "serving.json"
    path.write_text(render("serving", "serving.json.j2", SERVING))
    loaded = settings.load(path)
    assert loaded.units == ("ray-head.service", "ingot-serve.service")
    assert loaded.engine_bytes > 269060552
    path.write_text(render("serving", "serving.json.j2", SERVING | {"serving_is_head": False}))
    assert settings.load(path).units == ("ray-worker.service",)
    path.write_text(render("serving", "serving.json.j2", SERVING | {"serving_mode": "vllm"}))
    assert settings.load(path).units == ("vllm.service",)


def test_the_firewall_lets_only_named_sources_in() -> None:
    text = render(
        "serving", "firewall.nft.j2", SERVING | {"serving_allowed_sources": ["10.0.0.1", "10.1.0.0/16"]}
    )
    rules = [line.strip() for line in text.splitlines() if "dport" in line]
    assert rules == [
        "tcp dport 8000 iif lo accept",
        "tcp dport 8000 ip saddr { 10.0.0.1, 10.1.0.0/16 } accept",
        "tcp dport 8000 counter drop",
    ]


TUNING = {"LD_PRELOAD": "/usr/lib/ingot/preload/libtcmalloc_minimal.so.4"}


def test_the_allocator_reaches_replicas_and_no_other_process_of_ray() -> None:
    """What stands in Ray's unit or its files is in the environment of every process of Ray."""
    application = serve_application(serving_tuning_environment=TUNING)["applications"][0]["args"]
    assert TUNING.items() <= application["llm_configs"][0]["runtime_env"]["env_vars"].items()
    for name in ("ray-head.service", "ray-worker.service"):
        assert "LD_PRELOAD" not in unit(name)


def engine_env(**more: str) -> str:
    """The image's file, as the role vllm writes it."""
    return render("vllm", "engine.env.j2", {"vllm_environment": more})


@pytest.mark.parametrize("compiler", [True, False])
def test_an_engine_without_a_compiler_is_told_so(compiler: bool) -> None:
    text = render("vllm", "engine.env.j2", {"vllm_environment": {}, "vllm_compiler": compiler})
    assert ("TORCH_COMPILE_DISABLE" in text) is not compiler


def environment(units: str, files: dict[str, str]) -> dict[str, str]:
    """What processes get, by systemd.exec(5): what stands in the unit, then its files in their order."""
    found: dict[str, str] = {}
    for line in options(units, "Environment"):
        found |= dict(setting.split("=", 1) for setting in shlex.split(line))
    for path in options(units, "EnvironmentFile"):
        for line in files[path.removeprefix("-")].splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.partition("=")
                found[name] = "".join(shlex.split(value))
    return found


def engine_environment(image: dict[str, str], **given: dict[str, str]) -> dict[str, str]:
    """What the plain unit's engine gets: of the computed, of the image, and of what the user set."""
    variables = SERVING | {"serving_mode": "vllm"} | given
    files = {
        "/etc/ingot/engine.env": engine_env(**image),
        "/etc/ingot/serving.env": units.environment_lines(given.get("serving_environment", {})),
    }
    dropin = render("serving", "sizing.conf.j2", variables)  # systemd reads it after the unit itself
    return environment(unit("vllm.service", **variables) + dropin, files)


def test_the_user_wins_over_the_image_and_the_image_over_what_is_computed() -> None:
    tuning = {"LD_PRELOAD": "/tuned.so", "GLOO_SOCKET_IFNAME": "lo"}
    plain = engine_environment({}, serving_tuning_environment=tuning)
    assert (plain["LD_PRELOAD"], plain["HF_HUB_OFFLINE"]) == ("/tuned.so", "1")
    image = engine_environment({"LD_PRELOAD": "/image.so"}, serving_tuning_environment=tuning)
    assert image["LD_PRELOAD"] == "/image.so"
    own = {"LD_PRELOAD": "/own.so", "HF_HUB_OFFLINE": "0", "PYTHONUNBUFFERED": ""}
    user = engine_environment(
        {"LD_PRELOAD": "/image.so"}, serving_tuning_environment=tuning, serving_environment=own
    )
    assert own.items() <= user.items()
    assert user["GLOO_SOCKET_IFNAME"] == "lo"


def test_the_users_environment_is_the_last_file_that_systemd_reads() -> None:
    """An `Environment=` of a drop-in, however late, loses against any file."""
    plain = SERVING | {"serving_mode": "vllm", "serving_environment": {"HF_HUB_OFFLINE": "0"}}
    dropin = render("serving", "sizing.conf.j2", plain)
    assert options(unit("vllm.service") + dropin, "EnvironmentFile") == [
        "-/etc/ingot/engine.env",
        "/etc/ingot/serving.env",
    ]
    assert "HF_HUB_OFFLINE" not in dropin
    for name in ("ray-head.service", "ray-worker.service"):
        assert options(unit(name), "EnvironmentFile") == [
            "/etc/ingot/ray.env",
            "-/etc/ingot/ray-up.env",
            "-/etc/ingot/engine.env",
            "/etc/ingot/ray-user.env",
        ]


def test_a_value_with_quotes_and_spaces_arrives_whole() -> None:
    given = {"PLAIN": "a,b=/c|0-3", "JSON": '{"a": "$HOME `x` \\n"}', "NUMBER": 4, "EMPTY": ""}
    lines = units.environment_lines(given).splitlines()
    assert lines == [
        "EMPTY=",
        r'JSON="{\"a\": \"\$HOME \`x\` \\n\"}"',
        "NUMBER=4",
        "PLAIN=a,b=/c|0-3",
    ]
    with pytest.raises(AnsibleFilterError, match="'A B' cannot name an environment variable"):
        units.environment_lines({"A B": "1"})


def test_threads_of_a_nodes_replica_are_in_rays_environment_and_change_restarts_it() -> None:
    node = RAY | {"__ray_role": "worker"}
    bound = {"VLLM_CPU_OMP_THREADS_BIND": "0-93"}
    text = render("ray", "ray.env.j2", node | {"ray_engine_environment": bound})
    assert "VLLM_CPU_OMP_THREADS_BIND=0-93" in text.splitlines()
    text = render("ray", "ray.env.j2", node | {"ray_engine_environment": bound, "ray_environment": {"A": 1}})
    assert "A=1" not in text.splitlines(), "the image's file is read after this one, and would win"


def test_two_engines_of_a_node_are_one_server_and_each_has_half_of_the_memory() -> None:
    plain = SERVING | {"serving_mode": "vllm", "serving_host_memory_bytes": 8 * 1024**3}
    one = yaml.safe_load(render("serving", "vllm.yaml.j2", plain))
    two = yaml.safe_load(render("serving", "vllm.yaml.j2", plain | {"serving_engines": 2}))
    assert "data-parallel-size" not in one
    assert two["data-parallel-size"] == 2
    assert two["kv-cache-memory-bytes"] < one["kv-cache-memory-bytes"]


GPU = SERVING | {"serving_mode": "vllm", "serving_model_shape": SHAPE | {"attention_heads": 9}}


@pytest.mark.parametrize(
    ("instance_type", "more", "expected"),
    [
        ("g5.xlarge", {}, {"tensor-parallel-size": 1}),
        ("g5.12xlarge", {}, {"tensor-parallel-size": 1, "data-parallel-size": 4}),
        (
            "g5.12xlarge",
            {"serving_engine_flags": {"tensor-parallel-size": 3}, "serving_max_num_seqs": 64},
            {"tensor-parallel-size": 3, "max-num-seqs": 64},
        ),
    ],
)
def test_on_gpus_an_engine_is_sized_by_them_and_vllm_measures_the_cache(
    instance_type: str, more: dict[str, Any], expected: dict[str, int]
) -> None:
    arguments = yaml.safe_load(
        render("serving", "vllm.yaml.j2", GPU | {"serving_instance_type": instance_type} | more)
    )
    sized = ("tensor-parallel-size", "data-parallel-size", "max-num-seqs", "kv-cache-memory-bytes")
    assert {name: arguments[name] for name in sized if name in arguments} == expected
    assert arguments["max-model-len"] == 8192


def test_on_gpus_the_hosts_memory_does_not_limit_the_model() -> None:
    """48 GiB of weights on four L40S, in a host that a CPU's engine would not fit."""
    large = GPU["serving_model_shape"] | {"weight_bytes": 48 * 1024**3, "attention_heads": 12}
    node = {"serving_model_shape": large, "serving_host_memory_bytes": 32 * 1024**3}
    text = render("serving", "vllm.yaml.j2", GPU | node | {"serving_instance_type": "g6e.12xlarge"})
    assert yaml.safe_load(text)["tensor-parallel-size"] == 3, "the KV heads are three"
    with pytest.raises(AnsibleError, match="does not fit"):
        render("serving", "vllm.yaml.j2", GPU | node)


def test_on_neuron_chips_the_engine_fits_what_was_compiled() -> None:
    """With no argument that vLLM 0.13 does not know: it would not start."""
    flags = {
        "tensor-parallel-size": 2,
        "max-model-len": 2048,
        "max-num-seqs": 4,
        "num-gpu-blocks-override": 4,
        "no-enable-prefix-caching": True,
    }
    neuron = {
        "serving_instance_type": "inf2.xlarge",
        "serving_device_flags": flags,
        "serving_engine_drains": False,
    }
    shape = SHAPE | {"attention_heads": 8, "kv_heads": 4}
    told = yaml.safe_load(
        render(
            "serving",
            "vllm.yaml.j2",
            SERVING | neuron | {"serving_mode": "vllm", "serving_model_shape": shape},
        )
    )
    assert {name: told[name] for name in flags} == flags
    for unknown in ("shutdown-timeout", "kv-cache-memory-bytes", "data-parallel-size"):
        assert unknown not in told


def test_on_gpus_start_and_stop_have_their_time_too() -> None:
    text = render("serving", "sizing.conf.j2", GPU | {"serving_instance_type": "g5.xlarge"})
    start = int(options(text, "Environment")[0].split("=")[1])
    assert int(options(text, "TimeoutStartSec")[0]) > start > 60
    assert int(options(text, "TimeoutStopSec")[0]) > 120
