"""``ingot`` on a node.

ingot doctor [--json]                  what is wrong here, root causes first (exit 1 if anything is)
ingot preflight                        what would keep the engine from starting
ingot compare [--json]                 whether the engine answers many at once as it answers each alone
ingot wait UNIT --url URL              wait until a unit answers, or until its first failure
ingot launch [OPTIONS] -- CMD          used by units: check, then become CMD
ingot serve --config FILE              used by ingot-serve.service: deploy and watch
"""

from __future__ import annotations

import argparse
import http.client
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from . import settings as settings_module
from .checks import preflight
from .collect import diagnose, unit
from .compare import CannotAskError, compare
from .finding import as_json
from .launch import CHECKS, launch
from .serve import main as serve

WAIT_POLL = 1.0


def wait(name: str, url: str, timeout: float) -> int:
    """0 once ``url`` answers 200; 1 as soon as the unit has failed or been restarted, or time is up."""
    deadline = time.monotonic() + timeout
    restarts = unit(name).restarts
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return 0
        except (OSError, http.client.HTTPException):  # urllib's own are among the former
            pass
        except ValueError as error:
            print(f"ingot: --url {url}: {error}", file=sys.stderr)
            return 1
        state = unit(name)
        if state.failing or state.restarts > restarts or state.active == "inactive":
            print(
                f"{name} is {state.active} ({state.sub}, {state.result}), {state.restarts} restarts",
                file=sys.stderr,
            )
            return 1
        time.sleep(WAIT_POLL)
    print(f"{name} does not answer at {url} after {timeout:.0f} s", file=sys.stderr)
    return 1


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="ingot", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = top.add_subparsers(dest="command", required=True)
    for name in ("doctor", "preflight", "compare"):
        commands.add_parser(name).add_argument("--json", action="store_true")
    waiting = commands.add_parser("wait")
    waiting.add_argument("unit")
    waiting.add_argument("--url", required=True)
    waiting.add_argument("--timeout", type=float, default=600)
    launching = commands.add_parser("launch")
    launching.add_argument("--credential", action="append", default=[], metavar="VARIABLE=NAME")
    launching.add_argument(
        "--check", choices=CHECKS, default="all", help="`processor`: what the engine was compiled for alone"
    )
    serving = commands.add_parser("serve")
    serving.add_argument("--config", type=Path, required=True)
    serving.add_argument("--url", default="http://127.0.0.1:8265")
    serving.add_argument("--timeout", type=float, default=600)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    at = given.index("--") if "--" in given else len(given)
    options, command = parser().parse_args(given[:at]), given[at + 1 :]
    if options.command == "wait":
        return wait(options.unit, options.url, options.timeout)
    if options.command == "serve":
        return serve(options.config, options.url, options.timeout)
    settings = settings_module.load()
    if options.command == "launch" and not command:
        parser().error("launch: nothing to run; the program and its arguments come after `--`")
    if options.command == "launch":
        return launch(settings, command, credentials=options.credential, check=options.check)
    try:
        findings = {"doctor": diagnose, "preflight": preflight, "compare": compare}[options.command](settings)
    except CannotAskError as error:
        raise SystemExit(f"ingot compare: {error}") from None
    if options.json:
        print(as_json(findings))
    elif findings:
        print("\n".join(finding.text() for finding in findings))
    else:
        print(f"{settings.node}: nothing wrong that Ingot knows of")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
