"""Bakes an image for Graviton on the local EC2, launches an instance of it, and tests that.

    graviton.py           compile vLLM on the emulated machine, whatever the wheel store has
    graviton.py --stored  only if the wheel store has that vLLM, so that nothing is compiled
    graviton.py --needed  take that vLLM from the wheel store, and compile it if it is not there

The image is graviton3 unless --image says graviton4. What is compiled goes into the wheel store
(~/.cache/ingot/wheels). If it is there already, the extension that was compiled now must be the same byte by
byte. The region is INGOT_LOCAL_NAME's; the instance ends when all is well, the image stays until the next
bake.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ingot import images
from ingot.rehearsal.config import Settings
from ingot.rehearsal.control import Control, settings_of_running
from steps import LEFT_OUT, ROOT, ToolError, cache_dir, fail, remark, step, versions

sys.path.insert(0, str(ROOT / "roles/vllm/files"))  # what runs on a builder

from ingot_vllm import RefusedError, builder, cores, patching, wheel

IMAGES = {name: image.core for name, image in images.load().images.items() if image.architecture == "arm64"}
"""Their names, and the cores that their vLLM is compiled for."""
FILES = ROOT / "roles/vllm/files"
BIN = Path(sys.executable).parent


def wanted(image: str, root: Path = ROOT) -> dict[str, Any]:
    """What this checkout decides of the inputs of an image's wheel.

    The rest is Debian's: compiler, Python, allocator.
    """
    core = cores.find(IMAGES[image])
    sources = yaml.safe_load((root / "files/locks/sources.yml").read_text())
    patches = patching.wanted(FILES / "source-patches", "sdist", ("no-acl",))
    return {
        "acl": None,
        "build_type": builder.BUILD_TYPE,
        "core": core.name,
        "flag": core.flag,
        "onednn": sources["onednn_crate"]["sha256"],
        "patches": {
            patch.name: builder.sha256_of(FILES / f"source-patches/{patch.name}.patch") for patch in patches
        },
        "recipe": builder.RECIPE,
        "sdist": sources["vllm"]["sha256"],
        "tools": builder.sha256_of(root / "files/locks/vllm-build.txt"),
        "torch": versions()["torch"],
        "version": versions()["vllm"],
    }


def stored(store: Path, inputs: Mapping[str, Any]) -> tuple[list[Path], list[str]]:
    """The wheels of a store that were made from these inputs, and of each other what is not alike."""
    found, others = [], []
    for path in sorted(store.glob("*.whl")):
        try:
            made_from = wheel.read(path).get("inputs", {})
        except RefusedError as error:
            others.append(str(error))
            continue
        if differs := wheel.difference({name: made_from.get(name) for name in inputs}, inputs):
            others.append(f"{path.name} was made with another {', '.join(differs)}")
        else:
            found.append(path)
    return found, others


def extension(path: Path) -> str:
    """The hash of the compiled extension in a wheel."""
    with zipfile.ZipFile(path) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/_C.abi3.so"))
        return hashlib.sha256(archive.read(name)).hexdigest()


def keep(made: Path, store: Path) -> str:
    """Take what was compiled into the store.

    Raises:
        ToolError: the store has a wheel of the same inputs with another extension.
    """
    kept = store / made.name
    if kept.exists():
        if extension(made) != extension(kept):
            raise ToolError(
                f"two builds from the same inputs differ: _C.abi3.so of {made} and of {kept}. Compare them, "
                "then remove the one that you do not trust"
            )
        return f"two builds of {kept.name} have the same extension, byte by byte"
    store.mkdir(parents=True, exist_ok=True)
    shutil.copy(made, store / f".{made.name}.partial")
    (store / f".{made.name}.partial").replace(kept)
    return f"{kept.name} is in the wheel store now: the first build of these inputs, compared with no other"


def run(image: str, *command: str | Path) -> None:
    """A command of the image's cluster, whose output passes through."""
    env = {**os.environ, "INGOT_CLUSTER": image}
    status = subprocess.run(command, cwd=ROOT, env=env, check=False).returncode
    if status != 0:
        raise ToolError(f"exit status {status} from: {' '.join(map(str, command))}")


def forget(image: str) -> None:
    """An image that was made of the same inputs would not be baked again."""
    control = Control(settings_of_running(Settings.from_environment()))
    if control.is_up():
        filters = [{"Name": "tag:ingot:image", "Values": [image]}]
        for found in control.ec2.describe_images(Owners=["self"], Filters=filters)["Images"]:
            control.ec2.deregister_image(ImageId=found["ImageId"])


def rehearse(image: str, store: Path, *tests: str) -> None:
    """Bake with this store, launch, configure, ask, test, destroy. What failed stays, to be looked at."""
    forget(image)
    extra = json.dumps({"vllm_wheel_store": str(store)})
    run(image, BIN / "ingot", "rehearse", "--image", image, "--extra-vars", extra)
    run(image, BIN / "pytest", "tests/graviton", *tests)
    playbook = ("ansible-playbook", "-i", "inventories/rehearsal", "playbooks/destroy.yml")
    run(image, BIN / "ingot", "local", "run", "--", *playbook, "-e", f"destroy_confirm={image}")


def bake_stored(image: str, store: Path) -> int:
    """Only with what the store has."""
    with step(f"vLLM for {IMAGES[image]} in {store}") as state:
        found, others = stored(store, wanted(image))
        state.note = ", ".join(path.name for path in found) or "\n    ".join(["none", *others])
    if not found:
        remark(f"no vLLM for {image} in the wheel store, and nothing compiled here (`make test-full` does)")
        return LEFT_OUT
    rehearse(image, store, "-m", "not long")
    return 0


def bake_compiled(image: str, store: Path) -> int:
    """With a store that has nothing; then hold what was compiled against what the real one has."""
    with tempfile.TemporaryDirectory(prefix="ingot-wheels-") as fresh:
        try:
            rehearse(image, Path(fresh))
        finally:  # what was compiled and proved is worth keeping, whatever came after it
            for made in Path(fresh).glob("*.whl"):
                remark(keep(made, store))
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--image", choices=list(IMAGES), default="graviton3", help="default: graviton3")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--stored", action="store_true", help="nothing unless the wheel store has that vLLM")
    mode.add_argument("--needed", action="store_true", help="compile only if the wheel store lacks that vLLM")
    options = parser.parse_args(argv)
    store = cache_dir() / "wheels"
    try:
        if options.stored:
            return bake_stored(options.image, store)
        if options.needed:
            rehearse(options.image, store, "-m", "not long")
            return 0
        return bake_compiled(options.image, store)
    except ToolError as problem:
        return fail(problem)


if __name__ == "__main__":
    sys.exit(main())
