"""Role image_hygiene: what a user of an image relies on, on the builder and on a clone."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from testinfra.host import Host

TOOL = "/usr/lib/ingot/hygiene.py"
SEAL = "ingot-image-seal.service"


@pytest.fixture
def planted(host: Host) -> Iterator[str]:
    """A private key where no rule expects one, as an agent's installer might leave it."""
    path = "/etc/ssl/private/agent.pem"
    host.check_output("mkdir -p /etc/ssl/private")
    # Put together there, so that this file is not taken for what it plants.
    host.check_output("printf -- '-----BEGIN %%s KEY-----' PRIVATE > %s", path)
    yield path
    host.check_output("rm %s", path)


@pytest.mark.install
@pytest.mark.parametrize(
    "path",
    [
        "/root/.bash_history",
        "/home/admin/.python_history",
        "/root/.aws",
        "/root/.cache",
        "/home/admin/.ssh/known_hosts",
        "/etc/ingot/ray.env",
        "/etc/ingot/credentials/api-key",
        "/var/lib/systemd/coredump/core.python3.1000",
    ],
)
def test_what_the_bake_left_is_gone(host: Host, path: str) -> None:
    assert not host.file(path).exists


@pytest.mark.install
def test_the_builder_can_still_be_reached(host: Host) -> None:
    """Packer's own connection lives until the machine is off: its key must not be cleaned away before."""
    assert host.file("/home/admin/.ssh/authorized_keys").size > 0
    assert host.run("ls /etc/ssh/ssh_host_ed25519_key").rc == 0


@pytest.mark.install
def test_a_secret_stops_the_bake_and_is_not_repeated(host: Host, planted: str) -> None:
    verdict = host.run(f"{TOOL} verify --mode bake")
    assert verdict.rc == 1
    assert f"unknown-private-key: {planted}" in verdict.stdout
    assert "PRIVATE KEY" not in verdict.stdout


@pytest.mark.install
def test_the_identity_goes_when_the_builder_powers_off_and_not_when_it_reboots(host: Host) -> None:
    for target, armed in (("poweroff.target", True), ("halt.target", True), ("reboot.target", False)):
        assert host.file(f"/etc/systemd/system/{target}.wants/{SEAL}").exists is armed
    assert host.service(SEAL).is_enabled
    assert not host.service(SEAL).is_running


@pytest.mark.install
def test_the_manifest_says_what_the_image_is(host: Host) -> None:
    manifest = json.loads(host.file("/usr/share/ingot/image.json").content_string)
    assert manifest["image"] == "x86"
    assert manifest["created"].endswith("Z")
    assert manifest["os"].startswith("Debian GNU/Linux 13")
    assert manifest["packages"] > 100
    assert manifest["free_bytes"] > 0


@pytest.mark.hygiene
def test_a_clone_has_nothing_of_the_builder(host: Host) -> None:
    verdict = host.run(f"{TOOL} verify --mode live")
    assert verdict.rc == 0, verdict.stdout + verdict.stderr
