"""What an archive of a container image holds."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def archive_problem(archive: str, image: str) -> str:
    """Why an OCI archive is not the one that holds ``image`` (registry/name@sha256:…); empty where it is.

    Its index stands beside its layers, so that gigabytes need not be copied to a node to learn this.
    """
    try:
        with tarfile.open(Path(archive).expanduser()) as tar:
            member = tar.extractfile("index.json")
            held = [str(manifest["digest"]) for manifest in json.load(member)["manifests"]] if member else []
    except (OSError, tarfile.TarError, ValueError, KeyError, TypeError) as error:
        return f"{archive} is no OCI archive ({error}): make it with `podman save --format oci-archive`"
    if image.rpartition("@")[2] in held:
        return ""
    return f"{archive} does not hold {image}, but {', '.join(held)}. Name that in vllm_container_image"


FILTERS: dict[str, Callable[..., Any]] = {"ingot_archive_problem": archive_problem}
