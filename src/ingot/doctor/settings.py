"""What the serving role wrote down about this node: ``/etc/ingot/serving.json``."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass, field, fields
from pathlib import Path

PATH = Path("/etc/ingot/serving.json")


@dataclass(frozen=True)
class Settings:
    """Facts that the checks need. Every one has a value on a node that was not configured yet."""

    mode: str = "ray_serve"
    units: tuple[str, ...] = ()  # what should be running here, in starting order
    user: str = "ingot"
    venv: str = "/opt/ingot/venvs/vllm"
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
    if not path.exists():
        return Settings()
    data = json.loads(path.read_text(encoding="utf-8"))
    known = {item.name for item in fields(Settings)}
    unknown = set(data) - known
    if unknown:
        raise SystemExit(f"ingot: {path} has unknown keys: {', '.join(sorted(unknown))}")
    if "units" in data:
        data["units"] = tuple(data["units"])
    return Settings(**data)
