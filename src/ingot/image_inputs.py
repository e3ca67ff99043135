"""What an image is made of, as one hash: an image whose tag has the same need not be baked again."""

from __future__ import annotations

import hashlib
from pathlib import Path

TAG = "ingot:inputs"

INPUTS = (
    "packer/*.pkr.hcl",
    "packer/images.yml",
    "playbooks/image.yml",
    "playbooks/tasks/**/*",
    "inventories/image/**/*",
    "roles/**/*",
    "files/**/*",
    "plugins/**/*",
    "src/ingot/doctor/**/*",  # goes onto the image
)
IGNORED = ("__pycache__", "README.md", "iam")


def digest(root: Path, inventory: Path | None = None) -> str:
    """The hash over all input files below ``root``, names and contents, and those of a further inventory."""
    files = {path for pattern in INPUTS for path in root.glob(pattern)}
    if inventory is not None:
        files |= set(inventory.rglob("*"))
    total = hashlib.sha256()
    for path in sorted(files):
        if path.is_file() and not set(path.parts) & set(IGNORED):
            total.update(str(path.relative_to(root)).encode() + b"\0")
            total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:32]
