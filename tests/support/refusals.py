"""What the tests of refusals plant their defects in: a catalogue, an image, a subnet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ingot import sizing
from ingot.preflight.refusal import Refusal

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"


def names(refusals: Iterable[Refusal]) -> list[str]:
    return [refusal.name for refusal in refusals]


def entry(weight_bytes: int = 269_000_000, **changes: Any) -> dict[str, Any]:
    sha = "0" * 64
    return {
        "revision": "r1",
        "licence": "apache-2.0",
        "dtype": "bfloat16",
        "shape": {
            "layers": 30,
            "attention_heads": 9,
            "kv_heads": 3,
            "head_dim": 64,
            "max_model_len": 8192,
            "weight_bytes": weight_bytes,
        },
        "files": [
            {"path": "config.json", "size": 800, "sha256": sha},
            {"path": "tokenizer_config.json", "size": 800, "sha256": sha},
            {"path": "model.safetensors", "size": weight_bytes, "sha256": sha},
        ],
    } | changes


CATALOG = {MODEL: entry(), "big/model": entry(140 * sizing.GIB)}


IMAGE = {
    "image_id": "ami-1",
    "name": "ingot-x86-1",
    "architecture": "x86_64",
    "state": "available",
    "owner_id": "123456789012",
    "creation_date": "2026-11-30T14:00:00.000Z",
    "root_device_name": "/dev/xvda",
    "root_device_type": "ebs",
    "virtualization_type": "hvm",
    "boot_mode": "uefi-preferred",
    "ena_support": True,
    "imds_support": "v2.0",
    "block_device_mappings": [{"device_name": "/dev/xvda", "ebs": {"volume_size": 24}}],
    "tags": {"ingot:image": "x86"},
}
