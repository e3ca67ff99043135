"""The table of images, ``packer/images.yml``: its schema, and what it refuses by name.

Packer and Ansible read the same file on their own; what is checked about it is here, for playbooks/image.yml
and for everything else that asks which image has which roles.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from ansible.module_utils.common.dict_transformations import camel_dict_to_snake_dict
from pydantic import Field, model_validator

from ingot import instance_types
from ingot.checkout import ROOT
from ingot.preflight import ami, drivers, fit, nccl, neuron, variables
from ingot.preflight.fit import GIB
from ingot.preflight.refusal import Refusal
from ingot.table import Strict, TableError, read

TABLE = ROOT / "packer" / "images.yml"

#: The role that cleans, verifies and seals: nothing may be written to the image after it.
LAST_ROLE = "image_hygiene"

#: The roles that bring an accelerator's driver, each called like it.
ACCELERATOR_ROLES = ("nvidia", "neuron")
#: What asks whether the set that such a role installs is right for the image's instance types.
SETS = {"nvidia": drivers.refusals, "neuron": neuron.refusals}
#: The role that installs EFA's libraries, which must go together.
NETWORK_ROLE = "nccl_efa"

#: What playbooks/image.yml itself reads: Packer passes it, or the inventory of images has it.
PLAYBOOK_VARIABLES = frozenset({"image_build", "image_canary_file"})

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
Architecture = Literal["x86_64", "arm64"]  # EC2's words
AmiName = Annotated[str, Field(min_length=3)]


class Base(Strict):
    """An AMI that images start from; its ``name`` is another for each architecture."""

    owner: Annotated[str, Field(pattern=r"^([0-9]{12}|amazon|self)$")]
    name: Annotated[dict[Architecture, AmiName], Field(min_length=1)]
    user: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]*$")]
    root_device: Annotated[str, Field(pattern=r"^/dev/[a-z0-9]+$")]


class Volume(Strict):
    """The root volume, gp3. ``size`` and ``minimum`` in GiB, ``throughput`` in MiB/s."""

    size: Annotated[int, Field(ge=1, le=16384)]
    minimum: Annotated[int, Field(ge=1)]
    throughput: Annotated[int, Field(ge=125, le=2000)]
    iops: Annotated[int, Field(ge=3000, le=80000)]

    @model_validator(mode="after")
    def _consistent(self) -> Volume:
        if self.size < self.minimum:
            raise ValueError(f"size {self.size} is less than minimum {self.minimum}")
        if self.throughput * 4 > self.iops:
            raise ValueError(f"throughput {self.throughput} needs iops of at least {self.throughput * 4}")
        return self


class Image(Strict):
    """One image: what it is built from, on, and with which roles."""

    description: Annotated[str, Field(min_length=1, max_length=120)]
    architecture: Architecture
    core: Literal["", "neoverse-v1", "neoverse-v2", "x86-64-v3", "x86-64-v4"] = ""
    accelerator: Literal["", "nvidia", "neuron"] = ""
    bases: Annotated[list[Name], Field(min_length=1)]
    instance_type: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*\.[a-z0-9-]+$")]
    volume: Volume
    groups: Annotated[list[Name], Field(min_length=1)]
    roles: Annotated[list[Name], Field(min_length=1)]

    @model_validator(mode="after")
    def _role_order(self) -> Image:
        doubled = sorted({role for role in self.roles if self.roles.count(role) > 1})
        if doubled:
            raise ValueError(f"roles listed twice: {', '.join(doubled)}")
        if self.roles[-1] != LAST_ROLE:
            raise ValueError(f"the last role must be {LAST_ROLE}, not {self.roles[-1]}")
        return self

    @model_validator(mode="after")
    def _has_its_driver(self) -> Image:
        brought = [role for role in self.roles if role in ACCELERATOR_ROLES]
        if brought != ([self.accelerator] if self.accelerator else []):
            raise ValueError(
                f"accelerator is {self.accelerator or 'not set'}, and of the roles that bring a driver there"
                f" is {' and '.join(brought) or 'none'}: name in accelerator the one that there is"
            )
        return self


class Catalog(Strict):
    """All images by name, and what they start from."""

    bases: dict[Name, Base]
    images: Annotated[dict[Name, Image], Field(min_length=1)]

    @model_validator(mode="after")
    def _bases_are_there(self) -> Catalog:
        for name, image in self.images.items():
            for base in image.bases:
                if image.architecture not in (self.bases[base].name if base in self.bases else {}):
                    raise ValueError(
                        f"image {name} starts from {base}, which bases has not for {image.architecture}"
                    )
        return self

    @property
    def cores(self) -> dict[str, str]:
        """What each image is compiled for."""
        return {name: image.core for name, image in self.images.items()}


def of_groups(groups: Iterable[str]) -> tuple[str, Image] | None:
    """The image that a node of these groups was made from, and its name."""
    there = set(groups)
    return next(((name, one) for name, one in load().images.items() if there.issuperset(one.groups)), None)


def load(path: Path | None = None) -> Catalog:
    """Read the table, the repository's own unless another is given.

    Raises:
        TableError: it cannot be read, or has a field that is unknown, missing or wrong; each is named.
    """
    return read(path or TABLE, Catalog)


def check_catalog(path: Path | None = None) -> list[Refusal]:
    """The table can be read and has no field that nothing knows."""
    try:
        load(path)
    except TableError as error:
        return [Refusal("bad-image-table", error.why, error.do)]
    return []


def check_image(name: str, catalog: Catalog, roles: Path) -> list[Refusal]:
    """The table has that image, the repository every role of it, and its builder the core."""
    if name not in catalog.images:
        return [
            Refusal(
                "unknown-image",
                f"packer/images.yml has no image {name!r}",
                f"Name one of {', '.join(sorted(catalog.images))}, or add it to the table",
            )
        ]
    image = catalog.images[name]
    known = sorted(path.parent.parent.name for path in roles.glob("*/tasks/install.yml"))
    builder = f"its builder {image.instance_type}"
    refusals = fit.check_core(builder, image.instance_type, name, image.core, catalog.cores)
    for role in image.roles:
        if role in known:
            continue
        near = difflib.get_close_matches(role, known, n=1)
        refusals.append(
            Refusal(
                "unknown-role",
                f"image {name} lists the role {role!r}, but there is no {roles / role}/tasks/install.yml",
                f"Write {near[0]!r} if that is meant" if near else f"Known roles: {', '.join(known)}",
            )
        )
    return refusals


def check_compiled_for(name: str, core: str, given: Mapping[str, Any]) -> list[Refusal]:
    """The bake compiles for the core that the table says, which becomes the tag that launch.yml goes by."""
    compiled_for = str(given.get("vllm_mcpu", "")) if given.get("vllm_method") == "source" else ""
    if compiled_for == core or (compiled_for and not instance_types.families_for(compiled_for)):
        return []  # a core that nothing has is no value of the role, which says what it takes
    would = f"compiled for {compiled_for} (vllm_mcpu)" if compiled_for else "its own wheel (vllm_method)"
    return [
        Refusal(
            "image-core-differs",
            f"packer/images.yml has {core or 'no core'} for the image {name}, and vLLM would be {would}",
            "Make both alike, in that table (core) or in the inventory of the image",
        )
    ]


def refusals(name: str, given: Mapping[str, Any], root: Path = ROOT) -> list[Refusal]:
    """Everything that speaks against baking the image ``name`` with the variables ``given``."""
    path = root / "packer" / "images.yml"
    roles = root / "roles"
    if found := check_catalog(path):
        return found
    options = variables.role_options(roles)
    playbooks = variables.playbook_options(root / variables.DOCUMENTED)
    catalog = load(path)
    if found := check_image(name, catalog, roles):
        return found
    return [
        *variables.check_variables(given, options, playbooks | PLAYBOOK_VARIABLES),
        *check_compiled_for(name, catalog.images[name].core, given),
        *(
            refusal
            for role, ask in SETS.items()
            if role in catalog.images[name].roles
            for refusal in ask(given, catalog.images[name].instance_type)
        ),
        *(nccl.refusals(given) if NETWORK_ROLE in catalog.images[name].roles else []),
    ]


def base_query(
    base: Base, architecture: Architecture, image_id: str = "", *, exact: bool = True
) -> dict[str, Any]:
    """How DescribeImages is asked for the AMIs that are this base, as Packer asks.

    Without ``exact`` by owner and name alone, to say why none of them will do.
    """
    filters = {"image-id": image_id} if image_id else {"name": base.name[architecture]}
    if exact:
        filters |= {
            "architecture": architecture,
            "root-device-name": base.root_device,
            "root-device-type": "ebs",
            "virtualization-type": "hvm",
        }
    owners = [base.owner, "self"] if image_id else [base.owner]
    return {
        "Owners": owners,
        "Filters": [{"Name": name, "Values": [value]} for name, value in filters.items()],
    }


def base_of(found: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The newest of DescribeImages' answer, which Packer takes; its fields by the names of ``check_ami``."""
    newest = max(found, key=lambda one: str(one.get("CreationDate", "")), default=None)
    return None if newest is None else dict(camel_dict_to_snake_dict(dict(newest)))


