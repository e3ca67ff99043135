"""systemd of a node with planted states of units."""

from __future__ import annotations

import json

FAILED = {"ActiveState": "failed", "SubState": "failed", "Result": "exit-code", "NRestarts": "5"}


class System:
    """systemctl and journalctl, as far as the doctor asks them."""

    def __init__(self) -> None:
        self.units: dict[str, dict[str, str]] = {}
        self.journal: list[str] = []

    def run(self, *command: str) -> str:
        if command[0] == "systemctl":
            return "\n".join(f"{key}={value}" for key, value in self.units.get(command[2], {}).items())
        return "\n".join(json.dumps({"MESSAGE": line}) for line in self.journal)
