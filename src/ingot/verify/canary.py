"""The canary of a bake: a secret of each kind that a bake is given, none of which may be on the image."""

from __future__ import annotations

import json
import os
import secrets
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

ALPHABET = string.ascii_letters + string.digits
CORE_LENGTH = 20

USER_DATA = """#cloud-config
# Such as a proxy's password.
bootcmd:
  - [echo, {secret}]
"""


def make() -> dict[str, Any]:
    """A new canary. Each secret looks like its kind, and holds the core by which it is found."""
    core = "".join(secrets.choice(ALPHABET) for _ in range(CORE_LENGTH))
    found = {
        "environment": f"env-{core}",
        "extra_vars": f"var-{core}",
        "hugging_face": f"hf_{core}{core[:14]}",
        "s3_key": f"S3/{core}{core[:17]}",
        "api_key": f"sk-{core}{core[:12]}",
        "apt": f"apt-{core}",
        "index_url": f"pip-{core}",
        "user_data": f"ud-{core}",
    }
    return {"core": core, "secrets": found}


def environment(canary: Mapping[str, Any]) -> dict[str, str]:
    """What the tasks of a bake have in their environment; nothing where it has no canary."""
    if not canary:
        return {}
    of = canary["secrets"]
    return {
        "INGOT_CANARY": of["environment"],
        "HF_TOKEN": of["hugging_face"],
        "VLLM_API_KEY": of["api_key"],
    }


def user_data(canary: Mapping[str, Any]) -> str:
    """User-data of the builder that holds its secret; cloud-init logs what it says."""
    return USER_DATA.format(secret=canary["secrets"]["user_data"])


def write(path: Path) -> None:
    """A new canary in a file that only its owner reads; never over another, which an image may have."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
        json.dump(make(), stream)


def canary(
    path: Annotated[Path, typer.Argument(help="File to write, for the bake and for verify.yml.")],
) -> None:
    """Make the secrets that one bake is given to prove that none stays on its image."""
    try:
        write(path)
    except FileExistsError as error:
        typer.secho(f"{path} is there already, and may be that of an image: name another", err=True)
        raise typer.Exit(1) from error
    typer.echo(f"{path}: bake with INGOT_CANARY_FILE={path}, verify with -e verify_canary_file={path}")
