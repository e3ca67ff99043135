"""What the serving role wrote down about this node: ``/etc/ingot/serving.json``."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from .causes import REFUSED

PATH = Path("/etc/ingot/serving.json")


@dataclass(frozen=True)
class Settings:
    """Facts that the checks need. Every one has a value on a node that was not configured yet."""

    mode: str = "ray_serve"
    units: tuple[str, ...] = ()  # what should be running here, in starting order
    user: str = "ingot"
    venv: str = "/opt/ingot/venvs/vllm"
    container_image: str = ""  # what the engine runs in, where it is not in venv
    model_id: str = ""
    model_path: str = ""
    address: str = ""
    port: int = 8000
    engine_bytes: int = 0  # weights, KV cache and processes, as sized
    cache: str = "/var/cache/ingot"
    facts: str = "/usr/share/ingot/facts.d/vllm.json"  # what the engine is, and the core it was compiled for
    ray_logs: str = "/var/lib/ingot/ray/session_latest/logs"
    node: str = field(default_factory=socket.gethostname)


def load(path: Path = PATH) -> Settings:
    """Read the file; a node without one gets the defaults. Unknown keys are a defect of ours and fail."""
    data = read_json(path, {})
    known = {item.name for item in fields(Settings)}
    unknown = set(data) - known
    if unknown:
        raise SystemExit(f"ingot: {path} has unknown keys: {', '.join(sorted(unknown))}")
    if "units" in data:
        data["units"] = tuple(data["units"])
    return Settings(**data)


def read_json(path: Path, absent: dict[str, Any] | None = None) -> dict[str, Any]:
    """A file of ours with an object in it; ``absent`` is what counts where there is none.

    Raises:
        SystemExit: it cannot be read, with what to do.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(data, dict):
            return data
        why = "there is no object in it"
    except FileNotFoundError as error:
        if absent is not None:
            return absent
        why = str(error.strerror)
    except OSError as error:
        why = str(error.strerror)
    except ValueError as error:
        why = str(error)
    raise SystemExit(f"{REFUSED} {path} cannot be read ({why}). Do: run site.yml, which writes it")
