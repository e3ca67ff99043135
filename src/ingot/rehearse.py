"""``ingot rehearse``: from nothing to an answer, on this machine, with the commands that a user of AWS types.

Everything that touches the cluster is one of those commands, put into the local region. A second run skips
what is there: the region, the mirror, the image (while its inputs are the same), the instances.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
import yaml

from ingot import iam, image_inputs, instance_types, report
from ingot import images as images_table
from ingot.certificates import Endpoint
from ingot.checkout import ROOT
from ingot.preflight import refusal as told
from ingot.rehearsal import cli as local
from ingot.rehearsal import mirror_content
from ingot.rehearsal.capacity import host_memory
from ingot.rehearsal.config import Settings
from ingot.rehearsal.control import Control, settings_of_running
from ingot.rehearsal.places import GIB
from ingot.rehearsal.waiting import wait_for
from ingot.rehearse_target import INVENTORY, TARGETS, RehearsalError, Target, inventory
from ingot.verify import canary as canaries

BIN = Path(sys.executable).parent
EXAMPLE_SECONDS = 300


EXPECTED = (RehearsalError, *local.EXPECTED)
STAYS_UP = (
    "The region stays up: mend it and run this again, or look around with `ingot local status` and"
    " `ingot local shell`."
)


@dataclass(frozen=True)
class Cluster:
    """What the rehearsal's inventory calls the cluster, and where its API key is."""

    name: str
    model: str
    gateway_port: int

    @classmethod
    def of_inventory(cls, target: Target | None = None) -> Cluster:
        variables = target.inventory() if target else inventory()
        name = os.environ.get("INGOT_CLUSTER") or "ingot"
        return cls(name, variables["serving_model_id"], variables["gateway_port"])

    @property
    def key_file(self) -> Path:
        return Path.home() / ".config/ingot/rehearsal" / self.name / "api-key"

    @property
    def head(self) -> str:
        """The head's Name tag."""
        return f"{self.name}-head"


