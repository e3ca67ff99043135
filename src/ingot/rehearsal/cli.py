"""`ingot local`: the local EC2 from the command line."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, NoReturn, ParamSpec, TypeVar

import typer
from botocore.exceptions import BotoCoreError, ClientError
from rich.console import Console

from ingot import report
from ingot.rehearsal import host
from ingot.rehearsal.api.keys import KeyStore
from ingot.rehearsal.binfmt import BinfmtError
from ingot.rehearsal.cgroups import CgroupError
from ingot.rehearsal.config import Settings, SettingsError
from ingot.rehearsal.control import Control, ControlError, settings_of_running
from ingot.rehearsal.emulation import EmulationError
from ingot.rehearsal.host import HostRefused
from ingot.rehearsal.layers import LayerStore, mount_read_only
from ingot.rehearsal.mirror_content import MirrorError, ensure
from ingot.rehearsal.model import MachineError
from ingot.rehearsal.network import NetworkError
from ingot.rehearsal.places import GIB
from ingot.rehearsal.trees import TreeError
from ingot.table import TableError

P = ParamSpec("P")
R = TypeVar("R")

app = typer.Typer(help="The local EC2: machines, metadata and APIs on this host.", no_args_is_help=True)
out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)

Instance = Annotated[str, typer.Argument(help="Instance id or Name tag.")]
EXPECTED = (
    BinfmtError,
    BotoCoreError,
    CgroupError,
    ClientError,
    ControlError,
    EmulationError,
    HostRefused,
    MachineError,
    MirrorError,
    NetworkError,
    OSError,
    SettingsError,
    TableError,
    TreeError,
)


def failure(error: Exception) -> str:
    """An expected error in words for a person."""
    if isinstance(error, BotoCoreError | ClientError):
        return f"the region's API: {error}. `ingot local down`, then `ingot local up`, begin it anew"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _says_errors(function: Callable[P, R]) -> Callable[P, R]:
    """Expected errors become their message and exit status 1, not a traceback."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except EXPECTED as error:
            err.print(f"ingot local: {failure(error)}", style="red", markup=False)
            raise typer.Exit(1) from error

    return wrapped


@contextmanager
def _timed(what: str) -> Iterator[None]:
    started = time.monotonic()
    try:
        yield
    except BaseException:
        err.print(f"{time.monotonic() - started:7.1f} s  {what}: failed", markup=False)
        raise
    err.print(f"{time.monotonic() - started:7.1f} s  {what}", markup=False)


def _control() -> Control:
    if refusal := host.check_root(os.geteuid()):
        raise HostRefused([refusal])
    return Control(settings_of_running(Settings.from_environment()), _timed)


@app.command()
@_says_errors
def up(
    arm64: Annotated[
        bool, typer.Option("--arm64", help="Make what machines for arm64 need now, not at the first launch.")
    ] = False,
) -> None:
    """Start the local region, and again the machines that ran when it was last ended."""
    control = Control(Settings.from_environment(), _timed)
    fresh = control.up()
    if arm64:
        control.make_ready("arm64")
    if not fresh:
        out.print(f"The local region {control.settings.name!r} is up already.")
        return
    out.print(
        f"The local region {control.settings.name!r} is up: `ingot local run -- aws ec2 describe-instances`"
    )


@app.command()
@_says_errors
def down(
    purge: Annotated[bool, typer.Option("--purge", help="Remove machines, images and records too.")] = False,
) -> None:
    """End the region: shut machines down, remove all it has on this host; its state stays."""
    control = _control()
    if not control.down(purge=purge):
        out.print(f"The local region {control.settings.name!r} is down already.")


@app.command(context_settings={"ignore_unknown_options": True})
@_says_errors
def run(
    command: Annotated[list[str], typer.Argument(help="The command and its arguments, after `--`.")],
) -> None:
    """Run a command in the region: its network, its AWS endpoint."""
    _replace(_control(), command)


@app.command()
@_says_errors
def shell() -> None:
    """Open a shell in the region; leave it with `exit`."""
    control = _control()
    control.require_up()
    err.print(
        f"In the local region {control.settings.name!r}: {control.settings.endpoint_url}. Leave with `exit`."
    )
    _replace(control, [os.environ.get("SHELL", "/bin/sh")])


