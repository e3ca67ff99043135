#!/usr/bin/python3 -I
"""Start Ray's unit on a node that Ray's own launcher (`ray up`) made, which knows what only now is known.

    ingot-ray start --head --autoscaling-config FILE --files DIRECTORY [--instance ID --type NAME]
    ingot-ray start --address HEAD --files DIRECTORY [--instance ID --type NAME]

``DIRECTORY`` is what playbooks/ray_config.yml had the launcher copy: the cluster's token, the settings of
head and worker, which are those that site.yml writes, without addresses, and the user's environment.
The flags of Ray are in the units and nowhere else. A refusal is one line that begins with
``ingot: refused:``.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

ETC = Path("/etc/ingot")
UNITS = Path("/etc/systemd/system")
ANYWHERE = ("192.0.2.1", 9)  # RFC 5737: nothing is sent to it
CALLER = "ingot-ray-head"  # what CloudTrail shows as the caller


def refuse(what: str, do: str) -> NoReturn:
    """End, saying what to do."""
    print(f"ingot: refused: {what}. Do: {do}", file=sys.stderr, flush=True)
    raise SystemExit(78)


def own_address() -> str:
    """The address that others know this node by: that of its default route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(ANYWHERE)
        except OSError as error:
            refuse(f"this node has no default route ({error})", "look at its network (networkctl)")
        return str(probe.getsockname()[0])


def setting(text: str, name: str) -> str:
    """The value of a line ``NAME=value``, or nothing."""
    return next((line.partition("=")[2] for line in text.splitlines() if line.startswith(f"{name}=")), "")


def read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        refuse(
            f"{path} cannot be read ({error.strerror})",
            "write the cluster file again (playbooks/ray_config.yml), then `ray up`",
        )


def write(path: Path, text: str, mode: int) -> None:
    """Replace a file whole; nobody ever sees it with more rights than ``mode``."""
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    partial.replace(path)


def hand_over(path: Path, source: Path, account: pwd.struct_passwd) -> None:
    """Copy what the launcher put into the login user's home to where the service user finds it, by ``~``."""
    target = Path(account.pw_dir) / path.relative_to(source)
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = {parent for parent in target.parents if parent.is_relative_to(account.pw_dir)}
    if path.is_dir():
        shutil.copytree(path, target, dirs_exist_ok=True)
        made |= {target, *target.rglob("*")}
    else:
        write(target, read(path), 0o600)
        made.add(target)
    for owned in made - {Path(account.pw_dir)}:
        os.chown(owned, account.pw_uid, account.pw_gid)


def bring_launcher(config: Path, account: pwd.struct_passwd) -> Path:
    """Give the head's autoscaler its configuration and all that this names in ``~``: key and files."""
    home = config.parent
    try:
        wanted = json.loads(read(config))
        named = [wanted["auth"]["ssh_private_key"], *wanted["file_mounts"]]
    except (ValueError, KeyError, TypeError) as error:
        refuse(f"{config} is not what `ray up` writes ({error!r})", "run `ray up` again")
    paths = [config, *(home / name[2:] for name in named if name.startswith("~/"))]
    for path in paths:
        hand_over(path, home, account)
    return Path(account.pw_dir) / config.name


def unit_user(unit: str) -> pwd.struct_passwd:
    """Whom the unit runs as."""
    try:
        text = (UNITS / unit).read_text(encoding="utf-8")
        return pwd.getpwnam(setting(text, "User"))
    except (OSError, KeyError):
        refuse(f"this node has no unit {unit} of Ingot", "launch from an image that was baked with role ray")


def settings(options: argparse.Namespace, port: str, config: Path | None) -> str:
    """What overrides the settings that were made before there was a node."""
    address = own_address()
    lines = [f"RAY_HEAD={options.address or address}:{port}", f"RAY_NODE_ADDRESS={address}"]
    if config:
        lines += [f"RAY_START_OPTIONS=--autoscaling-config={config}", f"AWS_SDK_UA_APP_ID={CALLER}"]
    if options.instance:  # the autoscaler knows its nodes by these; the older one, v1, gives none
        lines += [f"RAY_CLOUD_INSTANCE_ID={options.instance}", f"RAY_NODE_TYPE_NAME={options.type}"]
        lines += ["RAY_enable_autoscaler_v2=1"] if config else []
    return "".join(f"{line}\n" for line in lines)


def start(unit: str) -> int:
    """Start the unit anew and enable it; if it fails, say what it said last."""
    subprocess.run(["systemctl", "enable", "--quiet", unit], check=True)
    subprocess.run(["systemctl", "reset-failed", unit], check=False, stderr=subprocess.DEVNULL)
    if subprocess.run(["systemctl", "restart", unit], check=False).returncode == 0:
        print(f"{unit} runs")
        return 0
    command = ["journalctl", "--no-pager", "--boot", "--output=cat", "--lines=60", f"--unit={unit}"]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    ours = [line for line in lines if line.startswith("ingot: ")]
    print(f"{unit} does not start:\n" + "\n".join(ours[-1:] or lines[-15:]), file=sys.stderr)
    return 1


def main(arguments: list[str] | None = None) -> int:
    """Write what the unit reads, and start it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("action", choices=["start"])
    role = parser.add_mutually_exclusive_group(required=True)
    role.add_argument("--head", action="store_true")
    role.add_argument("--address")
    parser.add_argument("--autoscaling-config", type=Path)
    parser.add_argument("--files", type=Path, required=True)
    parser.add_argument("--instance", default="")
    parser.add_argument("--type", default="")
    options = parser.parse_args(arguments)
    if options.head != bool(options.autoscaling_config):
        parser.error("--autoscaling-config belongs to --head")
    if not (options.head or options.address):
        parser.error("--address is empty: the launcher gives RAY_HEAD_IP to workers only")

    name = "head" if options.head else "worker"
    unit = f"ray-{name}.service"
    account = unit_user(unit)
    text = read(options.files / f"{name}.env")
    port = setting(text, "RAY_HEAD").rpartition(":")[2]
    further = read(options.files / "user.env")
    token = read(options.files / "token").strip()
    config = bring_launcher(options.autoscaling_config, account) if options.head else None
    write(ETC / "credentials" / "ray-token", token, 0o600)
    write(ETC / "ray.env", text, 0o644)
    write(ETC / "ray-user.env", further, 0o600)
    write(ETC / "ray-up.env", settings(options, port, config), 0o644)
    return start(unit)


if __name__ == "__main__":
    if os.geteuid() != 0:
        refuse("only root may start Ray's units", "run it with sudo")
    sys.exit(main())
