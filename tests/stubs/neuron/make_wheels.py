#!/usr/bin/env python3
"""Makes a stub of the vendor's package index, and a lock of what is in it.

    make_wheels.py PLACE SET_JSON

Below PLACE: simple/, an index with a wheel of the name and version of each distribution that the set's engine
is made of, and lock.txt with their hashes. vLLM is the stub of an engine, NxD Inference that of a compiler.
SET_JSON is a set of files/neuron-sets.yml.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

HERE = Path(__file__).parent
TIME = (2026, 1, 1, 0, 0, 0)  # the same bytes each time, so that a lock holds
SCRIPT = "#!python\nimport sys\nprint('this is a stub: nothing is compiled')\n"


def contents(name: str, inner: str) -> dict[str, str]:
    """The files of one wheel."""
    files = {f"{inner}/__init__.py": '"""A stub of this package, for tests of Ingot."""\n'}
    if name == "vllm":
        files["vllm/entrypoints/__init__.py"] = files["vllm/entrypoints/openai/__init__.py"] = ""
        files["vllm/entrypoints/openai/api_server.py"] = (HERE / "engine/api_server.py").read_text()
    return files


def scripts(name: str) -> dict[str, str]:
    """What a wheel puts into bin."""
    if name == "neuronx-cc":
        return {"neuronx-cc": SCRIPT}
    if name == "neuronx-distributed-inference":
        text = (HERE / "inference_demo").read_text()
        return {"inference_demo": text.replace("#!/usr/bin/env python3", "#!python", 1)}
    return {}


def wheel(place: Path, name: str, version: str) -> Path:
    """One wheel, the same bytes each time."""
    inner = name.replace("-", "_")
    stem = f"{inner}-{version}"
    files = contents(name, inner)
    files |= {f"{stem}.data/scripts/{script}": text for script, text in scripts(name).items()}
    files[f"{stem}.dist-info/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files[f"{stem}.dist-info/WHEEL"] = (
        "Wheel-Version: 1.0\nGenerator: stub\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    record = "".join(f"{path},sha256={digest(text)},{len(text.encode())}\n" for path, text in files.items())
    files[f"{stem}.dist-info/RECORD"] = f"{record}{stem}.dist-info/RECORD,,\n"
    path = place / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in files.items():
            archive.writestr(zipfile.ZipInfo(member, TIME), text)
    return path


def digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def distributions(one: dict[str, Any]) -> dict[str, str]:
    """What a set's engine is made of."""
    own = {"vllm": one["plugin"]["vllm"], "vllm-neuron": one["plugin"]["tag"]}
    return {**one["python"]["packages"], **own}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("place", type=Path)
    parser.add_argument("set", type=json.loads)
    options = parser.parse_args()
    lines = []
    for name, version in sorted(distributions(options.set).items()):
        directory = options.place / "simple" / name
        directory.mkdir(parents=True, exist_ok=True)
        made = wheel(directory, name, version)
        sha256 = hashlib.sha256(made.read_bytes()).hexdigest()
        (directory / "index.html").write_text(
            f'<a href="{quote(made.name)}#sha256={sha256}">{made.name}</a>\n'
        )
        lines.append(f"{name}=={version} \\\n    --hash=sha256:{sha256}\n")
    (options.place / "lock.txt").write_text(
        "# Stubs, made by tests/stubs/neuron/make_wheels.py\n" + "".join(lines)
    )


if __name__ == "__main__":
    main()
