"""Private keys of CreateKeyPair, kept for ``ingot local ssh``: EC2 itself forgets them."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path


class KeyStore:
    """The private keys in a region's state, readable by root only."""

    def __init__(self, state: Path) -> None:
        self.directory = state / "keys"

    def path(self, name: str) -> Path:
        """File of a key pair. A name may hold any character, a file name not."""
        safe = re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".")
        if safe != name:
            safe += "-" + hashlib.sha256(name.encode()).hexdigest()[:8]
        return self.directory / f"{safe}.pem"

    def write(self, name: str, material: str) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path(name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(material)

    def remove(self, name: str) -> None:
        self.path(name).unlink(missing_ok=True)
