#!/usr/bin/python3
"""Say what a machine of an image is and does, as JSON: what playbooks/verify.yml decides by.

    evidence.py             of this machine, which runs
    evidence.py --root DIR  of a tree that nobody has booted: what is inside it, and nothing else

Standard library only. Nothing that it prints is a secret: keys are told by their fingerprints.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

CACHE = "var/cache/ingot"
VENVS = "opt/ingot/venvs"
MODELS = "opt/ingot/models"
SESSION = "var/lib/ingot/ray/session_latest"
ENGINE_UNITS = ("vllm.service", "ingot-serve.service", "ray-head.service")
#: What is kept of an engine's log: src/ingot/graphs.py reads it.
GRAPHS = re.compile(r"ompiling (?:a graph|model again)|Directly load|load failure")
#: Directories whose own directories are told apart.
DEEP = (("usr",), ("var",), ("opt",), ("opt", "ingot"), ("var", "cache"))
LICENCE_NAMES = ("License-Expression", "License")


def sha256(path: Path) -> str:
    """Of a file's content; empty where it cannot be read."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError:
        return ""


def read(path: Path) -> str:
    """The text of a file, or nothing."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def said(*command: str) -> str:
    """What a command prints, whatever its status is: `is-system-running` tells by both."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"
    return done.stdout.strip()


# --- who it is ----------------------------------------------------------------------------------------------


def identity(root: Path) -> dict[str, Any]:
    """All by which one machine is told from another. Values that are secret are hashed."""
    keys = {}
    for path in sorted((root / "etc/ssh").glob("ssh_host_*_key.pub")):
        words = read(path).split()
        if len(words) > 1:
            digest = hashlib.sha256(base64.b64decode(words[1])).digest()
            keys[path.name] = base64.b64encode(digest).decode().rstrip("=")
    certificates = {
        str(path.relative_to(root)): sha256(path) for path in sorted((root / "etc/ingot").rglob("*.pem"))
    }
    session = root / SESSION
    return {
        "machine_id": sha256(root / "etc/machine-id"),
        "ssh_host_keys": keys,
        "hostname": os.uname().nodename,
        "tls": certificates,
        "ray_session": session.readlink().name if session.is_symlink() else "",
        "ray_token": sha256(root / "etc/ingot/credentials/ray-token"),
        "boot_id": read(Path("/proc/sys/kernel/random/boot_id")).strip(),
    }


# --- how it is ----------------------------------------------------------------------------------------------


def system() -> dict[str, Any]:
    """How the boot went, by systemd."""
    failed = said("systemctl", "list-units", "--failed", "--plain", "--no-legend", "--no-pager")
    return {
        "state": said("systemctl", "is-system-running"),
        "failed": [line.split()[0] for line in failed.splitlines() if line.strip()],
        "boot": said("systemd-analyze", "time"),
        "kernel": os.uname().release,
        "free_bytes": os.statvfs("/").f_bavail * os.statvfs("/").f_frsize,
    }


def engine_log() -> list[str]:
    """What the engine that runs has said of its compiled graphs."""
    lines: list[str] = []
    for unit in ENGINE_UNITS:
        invocation = said("systemctl", "show", "--property=InvocationID", "--value", unit)
        if invocation:
            log = said("journalctl", "--no-pager", "--output=cat", f"_SYSTEMD_INVOCATION_ID={invocation}")
            lines += log.splitlines()
    for path in sorted(Path("/", SESSION, "logs").rglob("*")):
        if path.is_file() and path.suffix in (".log", ".out", ".err"):
            lines += read(path).splitlines()
    return [line[:300] for line in lines if GRAPHS.search(line)][:200]