@app.command(context_settings={"ignore_unknown_options": True})
@_says_errors
def ssh(
    instance: Instance,
    command: Annotated[list[str] | None, typer.Argument(help="Command to run there.")] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            help="Private key; default: what the region's CreateKeyPair made.",
            exists=True,
            dir_okay=False,
            readable=True,
        ),
    ] = None,
    user: Annotated[str, typer.Option(help="The image's user.")] = "admin",
) -> None:
    """Log in to an instance."""
    control = _control()
    found = _find(control, instance)
    key = key or kept_key(control.settings.state, found)
    # Addresses are reused by other machines with other keys: no record of host keys makes sense here
    options = ["-o", "UserKnownHostsFile=/dev/null", "-o", "StrictHostKeyChecking=no", "-o", "LogLevel=ERROR"]
    identity = ["-i", str(key.absolute()), "-o", "IdentitiesOnly=yes"] if key else []
    _replace(control, ["ssh", *options, *identity, f"{user}@{found['PrivateIpAddress']}", *(command or [])])


@app.command()
@_says_errors
def logs(instance: Instance) -> None:
    """Show what an instance wrote on its console."""
    control = _control()
    path = control.settings.instances / instance / "console.log"
    if not path.exists():
        path = control.settings.instances / str(_find(control, instance)["InstanceId"]) / "console.log"
    if not path.exists():
        raise ControlError(f"{instance} has no console log: it is terminated, or was never started")
    out.print(path.read_text(errors="replace"), markup=False)


@app.command()
@_says_errors
def mount(
    snapshot: Annotated[str, typer.Argument(help="Id of a snapshot, such as an image's.")],
    directory: Annotated[Path, typer.Argument(help="Directory to mount it at; `umount` ends it.")],
) -> None:
    """Mount what is in a snapshot, read-only, to look at an image that nobody has booted."""
    settings = _control().settings
    mount_read_only(LayerStore(settings.snapshots).layers_of(snapshot), directory)


@app.command()
@_says_errors
def ports(
    open_: Annotated[
        str | None, typer.Option("--open", help="LOCAL:INSTANCE:PORT, forwarded until Ctrl-C or `down`.")
    ] = None,
) -> None:
    """List the ports of 127.0.0.1 that are forwarded into the region, or forward one."""
    control = _control()
    control.require_up()
    if open_ is None:
        for local, target in forwards(control):
            out.print(f"127.0.0.1:{local} -> {target}")
        return
    try:
        local, instance, port = open_.split(":")
        local, port = str(int(local)), str(int(port))
    except ValueError as error:
        raise ControlError(
            f"--open takes LOCAL:INSTANCE:PORT (8080:head:8080, say), not {open_!r}"
        ) from error
    address = _find(control, instance)["PrivateIpAddress"]
    err.print(f"http://127.0.0.1:{local} -> {address}:{port}, until Ctrl-C")
    inside = f"nsenter --net={control.settings.netns_path} socat STDIO TCP\\:{address}\\:{port}"
    listen = f"TCP-LISTEN:{local},bind=127.0.0.1,fork,reuseaddr"
    command = control.command(["socat", listen, f"EXEC:{inside}"], netns=False)
    os.execvp(command[0], command)


@app.command()
@_says_errors
def mirror(
    arm64: Annotated[
        bool, typer.Option("--arm64", help="What images for arm64 are made of, too: vLLM's sources, say.")
    ] = False,
) -> None:
    """Fill the mirror that machines install from: wheels by the lock files, and the model of rehearsals."""
    ensure(Settings.from_environment(), lambda text: err.print(text, markup=False), arm64=arm64)


