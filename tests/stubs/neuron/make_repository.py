#!/usr/bin/env python3
"""Makes a stub of the vendor's apt repository. Run it on the machine that will use it, as root.

    make_repository.py PLACE SET_JSON [--broken VERSION] [--newer]

Below PLACE it makes www/ (to be served), with packages of the names and versions of the set and another of
the vendor, and PLACE/fingerprint with that of its key. --broken adds a driver of that version that does not
compile, --newer a version above all of each package, and of ingot-control, which is no part of the set.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import tempfile
from email.utils import formatdate
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SUITE = "noble"
COMPONENT = "main/binary-amd64"
DESCRIPTION = "a stub of this package, for tests of Ingot"
POSTINST = """#!/bin/sh
set -e
[ "$1" != configure ] || /usr/lib/dkms/common.postinst {dkms} {driver} /usr/share/{name} amd64 "$2"
"""
PRERM = """#!/bin/sh
set -e
dkms remove -m {dkms} -v {driver} --all || true
"""
DKMS = """PACKAGE_NAME={dkms}
PACKAGE_VERSION={driver}
BUILT_MODULE_NAME[0]="{module}"
MAKE[0]="make -C ${{kernel_source_dir}} M=${{dkms_tree}}/${{PACKAGE_NAME}}/${{PACKAGE_VERSION}}/build"
DEST_MODULE_LOCATION[0]=/kernel/drivers/neuron/
AUTOINSTALL=yes
PRE_INSTALL=./preinstall
POST_INSTALL=./postinstall
"""


def run(*argv: str, **options: Any) -> str:
    done = subprocess.run(argv, check=True, text=True, stdout=subprocess.PIPE, **options)
    return str(done.stdout)


def build(pool: Path, name: str, version: str, tree: Path, depends: str = "") -> None:
    """One package with the files of a tree."""
    notice = tree / "usr/share/doc" / name / "STUB"
    notice.parent.mkdir(parents=True)
    notice.write_text(f"This is {DESCRIPTION}. It is not the vendor's.\n")
    control = tree / "DEBIAN/control"
    control.parent.mkdir(exist_ok=True)
    fields = {"Package": name, "Version": version, "Architecture": "amd64", "Maintainer": "Ingot"}
    fields |= {"Depends": depends} if depends else {}
    control.write_text("".join(f"{key}: {value}\n" for key, value in fields.items()))
    with control.open("a") as file:
        file.write(f"Description: {DESCRIPTION}\n")
    run("dpkg-deb", "--root-owner-group", "--build", str(tree), str(pool))


def driver(tree: Path, name: str, one: dict[str, str], version: str, *, broken: bool) -> None:
    """The sources of the module, and what has DKMS compile them."""
    source = tree / f"usr/src/{one['dkms']}-{version}"
    shutil.copytree(HERE / "module", source)
    for script in ("preinstall", "postinstall"):
        (source / script).chmod(0o755)
    text = (source / "neuron.c").read_text().replace("@VERSION@", version)
    (source / "neuron.c").write_text(text + ('#error "this stub does not compile"\n' if broken else ""))
    values = {"dkms": one["dkms"], "driver": version, "module": one["module"], "name": name}
    (source / "dkms.conf").write_text(DKMS.format(**values))
    (tree / "DEBIAN").mkdir()
    for script, text in (("postinst", POSTINST), ("prerm", PRERM)):
        path = tree / "DEBIAN" / script
        path.write_text(text.format(**values))
        path.chmod(0o755)


def tools(tree: Path) -> None:
    place = tree / "opt/aws/neuron/bin"
    place.mkdir(parents=True)
    for name in ("neuron-ls", "neuron-monitor"):
        shutil.copy(HERE / name, place / name)
        (place / name).chmod(0o755)


def packages(pool: Path, one: dict[str, Any], broken: str, *, newer: bool) -> None:
    """All that the repository has."""
    with tempfile.TemporaryDirectory() as directory:
        trees = iter(Path(directory, str(number)) for number in range(99))
        for name, version in one["packages"].items():
            tree = next(trees)
            tree.mkdir()
            if name.endswith("-dkms"):
                driver(tree, name, one, one["driver"], broken=False)
            elif name.endswith("-tools"):
                tools(tree)
            build(pool, name, version, tree, "dkms" if name.endswith("-dkms") else "")
            if name.endswith("-dkms") and broken:
                tree = next(trees)
                tree.mkdir()
                driver(tree, name, one, broken, broken=True)
                build(pool, name, broken, tree, "dkms")
            if newer:
                tree = next(trees)
                tree.mkdir()
                build(pool, name, "999.0.0.0", tree)
        for name, version in [("ingot-control", "1"), *([("ingot-control", "2")] if newer else [])]:
            tree = next(trees)
            tree.mkdir()
            build(pool, name, version, tree)
        tree = next(trees)
        tree.mkdir()
        build(pool, "aws-neuronx-oci-hook", "2.14.102.0", tree)


def index(www: Path, home: Path) -> None:
    """The lists of the repository, signed."""
    lists = www / "dists" / SUITE / COMPONENT
    lists.mkdir(parents=True, exist_ok=True)
    stanzas = [
        run("dpkg-deb", "--field", str(deb)).rstrip()
        + f"\nFilename: {deb.relative_to(www)}\nSize: {deb.stat().st_size}\n"
        + f"SHA256: {hashlib.sha256(deb.read_bytes()).hexdigest()}\n"
        for deb in sorted((www / "pool").glob("*.deb"))
    ]
    text = "\n".join(stanzas).encode()
    (lists / "Packages").write_bytes(text)
    release = (
        f"Origin: stub\nSuite: {SUITE}\nCodename: {SUITE}\nArchitectures: amd64\nComponents: main\n"
        f"Date: {formatdate(usegmt=True)}\nSHA256:\n"
        f" {hashlib.sha256(text).hexdigest()} {len(text)} {COMPONENT}/Packages\n"
    )
    signed = run("gpg", "--homedir", str(home), "--batch", "--clearsign", input=release)
    (www / "dists" / SUITE / "InRelease").write_text(signed)


def key(home: Path, www: Path) -> str:
    """A key of its own, made once."""
    gpg = ("gpg", "--homedir", str(home), "--batch")
    if not home.exists():
        home.mkdir(mode=0o700)
        run(*gpg, "--passphrase", "", "--quick-generate-key", "stub of a vendor", "ed25519", "sign", "never")
    (www / "KEY.PUB").write_text(run(*gpg, "--armor", "--export"))
    listed = run(*gpg, "--with-colons", "--list-keys")
    return next(line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr:"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("place", type=Path)
    parser.add_argument("set", type=json.loads)
    parser.add_argument("--broken", default="")
    parser.add_argument("--newer", action="store_true")
    options = parser.parse_args()
    www = options.place / "www"
    pool = www / "pool"
    pool.mkdir(parents=True, exist_ok=True)
    packages(pool, options.set, options.broken, newer=options.newer)
    (options.place / "fingerprint").write_text(key(options.place / "gnupg", www))
    index(www, options.place / "gnupg")


if __name__ == "__main__":
    main()