def base_refusals(
    name: str, catalog: Catalog, ask: Callable[..., Mapping[str, Any]], image_id: str = "", base: str = ""
) -> tuple[dict[str, Any] | None, list[Refusal]]:
    """The AMI that a bake of the image ``name`` would start from, and what speaks against it.

    ``ask`` is DescribeImages, such as a client's ``describe_images``; ``base`` one of the image's bases,
    its first where that is empty.
    """
    image = catalog.images[name]
    if base and base not in image.bases:
        why = f"image {name} does not start from {base!r}"
        return None, [Refusal("unknown-base", why, f"Name one of {', '.join(image.bases)}")]
    start = catalog.bases[base or image.bases[0]]
    found = base_of(ask(**base_query(start, image.architecture, image_id))["Images"]) or base_of(
        ask(**base_query(start, image.architecture, image_id, exact=False))["Images"]
    )
    if found is None:
        return None, [
            Refusal(
                "no-base-image",
                f"image {name} starts from {image_id or start.name[image.architecture]} of account"
                f" {start.owner}, and this region has none",
                "Set AWS_REGION to a region that has it, or correct bases in packer/images.yml",
            )
        ]
    own = bool(image_id)  # one's last image may be the base, too
    return found, ami.check_ami(
        found,
        architecture=image.architecture,
        owner="" if own else start.owner,
        root_device=start.root_device,
        volume_gib=image.volume.size,
    )


def check_volume(host: str, size: int, weights: int) -> list[Refusal]:
    """The root volume, of ``size`` bytes, holds the system, the environment and these weights."""
    needed = fit.disk_needed(weights)
    if size >= needed:
        return []
    return [
        Refusal(
            "volume-too-small",
            f"the root volume of {host} has {size / GIB:.1f} GiB, {needed / GIB:.1f} GiB are needed"
            f" (system, virtual environment, {weights / GIB:.1f} GiB of weights, and some to spare)",
            f"Bake with a larger one: packer build -var volume_size={-(-needed // GIB)}",
        )
    ]


def check_packer(found: str, minimum: str) -> list[Refusal]:
    """``found`` is what ``packer version`` says; the templates need ``minimum``."""
    match = re.search(r"v?(\d+)\.(\d+)\.(\d+)", found)
    if match and tuple(map(int, match.groups())) >= tuple(int(part) for part in minimum.split(".")):
        return []
    have = match.group(0) if match else repr(found)
    return [
        Refusal(
            "packer-too-old",
            f"Packer is {have}, the templates need {minimum} or newer",
            "Install a newer one, or let `make setup` build the pinned one",
        )
    ]