@dataclass
class Phases:
    """Times by phase, in the order in which they ran."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        typer.secho(f"\n=== {name}", bold=True)
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = round(time.monotonic() - started, 1)
            typer.echo(f"=== {name}: {self.seconds[name]:.1f} s")

    def table(self) -> list[str]:
        rows = [*self.seconds.items(), ("all", sum(self.seconds.values()))]
        return report.table(("phase", "seconds"), [(name, f"{seconds:7.1f}") for name, seconds in rows])


class Rehearsal:
    """One run, in one region."""

    def __init__(self, settings: Settings, target: Target = TARGETS["x86"]) -> None:
        self.control = Control(settings, _step)
        self.target = target
        self.image = images_table.load().images[target.image]
        self.cluster = Cluster.of_inventory(target)
        self.phases = Phases()

    def go(self) -> list[str]:
        """All of it; returns what to show at the end."""
        before = self.prepare()
        with self.phases.phase("examples, IAM policies"):
            check_policies(iam.since(before, self.calls()))
            return self.show()

    def prepare(self) -> dict[str, list[str]]:
        """A cluster that answers; returns the calls that the region had had before."""
        self.bring_up()
        before = self.calls()
        with self.phases.phase("image"):
            self.bake()
        with self.phases.phase("launch"):
            self.playbook("playbooks/launch.yml", **self.target.variables | self.target.extra)
        with self.phases.phase("configure and ask"):
            self.playbook("site.yml", **self.target.extra)
        return before

    def bring_up(self) -> None:
        """The region, with what the image is made of."""
        if refusal := no_room(self.control.settings, host_memory(), self.target):
            raise RehearsalError(refusal)
        architecture = self.image.architecture
        with self.phases.phase("local region"):
            self.control.up()
            self.control.make_ready(architecture)
        with self.phases.phase("mirror"):
            mirror_content.ensure(self.control.settings, typer.echo, arm64=architecture == "arm64")

    def run(self, *command: str) -> None:
        """Run a command in the region, its output passing through.

        Raises:
            RehearsalError: it failed.
        """
        typer.echo(f"$ {shlex.join(command)}")
        environment = {**os.environ, **self.control.environment()}
        status = subprocess.run(
            self.control.command(command), cwd=ROOT, env=environment, check=False
        ).returncode
        if status != 0:
            raise RehearsalError(f"`{shlex.join(command)}` failed (status {status})")

    def ask(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the region for what it says."""
        return subprocess.run(
            self.control.command(command),
            cwd=ROOT,
            env={**os.environ, **self.control.environment(), **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    def playbook(self, path: str, **variables: Any) -> None:
        self.run("ansible-playbook", "-i", str(INVENTORY.relative_to(ROOT)), path, *extra_vars(variables))

    def bake(self) -> None:
        """``packer build``, unless an image of the same inputs is there."""
        canary = self.canary()
        inputs = image_inputs.digest(ROOT, INVENTORY, self.target.baked | canary)
        filters = [
            {"Name": f"tag:{image_inputs.TAG}", "Values": [inputs]},
            {"Name": "tag:ingot:image", "Values": [self.target.image]},
        ]
        images = self.control.ec2.describe_images(Owners=["self"], Filters=filters)["Images"]
        self.end_cluster_of_other_images({image["ImageId"] for image in images})
        if images:
            typer.echo(f"{images[0]['ImageId']} was made of the same inputs ({inputs}): nothing to bake")
            return
        versions = yaml.safe_load((ROOT / "files/versions.yml").read_text(encoding="utf-8"))
        said = self.ask("packer", "version")
        found = (said.stdout or said.stderr).partition("\n")[0]
        if refusals := images_table.check_packer(found, versions["packer_minimum"]):
            raise RehearsalError(told.report(refusals))
        name, template = self.target.image, self.target.template
        _, refusals = images_table.base_refusals(name, images_table.load(), self.control.ec2.describe_images)
        if refusals:
            raise RehearsalError(told.report(refusals))
        self.run("packer", "init", template)
        settings = {"extra_tags": json.dumps({image_inputs.TAG: inputs}), "commit": commit_of(ROOT), **canary}
        if self.target.baked:
            settings["playbook_extra_vars"] = json.dumps(self.target.baked)
        options = [part for name, value in settings.items() for part in ("-var", f"{name}={value}")]
        self.run("packer", "build", *options, template)

    def canary(self) -> dict[str, str]:
        """Packer's variables where INGOT_CANARY_FILE names a canary: the builder's user-data has one, too."""
        if not (file := os.environ.get("INGOT_CANARY_FILE")):
            return {}
        path = Path(file).absolute().with_suffix(".user-data")
        secrets = json.loads(Path(file).read_text(encoding="utf-8"))
        path.write_text(canaries.user_data(secrets), encoding="utf-8")
        path.chmod(0o600)
        return {"user_data_file": str(path)}

    def end_cluster_of_other_images(self, images: set[str]) -> None:
        """A cluster of an older image is in the way of the builder's memory, and of the new image."""
        filters = [
            {"Name": "tag:ingot:cluster", "Values": [self.cluster.name]},
            {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]},
        ]
        answer = self.control.ec2.describe_instances(Filters=filters)
        standing = {node["ImageId"] for group in answer["Reservations"] for node in group["Instances"]}
        if standing - images:
            typer.echo(f"The cluster {self.cluster.name} is of another image ({', '.join(standing)})")
            self.playbook("playbooks/destroy.yml", destroy_confirm=self.cluster.name)

    def calls(self) -> dict[str, list[str]]:
        """What the region's API was asked for until now, by caller."""
        file = self.control.settings.state / "calls.json"
        return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}

    def show(self) -> list[str]:
        """Run the examples that the person gets, and return what to print."""
        cluster, gateway, port = self.cluster, self.gateway(), self._forward()
        url = gateway.url if gateway.certificate_file else f"http://127.0.0.1:{port}"
        lines = [f"The cluster answers at {url} (model {cluster.model}, key in {cluster.key_file})."]
        if gateway.certificate_file:
            lines.append(f"On this machine 127.0.0.1:{port} leads to it, wherever its name leads.")
        for name, command in examples(gateway, port, cluster.model, cluster.key_file).items():
            limited = ["timeout", str(EXAMPLE_SECONDS), "bash", "-c", command]
            done = subprocess.run(limited, capture_output=True, text=True, check=False)
            if done.returncode != 0 or report.ANSWER not in done.stdout:
                raise RehearsalError(
                    f"the {name} example did not answer: {done.stdout}{done.stderr}\n{command}"
                )
            lines += ["", f"With {name}:", "", command, "", f"-> {done.stdout.strip()}"]
        region = self.control.settings.name
        ingot = str(BIN / "ingot") if region == "default" else f"INGOT_LOCAL_NAME={region} {BIN / 'ingot'}"
        return [*lines, "", f"Look around: {ingot} local status", f"End it:      {ingot} local down"]

    def gateway(self) -> Endpoint:
        """Where clients find it, by the same words as site.yml's.

        Raises:
            RehearsalError: the inventory has no head, or a certificate that cannot be read any more.
        """
        asked = json.dumps({"msg": "{{ hostvars[inventory_hostname] | ingot_endpoint }}"})
        command = ["ansible", "-i", str(INVENTORY), "ray_head", "-m", "ansible.builtin.debug", "-a", asked]
        command += extra_vars(self.target.extra)
        done = self.ask(*command, ANSIBLE_CALLBACK_RESULT_FORMAT="json", ANSIBLE_NOCOLOR="1")
        try:
            return Endpoint(**json.loads(done.stdout.partition("=>")[2])["msg"])
        except (ValueError, LookupError, TypeError) as error:
            raise RehearsalError(
                f"`{shlex.join(command)}` did not say where the gateway is: {done.stdout}{done.stderr}"
            ) from error

    def _forward(self) -> int:
        """A port of 127.0.0.1 that leads to the gateway until `down`: one that does already, or a new one."""
        filters = [
            {"Name": "tag:Name", "Values": [self.cluster.head]},
            {"Name": "instance-state-name", "Values": ["running"]},
        ]
        answer = self.control.ec2.describe_instances(Filters=filters)
        address = answer["Reservations"][0]["Instances"][0]["PrivateIpAddress"]
        wanted = self.cluster.gateway_port
        for there, target in local.forwards(self.control):
            if target == f"{address}:{wanted}":
                return int(there)
        port = next(port for port in range(wanted, wanted + 100) if _free(port))
        command = [str(BIN / "ingot"), "local", "ports", "--open", f"{port}:{self.cluster.head}:{wanted}"]
        process = subprocess.Popen(
            command,
            env={**os.environ, "INGOT_LOCAL_NAME": self.control.settings.name},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        wait_for(lambda: not _free(port) or process.poll() is not None, 30)
        if process.poll() is not None:
            raise RehearsalError(f"`{shlex.join(command)}` ended with status {process.returncode}")
        return port


def extra_vars(variables: Mapping[str, Any]) -> tuple[str, ...]:
    """Options of Ansible's commands that set variables."""
    return ("-e", json.dumps(dict(variables))) if variables else ()


def check_policies(calls: dict[str, list[str]]) -> None:
    """Hold the IAM policies against the calls that were made.

    Raises:
        RehearsalError: a call that no policy allows.
    """
    if complaints := iam.complaints(calls):
        raise RehearsalError("files/iam does not allow what was called:\n  " + "\n  ".join(complaints))
    typer.echo("files/iam allows every call that Packer and the playbooks made")


def commit_of(root: Path) -> str:
    """The commit of a checkout, with ``-dirty`` where that is not all of it; empty where it is no clone."""
    if not (root / ".git").exists():  # inside somebody's repository, git would tell of that
        return ""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def no_room(settings: Settings, host_bytes: int, target: Target = TARGETS["x86"]) -> str:
    """Why the cluster does not fit this host's memory; empty where it does."""
    variables = target.inventory()
    kind, count = variables["launch_instance_type"], 1 + variables["launch_workers"]
    node = instance_types.get(kind).memory_bytes * settings.memory_scale / GIB
    room = (host_bytes - settings.host_reserve_bytes) / GIB
    if count * node <= room:
        return ""
    return (
        f"not enough memory: {count} nodes {kind} take {count * node:.1f} GiB here"
        f" ({settings.memory_scale:.0%} of their type's), and this host has {room:.1f} GiB for machines."
        """ Use a host with 24 GiB, or fewer machines: --extra-vars '{"launch_workers": 1}',"""
        " or launch_workers in inventories/rehearsal/group_vars/all.yml"
    )


def examples(gateway: Endpoint, port: int, model: str, key_file: Path) -> dict[str, str]:
    """Commands for a shell on this machine, by what they use. They are run before they are printed.

    ``port`` of 127.0.0.1 leads to the gateway. One with a certificate is asked by its name, and must show it.
    """
    request = report.question(model)
    arguments = ", ".join(f"{name}={value!r}" for name, value in request.items())
    key = shlex.quote(str(key_file))
    here, options, trust, client = f"http://127.0.0.1:{port}", "", "", ""
    url = here
    if gateway.certificate_file:
        url, there = gateway.url, urlsplit(gateway.url)
        here = f"https://127.0.0.1:{port}"
        options = f" --cacert {shlex.quote(gateway.certificate_file)}"
        options += f" --connect-to {shlex.quote(there.netloc)}:127.0.0.1:{port}"
        trust = f"""import ssl
from openai import DefaultHttpxClient
trust = ssl.create_default_context(cafile={gateway.certificate_file!r})
trust.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
def by_name(request):
    request.extensions["sni_hostname"] = {there.hostname!r}
"""
        client = ', http_client=DefaultHttpxClient(verify=trust, event_hooks={"request": [by_name]})'
    return {
        "curl": (
            f'curl -s{options} {url}/v1/chat/completions -H "Authorization: Bearer $(cat {key})"'
            f" -H 'Content-Type: application/json' -d {shlex.quote(json.dumps(request))}"
        ),
        "openai": f"""{BIN / "python"} - <<'EOF'
from pathlib import Path
from openai import OpenAI
{trust}client = OpenAI(base_url="{here}/v1", api_key=Path("{key_file}").read_text().strip(){client})
answer = client.chat.completions.create({arguments})
print(answer.choices[0].message.content)
EOF""",
    }


def rehearse(
    image: Annotated[
        str,
        typer.Option(help="Another row of packer/images.yml; those for Graviton are emulated, on one node."),
    ] = "x86",
    extra_vars: Annotated[
        str,
        typer.Option(
            "--extra-vars",
            "-e",
            metavar="JSON",
            help="Variables that outrank the inventory, in bake, launch and site.yml:"
            """ '{"launch_workers": 0, "serving_mode": "vllm"}'.""",
        ),
    ] = "{}",
) -> None:
    """Bake an image, launch three machines of it, make them a cluster and ask it: all on this machine."""
    rehearsal: Rehearsal | None = None
    if image not in TARGETS:
        raise typer.BadParameter(f"{image} cannot be rehearsed; these can: {', '.join(TARGETS)}")
    try:
        target = TARGETS[image].with_extra(_object(extra_vars))
        rehearsal = Rehearsal(settings_of_running(Settings.from_environment()), target)
        shown = rehearsal.go()
    except EXPECTED as error:
        typer.secho(f"\nrehearse: {local.failure(error)}", fg="red", err=True)
        if rehearsal and rehearsal.control.is_up():
            typer.secho(STAYS_UP, err=True)
        raise typer.Exit(1) from error
    finally:
        if rehearsal and rehearsal.control.settings.state.is_dir():
            seconds = rehearsal.phases.seconds
            (rehearsal.control.settings.state / "rehearse.json").write_text(
                json.dumps(seconds, indent=2) + "\n"
            )
            typer.echo("\n" + "\n".join(rehearsal.phases.table()))
    typer.echo("\n" + "\n".join(shown))


def _object(text: str) -> dict[str, Any]:
    """The JSON object that an option holds."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise RehearsalError(f"--extra-vars is no JSON ({error}): {text}") from error
    if not isinstance(value, dict):
        raise RehearsalError(
            f"""--extra-vars must be a JSON object, such as {{"launch_workers": 0}}: {text}"""
        )
    return value


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@contextmanager
def _step(what: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    typer.echo(f"{what}: {time.monotonic() - started:.1f} s")
