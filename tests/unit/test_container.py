"""vllm_method container: the unit that Podman's generator makes, and what is refused before one is made.

And files/containers: a container by the roles of an image, which has no list of its own.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from role_templates import evaluate, render

ROOT = Path(__file__).parents[2]
QUADLET = Path("/usr/libexec/podman/quadlet")
IMAGE = "registry.example/vllm-cpu@sha256:" + "a" * 64
SHAPE = {"layers": 30, "kv_heads": 3, "head_dim": 64, "max_model_len": 8192, "weight_bytes": 269060552}
SERVING: dict[str, Any] = {
    "serving_mode": "vllm",
    "serving_model_id": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "serving_model_shape": SHAPE,
    "serving_api_key": "sk-canary-0123456789",
    "serving_container_image": IMAGE,
    "__serving_uid": "995",
    "__serving_gid": "994",
}


def container(**more: Any) -> str:
    return render("serving", "vllm.container.j2", SERVING | more)


def values(text: str, key: str) -> list[str]:
    return [line.partition("=")[2] for line in text.splitlines() if line.startswith(f"{key}=")]


def environment(text: str) -> set[str]:
    """Single settings of the lines `Environment=`; none of ours has a space in it."""
    return {setting for line in values(text, "Environment") for setting in line.split()}


def test_it_has_the_files_and_the_environment_of_the_other_unit() -> None:
    plain = render("serving", "vllm.service.j2", SERVING)
    text = container()
    own = {setting for setting in environment(plain) if not setting.startswith("PATH=")}
    assert environment(text) == own
    command = " ".join(values(plain.replace("\\\n", " "), "ExecStart"))
    assert values(text, "Exec")[0].partition("--")[2] == command.rpartition(" --")[2]
    assert "/etc/ingot/engine.env" in values(text, "EnvironmentFile")
    for key in ("Restart", "RestartSec", "LimitNOFILE", "LimitMEMLOCK", "TasksMax", "StartLimitBurst"):
        assert values(text, key) == values(plain, key), key
    assert values(text, "LoadCredential") == values(plain, "LoadCredential")


def test_it_is_confined_as_the_other_unit_is() -> None:
    text = container()
    for line in (
        "NoNewPrivileges=true",
        "DropCapability=all",
        "ReadOnly=true",
        "User=995",
        "Group=994",
        "Network=host",  # whose one address is in vllm.yaml
    ):
        assert line in text.splitlines(), line
    mounts = values(text, "Volume")
    written = {mount.split(":")[0] for mount in mounts if mount.endswith(":rw")}
    assert written == set(values(render("serving", "vllm.service.j2", SERVING), "ReadWritePaths")[0].split())
    assert "/opt/ingot/models:/opt/ingot/models:ro" in mounts
    assert "privileged" not in text
    assert "seccomp" not in text


def test_the_key_is_no_argument_and_the_image_is_never_pulled_at_a_start() -> None:
    text = container()
    assert SERVING["serving_api_key"] not in text
    assert values(text, "Secret") == ["ingot-vllm-api-key,type=env,target=VLLM_API_KEY"]
    assert "--pull=never" in values(text, "PodmanArgs")
    assert values(text, "Image") == [IMAGE]


def test_the_unit_is_the_same_on_the_image_and_on_a_node() -> None:
    baked = container(serving_model_id="", serving_api_key="", serving_model_shape={})
    assert baked == container()
    elsewhere = values(container(serving_model_path="/data/weights"), "Volume")
    assert "/data/weights:/data/weights:ro" in elsewhere


def test_its_limits_are_those_of_the_unit() -> None:
    """What Podman is told to set it sets, or fails; what systemd may not raise it cuts to what it may."""
    given = [value for value in values(container(), "PodmanArgs") if "limit" in value]
    assert given == ["--pids-limit=0", "--ulimit=host"]


def test_a_stop_outlasts_the_drain() -> None:
    (stop,) = re.findall(r"--stop-timeout=(\d+)", container(serving_drain_seconds=300))
    assert int(stop) > 300


def test_the_nodes_allocator_stays_out_of_the_container() -> None:
    tuned = {"serving_tuning_environment": {"LD_PRELOAD": "/usr/lib/ingot/preload/x.so", "VLLM_X": "1"}}
    text = render("serving", "vllm-container.env.j2", SERVING | tuned)
    assert values(text, "VLLM_X") == ["1"]
    assert "LD_PRELOAD" not in text
    own = {"serving_environment": {"LD_PRELOAD": "/lib/in-the-container.so"}}
    text = render("serving", "vllm-container.env.j2", SERVING | tuned | own)
    assert values(text, "LD_PRELOAD") == ["/lib/in-the-container.so"]
    # Podman itself gets none of it.
    assert "LD_PRELOAD" not in render("serving", "sizing.conf.j2", SERVING | tuned)


def test_the_doctor_knows_which_engine_it_is(tmp_path: Path) -> None:
    from ingot.doctor import settings

    path = tmp_path / "serving.json"
    path.write_text(render("serving", "serving.json.j2", SERVING))
    assert settings.load(path).container_image == IMAGE
    path.write_text(render("serving", "serving.json.j2", SERVING | {"serving_container_image": ""}))
    assert settings.load(path).container_image == ""


@pytest.mark.skipif(not QUADLET.exists(), reason="this machine's Podman has no quadlet (Debian 13's has)")
def test_podmans_generator_makes_a_unit_that_systemd_accepts(tmp_path: Path) -> None:
    (tmp_path / "vllm.container").write_text(container())
    made = generate(tmp_path)
    assert made.returncode == 0, made.stderr
    first, _, unit = made.stdout.partition("\n")
    assert first == "---vllm.service---"
    (tmp_path / "vllm.service").write_text(unit)
    command = [
        "systemd-analyze",
        "verify",
        "--man=no",
        "--recursive-errors=no",
        str(tmp_path / "vllm.service"),
    ]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    ours = [line for line in said.splitlines() if "vllm.service" in line and "is not executable" not in line]
    assert [line for line in ours if not re.search("'Restart(Steps|MaxDelaySec)'", line)] == []
    assert "WantedBy=multi-user.target" in unit
    start = values(unit, "ExecStart")[0]
    assert f" {IMAGE} -m vllm.entrypoints.openai.api_server --config /etc/ingot/vllm.yaml" in start
    assert "--cap-drop all" in start


@pytest.mark.skipif(not QUADLET.exists(), reason="this machine's Podman has no quadlet (Debian 13's has)")
def test_the_generator_sees_a_planted_mistake(tmp_path: Path) -> None:
    (tmp_path / "vllm.container").write_text(container().replace("DropCapability=", "DropCapabilities="))
    assert "unsupported key 'DropCapabilities'" in generate(tmp_path).stderr


def generate(directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [QUADLET, "--dryrun"],
        env={**os.environ, "QUADLET_UNIT_DIRS": str(directory)},
        capture_output=True,
        text=True,
        check=False,
    )


# --- which engine it is -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "image"),
    [
        ({}, ""),
        ({"vllm_method": "wheel", "vllm_container_image": IMAGE}, ""),
        ({"vllm_method": "container", "vllm_container_image": IMAGE}, IMAGE),
        ({"vllm_method": "container", "__engine_pins": {"vllm_container": IMAGE}}, IMAGE),
        ({"vllm_method": "container", "__engine_pins": {}}, ""),
    ],
)
def test_the_unit_gets_the_image_of_the_role(variables: dict[str, Any], image: str) -> None:
    wiring = yaml.safe_load((ROOT / "playbooks/vars/engine.yml").read_text())
    expression = wiring["serving_container_image"].strip().removeprefix("{{").removesuffix("}}")
    assert evaluate(expression, {"__engine_pins": {}} | variables) == image


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, 'vllm_container_image is ""'),
        ({"vllm_container_image": "registry.example/vllm-cpu:v1"}, "takes an image by its digest"),
        ({"vllm_container_image": IMAGE[:-1]}, "takes an image by its digest"),
        (
            {"vllm_container_image": IMAGE, "vllm_container_archive": "/nowhere.tar"},
            "vllm_container_archive, /nowhere.tar, is no file on the controller",
        ),
    ],
)
def test_an_image_that_could_be_another_tomorrow_is_refused(
    tmp_path: Path, variables: dict[str, Any], said: str
) -> None:
    assert said in refused_by_the_role(tmp_path, variables)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            {"index.json": '{"manifests": [{"digest": "sha256:0123"}]}'},
            "does not hold " + IMAGE + ", but sha256:0123",
        ),
        ({"manifest.json": "[]"}, "is no OCI archive"),
        ({"index.json": "[]"}, "is no OCI archive"),
    ],
)
def test_an_archive_of_another_image_is_refused_before_it_is_copied(
    tmp_path: Path, content: dict[str, str], said: str
) -> None:
    archive = tmp_path / "image.tar"
    with tarfile.open(archive, "w") as tar:
        for name, text in content.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    given = {"vllm_container_image": IMAGE, "vllm_container_archive": str(archive)}
    assert said in refused_by_the_role(tmp_path, given)


def refused_by_the_role(tmp_path: Path, variables: dict[str, Any]) -> str:
    """What the role says of variables that it must not take."""
    play = {
        "hosts": "localhost",
        "connection": "local",
        "gather_facts": False,
        "tasks": [{"ansible.builtin.include_role": {"name": "vllm", "tasks_from": "validate"}}],
    }
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
    given = {"vllm_method": "container", "ansible_facts": {"architecture": "x86_64"}} | variables
    return refused_by(tmp_path / "play.yml", given)


def refused_by(playbook: Path, variables: dict[str, Any]) -> str:
    """What a playbook that must fail says, in one line."""
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    done = subprocess.run(
        [program, "-i", "localhost,", "-e", json.dumps(variables), str(playbook)],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    return " ".join(done.stdout.split())


# --- files/containers ---------------------------------------------------------------------------------------


def test_a_container_of_an_image_that_there_is_not_is_refused() -> None:
    said = refused_by(ROOT / "playbooks/container.yml", {"container_image": "x68"})
    assert 'packer/images.yml has no image "x68"' in said
    assert "graviton3, graviton4" in said


def test_its_roles_are_those_of_the_image_that_do_not_set_up_a_machine() -> None:
    play = yaml.safe_load((ROOT / "playbooks/container.yml").read_text())[1]
    ofamachine = play["vars"]["__of_a_machine"]
    for image in yaml.safe_load((ROOT / "packer/images.yml").read_text())["images"].values():
        assert set(ofamachine) <= set(image["roles"]), "a role that is gone would hide a mistyped one"
        content = [role for role in image["roles"] if role not in ofamachine]
        assert content == ["cpu_tuning", "python_runtime", "vllm", "model_store"]


def test_it_lists_no_package_that_a_role_installs() -> None:
    text = (ROOT / "files/containers/Containerfile").read_text()
    listed = re.findall(r"--no-install-recommends ([a-z0-9 -]+)", text)
    assert {name for names in listed for name in names.split()} == {
        "ca-certificates",
        "python3",
        "python3-apt",
        "python3-venv",
    }
    assert "ARG BASE\n" in text, "which base it is from is said by whoever builds it"
