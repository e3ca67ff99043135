"""Stub: AWS's EFA installer as an archive of the same layout, with packages of its names and versions.

Usage: stub_installer.py SYSTEM DIRECTORY     (SYSTEM: DEBIAN13, UBUNTU2404: the archive's word for it)

The vendor's archive is 670 MiB from a host that tests do not reach. In this one are empty libraries and a
program that says what the real one says; no kernel module. So what is tried with it is the role: the sum of
the archive, the installer's options, versions, holds, what the loader finds. It proves nothing of EFA.

Names, versions and layout: files/nccl.yml, and the paths that public build files take packages from
(DEBS/UBUNTU2404/x86_64/rdma-core/libibverbs1_63.0-1_amd64.deb). Archive and packages are written here byte by
byte, and of one date, so that their sums are the same everywhere.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import sys
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

HERE = Path(__file__).parent
TABLE = HERE.parents[2] / "files/nccl.yml"
sys.path.insert(0, str(HERE.parent / "cuda"))

from stub_wheel import shared_object  # noqa: E402  (its place is not on the path)

ARCHITECTURES = {"x86_64": "amd64"}
LIBFABRIC, PLUGIN = "opt/amazon/efa", "opt/amazon/ofi-nccl/lib"
#: Packages that the real archive has beside those of the table.
MORE = {
    "efa-config": "1.18",
    "efa-profile": "1.7",
    "libfabric-aws-dev": "{libfabric}",
    "librdmacm1": "63.0-1",
}

Files = Mapping[str, tuple[bytes, int]]


def tar(files: Files) -> bytes:
    """An archive of these files (content, mode) and the directories that they are in."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for directory in sorted({str(parent) for name in files for parent in Path(name).parents} - {"."}):
            member = tarfile.TarInfo(f"./{directory}")
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(member)
        for name, (content, mode) in sorted(files.items()):
            member = tarfile.TarInfo(f"./{name}")
            member.size, member.mode = len(content), mode
            archive.addfile(member, io.BytesIO(content))
    return made.getvalue()


def debian_package(name: str, version: str, architecture: str, files: Files) -> bytes:
    """A .deb: an ar archive of three members."""
    control = (
        f"Package: {name}\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: Ingot\n"
        f"Description: stub of {name} in AWS's EFA installer\n"
    )
    triggers = b"activate-noawait ldconfig\n"
    members = (
        ("debian-binary", b"2.0\n"),
        ("control.tar", tar({"control": (control.encode(), 0o644), "triggers": (triggers, 0o644)})),
        ("data.tar", tar(files)),
    )
    made = b"!<arch>\n"
    for member, content in members:
        made += f"{member:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
        made += content + b"\n" * (len(content) % 2)
    return made


def contents(name: str, version: str, machine: str) -> Files:
    """What is in a package, as far as anything is looked up in it."""

    def library(soname: str) -> tuple[bytes, int]:
        return shared_object(machine, soname, [], []), 0o644

    files: dict[str, tuple[bytes, int]] = {f"usr/share/doc/{name}/stub": (b"a stub\n", 0o644)}
    if name == "libfabric1-aws":
        files[f"{LIBFABRIC}/lib/libfabric.so.1"] = library("libfabric.so.1")
    elif name == "libfabric-aws-bin":
        program = (HERE / "fi_info").read_text().replace("@VERSION@", version)
        files[f"{LIBFABRIC}/bin/fi_info"] = (program.encode(), 0o755)
    elif name == "libnccl-ofi":
        for soname in ("libnccl-net.so", "libnccl-net-ofi.so", "libnccl-tuner-ofi.so"):
            files[f"{PLUGIN}/{soname}"] = library(soname)
        files["etc/ld.so.conf.d/100_ofinccl.conf"] = (f"/{PLUGIN}\n".encode(), 0o644)
    elif name == "efa-profile":
        files["etc/ld.so.conf.d/000_efa.conf"] = (f"/{LIBFABRIC}/lib\n".encode(), 0o644)
    return files


def layout(system: str, version: str, installer: Mapping[str, str], packages: Mapping[str, str]) -> Files:
    """The archive's files."""
    files: dict[str, tuple[bytes, int]] = {}
    rdma = installer["rdma_core"]
    for machine, architecture in ARCHITECTURES.items():
        base = f"DEBS/{system}/{machine}"
        more = {name: of.format(**installer) for name, of in MORE.items()}
        for name, of in {**packages, **more, "efa": f"{installer['efa_driver']}-1"}.items():
            folder = "efa-driver/" if name == "efa" else "rdma-core/" if of.startswith(f"{rdma}-") else ""
            deb = debian_package(name, of, architecture, contents(name, of, machine))
            files[f"{base}/{folder}{name}_{of}_{architecture}.deb"] = (deb, 0o644)
    listed = "".join(f"{name}\n" for name in sorted(files))
    return files | {
        "package_list.txt": (listed.encode(), 0o644),
        "env.sh": (f"EFA_INSTALLER_VERSION={version}\n".encode(), 0o644),
        "efa_installer.sh": ((HERE / "efa_installer.sh").read_bytes(), 0o755),
    }


def build(system: str, directory: Path) -> Path:
    """Write the archive of the pinned release into ``directory``, and beside it a file with its sum."""
    table = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    version = table["stack"]["efa_installer"]
    installer = table["installers"][version]
    files = layout(system, version, installer, installer["packages"])
    archive = tar({f"aws-efa-installer/{name}": content for name, content in files.items()})
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"aws-efa-installer-{version}.tar.gz"
    # Stored, not compressed: what zlib makes differs by version, and the sum must not.
    path.write_bytes(gzip.compress(archive, compresslevel=0, mtime=0))
    path.with_name("sha256").write_text(hashlib.sha256(path.read_bytes()).hexdigest())
    return path


def main(arguments: Iterable[str]) -> None:
    system, directory = arguments
    print(build(system, Path(directory)))


if __name__ == "__main__":
    main(sys.argv[1:])
