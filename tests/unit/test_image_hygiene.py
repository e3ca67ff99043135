"""The image's cleaner and verifier: each kind of leftover is planted, found by name, and removed."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from program import load

FILES = Path(__file__).resolve().parents[2] / "roles/image_hygiene/files"
RULES: list[dict[str, Any]] = yaml.safe_load((FILES / "hygiene.yml").read_text())["rules"]

# Put together here, so that this file is not taken for what it plants.
PRIVATE_KEY = "-----BEGIN OPENSSH {} KEY-----\nb3BlbnNzaC1\n".format("PRIVATE")
AWS_KEY = "AKIA" + "Q3EGTRWQ7LZX2MVB"
HF_TOKEN = "hf_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7"

#: For each rule, one file (or more) that it must find: path and content.
PLANTED: dict[str, dict[str, str]] = {
    "shell-history": {"/root/.bash_history": "export TOKEN=1\n", "/home/admin/.python_history": "x\n"},
    "ssh-private-key": {"/root/.ssh/id_ed25519": PRIVATE_KEY},
    "dkms-signing-key": {"/var/lib/dkms/mok.key": PRIVATE_KEY},
    "ssh-known-hosts": {"/home/admin/.ssh/known_hosts": "10.0.0.7 ssh-ed25519 AAAA\n"},
    "cloud-credentials": {"/home/admin/.aws/credentials": "[default]\n"},
    "tool-credentials": {
        "/root/.netrc": "machine pypi.example.com\n",
        "/root/.docker/config.json": "{}",
        "/root/.config/containers/auth.json": "{}",
        "/etc/apt/auth.conf.d/mirror.conf": "machine apt.example.com login bot\n",
    },
    "ingot-environment": {
        "/etc/ingot/ray.env": "RAY=10.0.0.7\n",
        "/etc/ingot/credentials/api-key": "k",
        "/var/lib/containers/storage/secrets/secrets.json": "{}",
    },
    "unknown-private-key": {"/srv/tls/server.key": PRIVATE_KEY, "/opt/agent/deep/er/agent.pem": PRIVATE_KEY},
    "token": {"/etc/profile.d/aws.sh": f"export K={AWS_KEY}\n", "/usr/local/etc/hub": HF_TOKEN},
    "engine-cache-key": {"/var/cache/ingot/vllm/cache_key_factors.json": '{"VLLM_API_KEY": "s3"}'},
    "url-credentials": {"/etc/pip.conf": "index-url = https://bot:pass@pypi.example.com/simple\n"},
    "builder-home": {"/root/.ansible/tmp/x": "", "/home/admin/.cache/pip/y": ""},
    "package-cache": {"/var/cache/apt/archives/vim.deb": "", "/var/lib/apt/lists/deb_Packages": "x"},
    "package-index": {"/var/cache/apt/pkgcache.bin": "x"},
    "python-cache": {"/var/cache/uv/torch.whl": "", "/var/lib/ingot/.cache/pip/z": ""},
    "core-dump": {"/var/lib/systemd/coredump/core.ray.1": "x", "/core.12": "x"},
    "ray-session": {"/tmp/ray/session_latest/logs/raylet.out": "x", "/var/lib/ingot/ray/session_1/x": ""},
    "machine-id": {"/etc/machine-id": "0123456789abcdef0123456789abcdef\n"},
    "dbus-machine-id": {"/var/lib/dbus/machine-id": "0123456789abcdef0123456789abcdef\n"},
    "ssh-host-key": {"/etc/ssh/ssh_host_ed25519_key": PRIVATE_KEY, "/etc/ssh/ssh_host_rsa_key.pub": "x"},
    "authorized-keys": {"/home/admin/.ssh/authorized_keys": "ssh-ed25519 AAAA me\n"},
    "cloud-init": {"/var/lib/cloud/instances/i-1/user-data.txt": "x", "/var/log/cloud-init-output.log": "x"},
    "hostname": {"/etc/hostname": "ip-172-31-0-7\n"},
    "hosts": {"/etc/hosts": "127.0.0.1 localhost\n172.31.0.7 ip-172-31-0-7.ec2.internal\n"},
    "resolver": {"/etc/resolv.conf": "search corp.example.com\nnameserver 10.0.0.2\n"},
    "network-configuration": {"/etc/netplan/50-cloud-init.yaml": "network: {}\n"},
    "dhcp-lease": {"/var/lib/dhcpcd/ens5.lease": "x"},
    "random-seed": {"/var/lib/systemd/random-seed": "x"},
    "credential-secret": {"/var/lib/systemd/credential.secret": "x"},
    "agent-identity": {"/var/lib/amazon/ssm/Vault/Store/RegistrationKey": "x"},
    "journal": {"/var/log/journal/0123/system.journal": "x"},
    "rotated-log": {"/var/log/apt/history.log.1.gz": "x", "/var/log/dpkg.log.1": "x"},
    "log": {"/var/log/dpkg.log": "x", "/var/log/apt/history.log": "x"},
    "temporary-files": {"/var/tmp/build/x": "", "/tmp/.hidden": ""},
    "not-sealed": {"/etc/systemd/system/ingot-image-seal.service": "[Unit]\n"},
}

#: What an image has and must keep.
KEPT = {
    "/etc/hosts": "127.0.0.1 localhost\n",
    "/etc/resolv.conf": "nameserver 169.254.169.253\n",
    "/etc/hostname": "localhost\n",
    "/etc/machine-id": "",
    "/etc/pip.conf": "index-url = https://pypi.example.com/simple\n",
    "/var/log/dpkg.log": "",
    "/root/.bashrc": "alias ll='ls -l'\n",
    "/opt/ingot/venvs/vllm/lib/python3.13/site-packages/tornado/test/test.key": PRIVATE_KEY,
    "/etc/profile.d/docs.sh": "# such as AKIAIOSFODNN7EXAMPLE\n",
}


hygiene = load(FILES / "hygiene.py")
image_manifest = load(FILES / "image_manifest.py")


def _write(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    tree = tmp_path / "root"
    _write(tree, KEPT)
    return tree


@pytest.fixture
def rules() -> list[Any]:
    return [hygiene.parse_rule(raw) for raw in RULES]


def _found(rules: list[Any], root: Path, mode: str = "tree") -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for finding in hygiene.verify(rules, hygiene.Tree(root), mode).findings:
        found.setdefault(finding.rule, set()).add(finding.path)
    return found


def test_every_rule_has_a_planted_defect() -> None:
    assert set(PLANTED) == {rule["id"] for rule in RULES}


def test_a_clean_tree_is_clean(rules: list[Any], root: Path) -> None:
    assert _found(rules, root) == {}


@pytest.mark.planted("leftovers", check=str, defect=lambda name: ", ".join(PLANTED[name]))
@pytest.mark.parametrize("name", PLANTED)
def test_the_verifier_names_what_is_planted(rules: list[Any], root: Path, name: str) -> None:
    _write(root, PLANTED[name])
    found = _found(rules, root)
    assert name in found
    for path in PLANTED[name]:
        assert any(path == at or path.startswith(f"{at}/") for at in found[name]), path


def test_the_layers_of_a_container_are_what_their_digest_says(rules: list[Any], root: Path) -> None:
    """Python packages come with keys for their tests, and an image is taken whole or not at all."""
    layer = "/var/lib/containers/storage/overlay/0a1b/diff/usr/lib/python3/test/keys"
    _write(root, {f"{layer}/server.key": PRIVATE_KEY, f"{layer}/hub": HF_TOKEN})
    assert _found(rules, root) == {}


@pytest.mark.parametrize("name", PLANTED)
def test_the_cleaner_removes_what_the_verifier_names(rules: list[Any], root: Path, name: str) -> None:
    rule = next(rule for rule in rules if rule.id == name)
    _write(root, PLANTED[name])
    report = hygiene.clean(rules, hygiene.Tree(root), rule.stage, dry_run=False)
    assert not report.findings
    if rule.fix == "refuse":
        assert name in _found(rules, root), "a refusal stays until somebody decides"
        return
    assert name in {finding.rule for finding in report.fixed}
    assert name not in _found(rules, root)


def test_all_at_once_leaves_what_is_to_be_kept_and_a_second_time_does_nothing(
    rules: list[Any], root: Path
) -> None:
    refusals = {rule.id for rule in rules if rule.fix == "refuse"}
    for name, files in PLANTED.items():
        if name not in refusals:
            _write(root, files)
    tree = hygiene.Tree(root)
    for stage in hygiene.STAGES:
        assert not hygiene.clean(rules, tree, stage, dry_run=False).findings
        assert not hygiene.clean(rules, tree, stage, dry_run=False).fixed
    assert _found(rules, root) == {}
    assert (root / "etc/machine-id").read_bytes() == b""
    assert (root / "etc/hosts").read_text() == "127.0.0.1 localhost\n"
    assert (root / "root/.bashrc").exists()
    assert (root / "var/log/dpkg.log").exists(), "not every program makes its own log file"


def test_a_dry_run_says_the_same_and_changes_nothing(rules: list[Any], root: Path) -> None:
    _write(root, PLANTED["shell-history"] | PLANTED["ray-session"])
    tree = hygiene.Tree(root)
    said = hygiene.clean(rules, tree, "now", dry_run=True).fixed
    assert (root / "root/.bash_history").exists()
    assert hygiene.clean(rules, tree, "now", dry_run=False).fixed == said


def test_a_missing_machine_id_is_found_and_made(rules: list[Any], root: Path) -> None:
    """With the file missing, systemd takes the boot for the very first and applies its presets."""
    (root / "etc/machine-id").unlink()
    assert _found(rules, root) == {"machine-id": {"/etc/machine-id"}}
    hygiene.clean(rules, hygiene.Tree(root), "poweroff", dry_run=False)
    assert (root / "etc/machine-id").stat().st_size == 0
    assert _found(rules, root) == {}


def test_links_are_not_followed_out_of_the_tree(rules: list[Any], root: Path, tmp_path: Path) -> None:
    """An absolute link in a mounted image points to the machine that looks at it."""
    outside = tmp_path / "outside"
    _write(outside, {"/.aws/credentials": "mine", "/resolv.conf": "nameserver 10.0.0.2\n"})
    (root / "home").mkdir()
    (root / "home/admin").symlink_to(outside)
    (root / "etc/resolv.conf").unlink()
    (root / "etc/resolv.conf").symlink_to(outside / "resolv.conf")
    (root / "var/tmp").mkdir()
    (root / "var/tmp/link").symlink_to(outside)
    for stage in hygiene.STAGES:
        hygiene.clean(rules, hygiene.Tree(root), stage, dry_run=False)
    assert (outside / ".aws/credentials").read_text() == "mine"
    assert (outside / "resolv.conf").read_text() == "nameserver 10.0.0.2\n"
    assert not os.path.lexists(root / "var/tmp/link")


def test_secrets_are_masked(rules: list[Any], root: Path) -> None:
    _write(root, PLANTED["token"])
    report = hygiene.verify(rules, hygiene.Tree(root), "tree")
    text = json.dumps([finding.what for finding in report.findings])
    assert AWS_KEY not in text and HF_TOKEN not in text
    assert "line 1" in text and "AKIAQ3" in text


def test_what_the_builder_still_needs_is_no_matter_of_the_bake(rules: list[Any], root: Path) -> None:
    _write(root, PLANTED["authorized-keys"] | PLANTED["ssh-host-key"] | PLANTED["machine-id"])
    assert _found(rules, root, "bake") == {}


def test_a_clone_may_have_its_own_identity_and_not_the_builders(rules: list[Any], root: Path) -> None:
    _write(root, {"/usr/share/ingot/image.json": json.dumps({"created": "2026-01-31T12:00:00Z"})})
    _write(root, PLANTED["ssh-host-key"] | PLANTED["machine-id"] | PLANTED["random-seed"])
    assert _found(rules, root, "live") == {}
    before = 1700000000
    os.utime(root / "etc/ssh/ssh_host_ed25519_key", (before, before))
    assert _found(rules, root, "live") == {"ssh-host-key": {"/etc/ssh/ssh_host_ed25519_key"}}


def test_a_clone_of_an_unsealed_image_is_told_apart(rules: list[Any], root: Path) -> None:
    _write(root, {"/usr/share/ingot/image.json": json.dumps({"created": "2026-01-31T12:00:00Z"})})
    _write(root, PLANTED["not-sealed"])
    assert set(_found(rules, root, "live")) == {"not-sealed"}


def test_a_clone_without_a_manifest_is_a_finding(rules: list[Any], root: Path) -> None:
    assert set(_found(rules, root, "live")) == {"no-manifest"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fix": "delete"}, "fix delete"),
        ({"stage": "later"}, "stage later"),
        ({"path": []}, "unknown"),
        ({"fix": "refuse"}, "needs content"),
        ({"fix": "refuse", "content": "x", "stage": "poweroff"}, "heard by nobody"),
        ({"content": "("}, "content"),
    ],
)
def test_a_wrong_rule_is_refused_by_name(change: dict[str, Any], said: str) -> None:
    with pytest.raises(hygiene.RuleError, match="rule mine") as refused:
        hygiene.parse_rule({"id": "mine", "why": "x", "paths": ["/x"], "fix": "remove"} | change)
    assert said in str(refused.value)


def test_the_command_line(tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = tmp_path / "hygiene.json"
    rules.write_text(json.dumps({"rules": RULES}))
    _write(root, PLANTED["shell-history"])
    common = ["--root", str(root), "--rules", str(rules)]
    assert hygiene.main(["verify", "--mode", "tree", *common]) == 1
    assert "shell-history: /root/.bash_history" in capsys.readouterr().out
    assert hygiene.main(["clean", "--stage", "now", "--json", *common]) == 0
    assert len(json.loads(capsys.readouterr().out)["fixed"]) == 2
    assert hygiene.main(["verify", "--mode", "tree", *common]) == 0
    assert hygiene.main(["verify", "--mode", "tree", "--root", str(root), "--rules", "/nowhere"]) == 2


INPUTS = {
    "image": "x86",
    "name": "ingot-x86-1",
    "commit": "abc",
    "created": "2026-01-31T12:00:00Z",
    "base": {"id": "ami-1", "name": "debian"},
    "roles": ["base"],
}


@pytest.fixture
def baked(root: Path) -> Path:
    _write(
        root,
        {
            "/etc/os-release": 'PRETTY_NAME="Debian GNU/Linux 13 (trixie)"\n',
            "/var/lib/dpkg/status": "Package: adduser\nStatus: install ok installed\nVersion: 3.1\n\n"
            "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n",
            "/lib/modules/6.12.1-cloud-amd64/modules.dep": "",
            "/usr/share/ingot/facts.d/kernel.json": '{"floor": "5.10"}',
        },
    )
    return root


def test_the_manifest_reads_the_image(baked: Path) -> None:
    manifest = image_manifest.gather(INPUTS, baked)
    assert manifest["image"] == "x86" and manifest["base"]["id"] == "ami-1"
    assert manifest["os"] == "Debian GNU/Linux 13 (trixie)"
    assert manifest["kernels"] == ["6.12.1-cloud-amd64"]
    assert manifest["packages"] == 1
    assert manifest["facts"] == {"kernel": {"floor": "5.10"}}


def test_a_second_bake_does_not_touch_the_manifest(baked: Path) -> None:
    path = baked / "usr/share/ingot/image.json"
    manifest = image_manifest.gather(INPUTS, baked)
    assert image_manifest.write(manifest, path, dry_run=False)
    written = path.stat().st_mtime_ns
    time.sleep(0.01)
    assert not image_manifest.write(manifest | {"free_bytes": 1}, path, dry_run=False)
    assert path.stat().st_mtime_ns == written
    assert image_manifest.write(manifest | {"commit": "def"}, path, dry_run=True)
    assert json.loads(path.read_text())["commit"] == "abc", "a dry run writes nothing"


def test_inputs_of_the_manifest_are_checked() -> None:
    with pytest.raises(image_manifest.InputError, match="created"):
        image_manifest.read_inputs('{"image": "x86"}')
    with pytest.raises(image_manifest.InputError, match="no JSON"):
        image_manifest.read_inputs("image=x86")
