"""What an image is made of, as a bill of materials in CycloneDX: packages, models, and their licences."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.dependency import Dependency
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from ingot.verify.rows import Row, held, some

LICENCES = LicenseFactory()
#: Of which other tools would make one expression, and cannot.
SEVERAL = ", "


def document(image_id: str, inside: Mapping[str, Any], licences: Mapping[str, str]) -> str:
    """The bill of materials, JSON. The same image gives the same text.

    ``inside`` as playbooks/files/evidence.py tells it; ``licences`` are those of models, by their ids.
    """
    manifest = inside["manifest"]
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"ingot:{image_id}"))
    bom.metadata.timestamp = datetime.fromisoformat(manifest["created"])
    root = Component(
        name=manifest["name"],
        version=manifest["commit"],
        type=ComponentType.OPERATING_SYSTEM,
        description=inside["os"],
        bom_ref=image_id,
        properties=[Property(name="ingot:image", value=manifest["image"])],
    )
    bom.metadata.component = root
    for component in (*_debian(inside), *_python(inside), *_models(manifest, inside, licences)):
        bom.components.add(component)
    bom.dependencies.add(Dependency(root.bom_ref, [Dependency(part.bom_ref) for part in bom.components]))
    output = JsonV1Dot6(bom).output_as_string()
    return json.dumps(json.loads(output), indent=1, sort_keys=True) + "\n"


def _debian(inside: Mapping[str, Any]) -> Iterator[Component]:
    distribution = str(inside["os"]).partition(" ")[0].lower()
    for name, of in inside["debian"].items():
        purl = PackageURL("deb", distribution, name, of["version"], {"arch": of["architecture"]})
        yield _component(name, of["version"], purl, of["licence"])


def _python(inside: Mapping[str, Any]) -> Iterator[Component]:
    """A distribution that two environments have is there twice."""
    for venv, of in inside["python"].items():
        for name, found in of["distributions"].items():
            purl = PackageURL("pypi", None, name, found["version"])
            component = _component(name, found["version"], purl, found["licence"], prefix=f"{venv}/")
            component.properties.add(Property(name="ingot:environment", value=venv))
            yield component


def _models(
    manifest: Mapping[str, Any], inside: Mapping[str, Any], licences: Mapping[str, str]
) -> Iterator[Component]:
    for model, files in inside["weights"].items():
        owner, _, name = model.rpartition("/")
        revision = str(manifest["facts"]["model_store"][model].get("revision", ""))
        purl = PackageURL("huggingface", owner or None, name, revision)
        component = _component(model, revision, purl, licences.get(model, ""))
        component.type = ComponentType.MACHINE_LEARNING_MODEL
        for file, digest in files.items():
            component.components.add(
                Component(
                    name=file,
                    type=ComponentType.FILE,
                    bom_ref=f"{purl}#{file}",
                    hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
                )
            )
        yield component


def _component(name: str, version: str, purl: PackageURL, licence: str, prefix: str = "") -> Component:
    component = Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        purl=purl,
        bom_ref=f"{prefix}{purl}",
    )
    # An expression is one licence to CycloneDX, and can stand beside no other.
    for part in filter(None, [licence] if SEVERAL not in licence else licence.split(SEVERAL)):
        several = SEVERAL in licence
        component.licenses.add(LICENCES.make_with_name(part) if several else LICENCES.make_from_string(part))
    return component


def row(inside: Mapping[str, Any]) -> Row:
    """Whether all of it can be named. What has no licence is told, and is for a person to look up."""
    parts = [*_debian(inside), *_python(inside), *_models(inside["manifest"], inside, {})]
    nameless = [str(part.name) for part in parts if str(part.version) in ("", "None")]
    unknown = [str(part.name) for part in parts if not part.licenses]
    kinds = {"deb": "packages", "pypi": "Python distributions", "huggingface": "models"}
    counted = [
        f"{sum(str(part.purl).startswith(f'pkg:{kind}/') for part in parts)} {word}"
        for kind, word in kinds.items()
    ]
    evidence = (
        f"{', '.join(counted)}; no licence in the metadata of {len(unknown)}: {some(unknown, 5) or 'none'}"
    )
    if nameless:
        evidence = f"without a version: {some(nameless)}"
    return held("sbom", not nameless, evidence, "each component has a name and a version")