def cache(root: Path) -> dict[str, str]:
    """Every file of the compile caches and the hash of its content."""
    top = root / CACHE
    return {
        str(path.relative_to(top)): sha256(path)
        for path in sorted(top.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


# --- what is inside -----------------------------------------------------------------------------------------


def debian(root: Path) -> dict[str, dict[str, str]]:
    """Packages that are installed, by dpkg's own records, with the licences that they name."""
    found = {}
    for paragraph in read(root / "var/lib/dpkg/status").split("\n\n"):
        fields = HeaderParser().parsestr(paragraph)
        if str(fields["Status"]).endswith(" installed"):
            name = str(fields["Package"])
            found[name] = {
                "version": str(fields["Version"]),
                "architecture": str(fields["Architecture"]),
                "licence": ", ".join(sorted(set(copyright_licences(root, name)))),
            }
    return found


def copyright_licences(root: Path, package: str) -> Iterator[str]:
    """Short names in a machine-readable copyright file; of another, the common licences that it points to."""
    text = read(root / "usr/share/doc" / package / "copyright")
    machine_readable = r"^License: *(\S.*)$" if text.startswith("Format:") else ""
    pattern = machine_readable or r"/usr/share/common-licenses/([A-Za-z0-9.+-]*[A-Za-z0-9+])"
    for match in re.finditer(pattern, text, re.MULTILINE):
        yield match[1].strip()


def python(root: Path) -> dict[str, dict[str, Any]]:
    """Each environment: its Python, and the distributions in it."""
    found = {}
    for place in sorted((root / VENVS).glob("*")):
        settings = {
            name.strip(): value.strip()
            for name, _, value in (line.partition("=") for line in read(place / "pyvenv.cfg").splitlines())
        }
        distributions = {}
        for path in sorted(place.glob("lib/python*/site-packages/*.dist-info/METADATA")):
            fields = HeaderParser().parsestr(read(path), headersonly=True)
            distributions[re.sub(r"[-_.]+", "-", str(fields["Name"])).lower()] = {
                "version": str(fields["Version"]),
                "licence": licence(fields.items()),
            }
        found[place.name] = {
            "python": settings.get("version_info", settings.get("version", "")),
            "distributions": distributions,
        }
    return found


def licence(fields: list[tuple[str, str]]) -> str:
    """What a distribution says of its licence: an expression, a short text, or a classifier."""
    by_name = dict(fields)
    for name in LICENCE_NAMES:
        value = str(by_name.get(name, "")).strip()
        if value and "\n" not in value and len(value) < 100 and value != "UNKNOWN":
            return value
    classified = [
        str(v).rpartition(" :: ")[2] for k, v in fields if k == "Classifier" and "License ::" in str(v)
    ]
    return ", ".join(classified)


def weights(root: Path, models: list[str]) -> dict[str, dict[str, str]]:
    """The hash of each file of each model that the image says it has."""
    return {
        model: {
            path.name: sha256(path)
            for path in sorted((root / MODELS / model).iterdir())
            if path.is_file() and not path.name.startswith(".")
        }
        for model in models
        if (root / MODELS / model).is_dir()
    }


def sizes(root: Path) -> dict[str, int]:
    """Bytes on disk by directory, of the root's own file system; a file with several names counts once."""
    found: dict[str, int] = {}
    seen: set[int] = set()
    device = root.stat().st_dev
    for place, directories, names in os.walk(root):
        directories[:] = [name for name in directories if _device(f"{place}/{name}") == device]
        parts = Path(place).relative_to(root).parts
        depth = 3 if parts[:2] in DEEP else 2 if parts[:1] in DEEP else 1
        key = "/" + "/".join(parts[:depth])
        for name in names:
            try:
                of = os.lstat(f"{place}/{name}")
            except OSError:  # a log that was just rotated
                continue
            if of.st_ino not in seen:
                seen.add(of.st_ino)
                found[key] = found.get(key, 0) + of.st_blocks * 512
    return dict(sorted(found.items()))


def _device(path: str) -> int:
    try:
        return os.lstat(path).st_dev
    except OSError:
        return -1


def enabled_units(root: Path) -> list[str]:
    """Units that a target wants or requires, by the links of `systemctl enable`."""
    links = (root / "etc/systemd/system").glob("*.target.[wr][ae]*/*")
    return sorted({path.name for path in links})


def sysctls(root: Path) -> dict[str, str]:
    """What the files of sysctl.d set, in their order: the last one wins."""
    files: dict[str, Path] = {}
    for place in ("usr/lib/sysctl.d", "usr/local/lib/sysctl.d", "etc/sysctl.d"):
        files |= {path.name: path for path in sorted((root / place).glob("*.conf"))}
    found = {}
    for name in sorted(files):
        for line in read(files[name]).splitlines():
            setting, equals, value = line.strip().lstrip("-").partition("=")
            if equals and not setting.startswith(("#", ";")):
                found[setting.strip().replace("/", ".")] = value.strip()
    return dict(sorted(found.items()))


def inside(root: Path) -> dict[str, Any]:
    """What the image says of itself, and what is found."""
    text = read(root / "usr/share/ingot/image.json")
    manifest = json.loads(text) if text else {}
    modules = root / "lib/modules"
    library = str(manifest.get("facts", {}).get("cpu_tuning", {}).get("library", ""))
    extensions = {
        str(path.relative_to(root)): sha256(path)
        for path in sorted((root / VENVS).glob("*/lib/python*/site-packages/vllm/_C*.so"))
    }
    release = re.search(r'^PRETTY_NAME="?([^"\n]*)', read(root / "etc/os-release"), re.MULTILINE)
    return {
        "manifest": manifest,
        "os": release[1] if release else "",
        "kernels": sorted(path.name for path in modules.iterdir()) if modules.is_dir() else [],
        "debian": debian(root),
        "python": python(root),
        "weights": weights(root, list(manifest.get("facts", {}).get("model_store", {}))),
        "allocator": sha256(root / library.lstrip("/")) if library else "",
        "extensions": extensions,
        "sizes": sizes(root),
        "units": enabled_units(root),
        "sysctls": sysctls(root),
    }


def gather(root: Path) -> dict[str, Any]:
    """All of it, as far as it can be said of a machine or a tree."""
    found: dict[str, Any] = {"inside": inside(root), "cache": cache(root)}
    if root == Path("/"):
        found |= {"identity": identity(root), "system": system(), "engine_log": engine_log()}
        found["machine"] = os.uname().machine
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, default=Path("/"))
    print(json.dumps(gather(parser.parse_args().root)))


if __name__ == "__main__":
    main()