@app.command()
@_says_errors
def status() -> None:
    """Say what runs, how it is scaled, and what it takes."""
    control = _control()
    settings = control.settings
    control.require_up()
    out.print(
        f"Region    {settings.name} ({settings.region}), endpoint {settings.endpoint_url}, "
        f"netns {settings.netns}"
    )
    out.print(
        f"Scale     machines get {settings.memory_scale:.0%} of their type's memory and "
        f"{settings.cpu_scale:.0%} of its vCPUs; host: {os.cpu_count()} cores, {_host_gib():.1f} GiB"
    )
    out.print(f"State     {settings.state} ({_size(settings.state)}), cache {settings.cache}")
    instances = control.ec2.describe_instances()
    rows = [
        (
            _tag(instance, "Name") or "-",
            instance["InstanceId"],
            instance["InstanceType"],
            instance["State"]["Name"],
            instance.get("PrivateIpAddress", "-"),
            instance["ImageId"],
        )
        for instance in _instances(instances)
    ]
    for line in report.table(("name", "instance", "type", "state", "address", "image"), rows):
        out.print(line, markup=False)
    for line in emulated(settings):
        out.print(line, markup=False)
    images = control.ec2.describe_images(Owners=["self"])["Images"]
    for image in sorted(images, key=lambda image: str(image["CreationDate"])):
        out.print(f"{image['ImageId']}  {image['Name']}  {image['CreationDate']}", markup=False)
    for local, target in forwards(control):
        out.print(f"127.0.0.1:{local} -> {target}")


def _replace(control: Control, command: list[str]) -> NoReturn:
    """Become ``command``, in the region: its exit status is ours."""
    control.require_up()
    whole = control.command(command)
    os.execvpe(whole[0], whole, os.environ | control.environment())


def _find(control: Control, name: str) -> dict[str, Any]:
    """The instance with this id or Name tag.

    Raises:
        ControlError: none or several have it.
    """
    control.require_up()
    there = _instances(control.ec2.describe_instances())
    alive = [i for i in there if i["State"]["Name"] != "terminated"]
    found = [i for i in alive if name in (i["InstanceId"], _tag(i, "Name"))]
    if len(found) == 1:
        return found[0]
    if found:
        raise ControlError(f"{name} is the name of {', '.join(i['InstanceId'] for i in found)}: take an id")
    names = ", ".join(f"{i['InstanceId']} ({_tag(i, 'Name') or 'no name'})" for i in alive) or "none"
    raise ControlError(f"no instance {name!r} in the local region; there are: {names}")


def kept_key(state: Path, instance: dict[str, Any]) -> Path | None:
    """The private key that lets into an instance; none if it was launched without a key pair.

    Raises:
        ControlError: its key pair was not made here, or has been deleted.
    """
    if not (name := instance.get("KeyName")):
        return None
    path = KeyStore(state).path(name)
    if not path.exists():
        raise ControlError(
            f"{instance['InstanceId']} was launched with the key pair {name!r}, whose private key the region"
            " does not have: it was imported, or deleted since. Say where it is: --key FILE"
        )
    return path


def _instances(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return [instance for reservation in answer["Reservations"] for instance in reservation["Instances"]]


def _tag(resource: dict[str, Any], key: str) -> str:
    return next((str(tag["Value"]) for tag in resource.get("Tags", []) if tag["Key"] == key), "")


def forwards(control: Control) -> list[tuple[str, str]]:
    """(local port, address and port inside) of each forwarder that runs."""
    found = set()
    for pid in control.groups.run.pids():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        except OSError:
            continue
        if len(words) > 2 and words[0] == "socat" and words[1].startswith("TCP-LISTEN:"):
            local = words[1].removeprefix("TCP-LISTEN:").partition(",")[0]
            found.add((local, words[2].rpartition("TCP\\:")[2].replace("\\", "")))
    return sorted(found)


def emulated(settings: Settings) -> list[str]:
    """Which machines are emulated, and as what: it may be another core than their type has."""
    cores = sorted((settings.runtime / "machines").glob("*/hypervisor/core"))
    return [f"{core.parent.parent.name} is emulated: {core.read_text().strip()}" for core in cores]


def _host_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB


def _size(directory: Path) -> str:
    blocks = sum(path.lstat().st_blocks for path in directory.rglob("*") if not path.is_symlink())
    return f"{blocks * 512 / GIB:.1f} GiB"
