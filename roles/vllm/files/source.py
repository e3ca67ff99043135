#!/usr/bin/env python3
"""Build vLLM for one core from its sources. Run it with the Python of the environment that has torch.

    source.py installed CONFIG           whether the vLLM that is installed was made from these inputs; JSON
    source.py key CONFIG                 the key of these inputs, and they; JSON
    source.py start CONFIG               begin to build in the background, or join a build that runs
    source.py wait CONFIG --seconds N    how far it is, after that time or when it has ended; JSON
    source.py check WHEEL --key KEY      take a wheel from a store only if it is the one that is wanted; JSON

Exit status: 0 done, 1 refused (the reason is on standard error), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # `python -I` does not look beside the program

from ingot_vllm import RefusedError, cores, wheel
from ingot_vllm.builder import Build, Config
from ingot_vllm.progress import Status


def installed_record() -> dict[str, Any]:
    """What the vLLM of this environment says of its own making; nothing where it is not ours."""
    try:
        text = importlib.metadata.distribution("vllm").read_text(wheel.RECORD_NAME)
    except importlib.metadata.PackageNotFoundError:
        return {}
    record: dict[str, Any] = json.loads(text) if text else {}
    return record


def installed(config: Config) -> dict[str, Any]:
    """Whether building would make what is there. A node may have lost its compiler, which changes nothing."""
    record = installed_record()
    present = record.get("inputs", {})
    try:
        wanted = Build(config).inputs
    except cores.NoCompilerError:
        if not present:
            return {"installed": False, "differs": []}
        wanted = Build(config, compiler_was=present["compiler"]).inputs
    return {
        "installed": bool(present) and wheel.key_of(wanted) == record.get("key"),
        "differs": wheel.difference(present, wanted) if present else [],
    }


def start(build: Build, config: Path) -> str:
    """Begin in the background: a build takes longer than a connection lasts."""
    lock = build.lock()
    if lock is None:
        return "joined"
    Status(began=time.time()).write(build.status_file)
    command = [sys.executable, "-I", str(Path(__file__).resolve()), "build", str(config), "--locked"]
    with (build.directory / "runner.log").open("ab") as log:
        # The child inherits the lock, so that at no time nobody has it.
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=(lock,),
        )
    os.close(lock)
    return "started"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("installed", "key", "start", "build", "wait"):
        commands.add_parser(name).add_argument("config", type=Path)
    commands.choices["build"].add_argument("--locked", action="store_true", help="by whoever started this")
    commands.choices["wait"].add_argument("--seconds", type=float, default=60)
    checked = commands.add_parser("check")
    checked.add_argument("wheel", type=Path)
    checked.add_argument("--key", required=True)
    arguments = parser.parse_args(argv)
    try:
        if arguments.command == "installed":
            print(json.dumps(installed(Config.read(arguments.config))))
        elif arguments.command == "check":
            record = wheel.check(arguments.wheel, arguments.key)
            print(json.dumps({"file": record["file"], "cpu": record["cpu"], "acl": record["acl"]}))
        else:
            build = Build(Config.read(arguments.config))
            if arguments.command == "key":
                print(json.dumps({"key": build.key, "inputs": build.inputs}))
            elif arguments.command == "start":
                print(start(build, arguments.config))
            elif arguments.command == "build":
                if not arguments.locked and build.lock() is None:
                    raise RefusedError(f"{build.directory} is being built in by another process")
                build.run()
            else:
                status = build.wait(arguments.seconds)
                print(json.dumps({"state": status.state, "text": status.text(), "message": status.message}))
    except RefusedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
