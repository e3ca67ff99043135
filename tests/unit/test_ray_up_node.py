"""What Ray's own launcher calls on a node (roles/ray/files/ray_up.py)."""

from __future__ import annotations

import json
import pwd
import re
import subprocess
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml
from program import load

ROLE = Path(__file__).parents[2] / "roles/ray"
SOURCE = ROLE / "files/ray_up.py"
ENV = "# Managed by Ansible\nRAY_HEAD=:6379\nRAY_NODE_ADDRESS=\nRAY_NUM_CPUS=3\n"
TOKEN = "t" * 48
FURTHER = "HF_TOKEN=secret\n"


class Node:
    """A node as the launcher finds it: units, the login user's home, the service user's."""

    def __init__(self, root: Path, program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        self.program = program
        self.etc, self.login, self.service = root / "etc", root / "admin", root / "ingot"
        for folder in (self.etc / "credentials", self.login / "ingot-ray", self.service, root / "units"):
            folder.mkdir(parents=True)
        for name in ("head", "worker"):
            (root / "units" / f"ray-{name}.service").write_text("[Service]\nUser=ingot\n")
            (self.login / "ingot-ray" / f"{name}.env").write_text(ENV)
        (self.login / "ingot-ray/token").write_text(TOKEN + "\n")
        (self.login / "ingot-ray/user.env").write_text(FURTHER)
        (self.login / "ray_bootstrap_key.pem").write_text("the key")
        self.config = self.login / "ray_bootstrap_config.yaml"
        self.configure({"~/ingot-ray": "~/ingot-ray"})
        self.commands: list[list[str]] = []
        self.journal = ""
        self.fails = False
        self.owned: set[Path] = set()
        me = pwd.getpwuid(0)
        account = pwd.struct_passwd((*me[:5], str(self.service), me.pw_shell))
        monkeypatch.setattr(program, "ETC", self.etc)
        monkeypatch.setattr(program, "UNITS", root / "units")
        monkeypatch.setattr(program, "own_address", lambda: "10.0.0.7")
        monkeypatch.setattr(program.pwd, "getpwnam", {"ingot": account}.__getitem__)
        monkeypatch.setattr(program.os, "chown", lambda path, *_: self.owned.add(Path(path)))
        monkeypatch.setattr(program.subprocess, "run", self.run)

    def configure(self, mounts: dict[str, str]) -> None:
        auth = {"ssh_user": "admin", "ssh_private_key": "~/ray_bootstrap_key.pem"}
        self.config.write_text(json.dumps({"auth": auth, "file_mounts": mounts}))

    def run(self, command: list[str], **_: Any) -> SimpleNamespace:
        self.commands.append(command)
        failed = self.fails and command[1] == "restart"
        return SimpleNamespace(returncode=int(failed), stdout=self.journal)

    def start(self, *arguments: str) -> int:
        common = ("--files", str(self.login / "ingot-ray"))
        return int(self.program.main(["start", *arguments, *common]))

    def head(self) -> int:
        given = ("--instance", "i-1", "--type", "head")
        return self.start("--head", "--autoscaling-config", str(self.config), *given)

    def settings(self) -> dict[str, str]:
        lines = (self.etc / "ray-up.env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, load(SOURCE), monkeypatch)


def test_a_head_gets_its_addresses_its_autoscaler_and_the_key_of_its_workers(node: Node) -> None:
    assert node.head() == 0
    assert node.settings() == {
        "RAY_HEAD": "10.0.0.7:6379",
        "RAY_NODE_ADDRESS": "10.0.0.7",
        "RAY_START_OPTIONS": f"--autoscaling-config={node.service}/ray_bootstrap_config.yaml",
        "AWS_SDK_UA_APP_ID": "ingot-ray-head",
        "RAY_CLOUD_INSTANCE_ID": "i-1",
        "RAY_NODE_TYPE_NAME": "head",
        "RAY_enable_autoscaler_v2": "1",
    }
    assert (node.etc / "ray.env").read_text() == ENV
    for path in ("ray_bootstrap_config.yaml", "ray_bootstrap_key.pem", "ingot-ray/token"):
        assert (node.service / path).read_bytes() == (node.login / path).read_bytes()
        assert node.service / path in node.owned
    assert (node.service / "ray_bootstrap_key.pem").stat().st_mode & 0o777 == 0o600
    assert node.service not in node.owned, "the home itself is not ours to give away"
    assert node.commands[0][:2] == ["systemctl", "enable"]
    assert node.commands[-1] == ["systemctl", "restart", "ray-head.service"]


@pytest.mark.parametrize("role", ["head", "worker"])
def test_every_file_without_which_the_unit_does_not_start_is_written(node: Node, role: str) -> None:
    assert (node.head() if role == "head" else node.start("--address", "10.0.0.1")) == 0
    required = re.findall("(?m)^EnvironmentFile=(?!-)(.*)$", (ROLE / "templates/ray.service.j2").read_text())
    variables = yaml.safe_load((ROLE / "vars/main.yml").read_text())
    files = [Path(variables.get(name.strip("{ }"), name)) for name in required]
    assert len(files) >= 2
    for file in files:
        assert (node.etc / file.relative_to("/etc/ingot")).is_file(), file
    further = node.etc / "ray-user.env"
    assert (further.read_text(), further.stat().st_mode & 0o777) == (FURTHER, 0o600)


def test_a_worker_gets_the_heads_address_and_nothing_of_the_launcher(node: Node) -> None:
    assert node.start("--address", "10.0.0.1", "--instance", "i-2", "--type", "worker") == 0
    assert node.settings() == {
        "RAY_HEAD": "10.0.0.1:6379",
        "RAY_NODE_ADDRESS": "10.0.0.7",
        "RAY_CLOUD_INSTANCE_ID": "i-2",
        "RAY_NODE_TYPE_NAME": "worker",
    }
    assert list(node.service.iterdir()) == []
    assert node.commands[-1] == ["systemctl", "restart", "ray-worker.service"]


def test_the_older_autoscaler_knows_its_nodes_by_address(node: Node) -> None:
    assert node.start("--head", "--autoscaling-config", str(node.config), "--instance", "", "--type", "") == 0
    assert not {"RAY_CLOUD_INSTANCE_ID", "RAY_enable_autoscaler_v2"} & node.settings().keys()


def test_the_token_is_roots_alone_and_in_no_settings(node: Node) -> None:
    node.head()
    token = node.etc / "credentials/ray-token"
    assert (token.read_text(), token.stat().st_mode & 0o777) == (TOKEN, 0o600)
    for name in ("ray.env", "ray-up.env"):
        assert TOKEN not in (node.etc / name).read_text()


def test_a_second_start_replaces_what_the_first_wrote(node: Node) -> None:
    node.head()
    (node.login / "ingot-ray/token").write_text("u" * 48)
    assert node.head() == 0
    assert (node.etc / "credentials/ray-token").read_text() == "u" * 48
    assert not list(node.etc.rglob("*.partial"))


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("admin/ingot-ray/token", "token cannot be read (No such file or directory)"),
        ("admin/ingot-ray/head.env", "head.env cannot be read"),
        ("admin/ray_bootstrap_key.pem", "ray_bootstrap_key.pem cannot be read"),
        ("units/ray-head.service", "this node has no unit ray-head.service of Ingot"),
    ],
)
def test_what_is_not_there_is_named(
    node: Node, missing: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (node.etc.parent / missing).unlink()
    with pytest.raises(SystemExit) as ended:
        node.head()
    assert ended.value.code == 78
    said = capsys.readouterr().err
    assert said.startswith("ingot: refused: ")
    assert words in said
    assert node.commands == []


def test_a_configuration_that_ray_did_not_write_is_refused(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    node.config.write_text("auth: {}\n")
    with pytest.raises(SystemExit):
        node.head()
    assert "ray_bootstrap_config.yaml is not what `ray up` writes" in capsys.readouterr().err


def test_a_worker_without_a_head_is_refused(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        node.start("--address", "")
    assert "the launcher gives RAY_HEAD_IP to workers only" in capsys.readouterr().err


def test_a_unit_that_does_not_start_says_its_own_reason(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    node.fails = True
    node.journal = "noise\ningot: refused: another lock. Do: launch from one image\nmore noise\n"
    assert node.start("--address", "10.0.0.1") == 1
    assert capsys.readouterr().err == (
        "ray-worker.service does not start:\ningot: refused: another lock. Do: launch from one image\n"
    )


def test_only_root_may_start_units(tmp_path: Path) -> None:
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--clear-groups", "/usr/bin/python3", "-I", "-", "start", "--head"],
        input=SOURCE.read_text(),
        capture_output=True,
        text=True,
        cwd="/",
        check=False,
    )
    assert done.returncode == 78
    assert "only root may start Ray's units" in done.stderr
