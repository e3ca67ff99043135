"""Refusals: everything that can be known to fail is refused by name before anything is changed.

Each check takes plain data and returns the refusals it found, none when all is well, so that a person sees
all of them at once. The filters of ``ingot.filters`` and ``ingot rehearse`` call them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from ingot import instance_types, models, sizing, values

REPOSITORY = Path(__file__).resolve().parents[2]
CATALOG = REPOSITORY / "files" / "models.yml"
MODELS = "/opt/ingot/models"
DOCUMENTED = "inventories/aws/group_vars/all.yml"
GIB = 1 << 30

# Disk, as measured on the x86 image: the system after the bake, and the virtual environment with bytecode.
SYSTEM_BYTES = 3 * GIB
VENV_BYTES = 4 * GIB
SPARE = 1.2  # of weights: a download next to what it replaces, and caches
SPARE_BYTES = GIB  # journal, compile caches

SERVING_MODES = ("ray_serve", "vllm")
UNITS = frozenset(f"{name}.service" for name in ("ray-head", "ray-worker", "vllm", "ingot-serve", "haproxy"))
"""The units that Ingot runs: a port that one of them holds is not taken by somebody else."""

MINIMUM_KEY_LENGTH = 16
PLACEHOLDER = re.compile(
    r"change[-_ ]?me|replace[-_ ]?(me|this)|your[-_ ]?(api[-_ ]?)?key|example|placeholder|secret|password"
    r"|^(sk-)?x+$|\.\.\.|<.*>|(?P<same>.)(?P=same){7,}|^(sk-)?(test|key|token|dummy)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Refusal:
    """What is refused (``name`` is stable, for tests and for looking it up), why, and what to do about it."""

    name: str
    why: str
    do: str

    def __str__(self) -> str:
        return f"{self.name}: {self.why}.\n    {self.do}."


def report(refusals: Iterable[Refusal]) -> str:
    """What the person reads. The same thing found on several hosts arrives as several refusals."""
    lines = [str(refusal) for refusal in refusals]
    count = "One thing stands" if len(lines) == 1 else f"{len(lines)} things stand"
    return "\n".join([f"Refused: {count} in the way. Nothing was changed.", *lines])


# --- the inventory ------------------------------------------------------------------------------------------


def check_topology(
    groups: Mapping[str, Sequence[str]], images: Mapping[str, Sequence[str]], cluster: str
) -> list[Refusal]:
    """One head, the head is the gateway, and every node says which image it was made from.

    ``images`` has each image's groups: a node is in all groups of one image, and of no other.
    """
    heads = list(groups.get("ray_head", []))
    workers = list(groups.get("ray_worker", []))
    if not heads and not workers:
        return [
            Refusal(
                "no-nodes",
                f"the inventory has no running node of cluster {cluster!r}",
                "Launch it (ansible-playbook playbooks/launch.yml), or name another with INGOT_CLUSTER;"
                " AWS_REGION must be the region it runs in",
            )
        ]
    refusals = []
    if not heads:
        refusals.append(
            Refusal(
                "no-head",
                f"no node is in group ray_head ({len(workers)} in ray_worker)",
                "Tag exactly one instance ingot:role=head, or put one host into ray_head (static inventory)",
            )
        )
    if len(heads) > 1:
        refusals.append(
            Refusal(
                "two-heads",
                f"group ray_head has {len(heads)} nodes: {', '.join(heads)}",
                "Keep one: tag the others ingot:role=worker, or run the two clusters under two names",
            )
        )
    for host in sorted(set(heads) & set(workers)):
        refusals.append(
            Refusal(
                "head-is-worker",
                f"{host} is in ray_head and in ray_worker",
                "Leave it in ray_head only: the head serves a replica as well",
            )
        )
    gateways = list(groups.get("gateway", []))
    if heads and gateways != heads:
        refusals.append(
            Refusal(
                "gateway-not-head",
                f"group gateway is {gateways or 'empty'}, the head is {heads}",
                "Make `gateway` a group whose only child is ray_head, as inventories/example does",
            )
        )
    for host in sorted({*heads, *workers}):
        made_from = [
            name
            for name, wanted in sorted(images.items())
            if all(host in groups.get(group, []) for group in wanted)
        ]
        if not made_from:
            choices = "; ".join(f"{name}: {', '.join(wanted)}" for name, wanted in sorted(images.items()))
            refusals.append(
                Refusal(
                    "no-image-group",
                    f"{host} is not in all groups of any image ({choices})",
                    "Tag the instance ingot:image=<image>, or, in a static inventory, put the host into them",
                )
            )
        if len(made_from) > 1:
            refusals.append(
                Refusal(
                    "two-images",
                    f"{host} is in the groups of {' and '.join(made_from)}",
                    "Leave it in those of the image that it was launched from",
                )
            )
    return refusals


# --- variables ----------------------------------------------------------------------------------------------


def role_options(roles: Path = REPOSITORY / "roles") -> dict[str, frozenset[str]]:
    """The options of every role, from its argument specification."""
    return {role: frozenset(options) for role, options in _specified(roles).items()}


def public_role_options(roles: Path = REPOSITORY / "roles") -> frozenset[str]:
    """The options of all roles that are no secrets."""
    return frozenset(
        name
        for options in _specified(roles).values()
        for name, option in options.items()
        if not option.get("no_log")
    )


def _specified(roles: Path) -> dict[str, dict[str, dict[str, Any]]]:
    found = {}
    for spec in sorted(roles.glob("*/meta/argument_specs.yml")):
        entries = yaml.safe_load(spec.read_text(encoding="utf-8"))["argument_specs"]
        found[spec.parent.parent.name] = {
            name: option for entry in entries.values() for name, option in entry.get("options", {}).items()
        }
    return found


def playbook_options(defaults: Path = REPOSITORY / DOCUMENTED) -> frozenset[str]:
    """The variables that the playbooks read: those that the AWS inventory documents."""
    return frozenset(yaml.safe_load(defaults.read_text(encoding="utf-8")))


def check_variables(
    names: Iterable[str], roles: Mapping[str, frozenset[str]], playbooks: frozenset[str]
) -> list[Refusal]:
    """No variable looks like one of ours and is none: a mistyped name would be ignored without a word."""
    known = playbooks.union(*roles.values()) if roles else playbooks
    prefixes = {f"{role}_" for role in roles} | {"launch_", "destroy_", "ingot_"}
    refusals = []
    for name in sorted(set(names) - known):
        if name.startswith(("ansible_", "ec2_", "__", "packer_")):
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
        owner = next((prefix for prefix in prefixes if name.startswith(prefix)), None)
        # Without one of our prefixes it is the person's own variable, unless it is all but one of ours.
        if owner is None and not difflib.get_close_matches(name, known, n=1, cutoff=0.9):
            continue
        refusals.append(
            Refusal(
                "unknown-variable",
                f"nothing reads the variable {name!r}",
                f"Write {near[0]!r} if that is meant"
                if near
                else "Remove it; the README of each role lists what it reads",
            )
        )
    return refusals


def check_missing(names: Iterable[str], needed: Iterable[str]) -> list[Refusal]:
    """Every variable that the playbooks read is there."""
    return [
        Refusal(
            "missing-variable",
            f"the inventory does not set {name!r}",
            "Take it over from inventories/aws/group_vars/all.yml, where each is explained",
        )
        for name in sorted(set(needed) - set(names))
    ]


def check_serving_mode(mode: str) -> list[Refusal]:
    if mode in SERVING_MODES:
        return []
    return [
        Refusal(
            "unknown-serving-mode",
            f"serving_mode is {mode!r}",
            f"Set it to one of {', '.join(SERVING_MODES)}",
        )
    ]


def check_api_key(path: Path) -> list[Refusal]:
    """The file holds a key that nobody could guess. The key itself is never part of a message."""
    make = f"Make one: (umask 077; mkdir -p {path.parent}; openssl rand -hex 32 > {path})"
    try:
        key = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return [Refusal("no-api-key", f"the file with the API key, {path}, does not exist", make)]
    except (OSError, UnicodeDecodeError) as error:
        return [Refusal("no-api-key", f"the file with the API key, {path}, cannot be read ({error})", make)]
    if not key:
        return [Refusal("empty-api-key", f"{path} is empty", make)]
    if PLACEHOLDER.search(key):
        return [Refusal("placeholder-api-key", f"the key in {path} is a placeholder", make)]
    if len(key) < MINIMUM_KEY_LENGTH:
        return [
            Refusal(
                "short-api-key",
                f"the key in {path} has {len(key)} characters, fewer than {MINIMUM_KEY_LENGTH}",
                make,
            )
        ]
    if not re.fullmatch(r"[A-Za-z0-9._~+/=-]+", key):
        return [
            Refusal(
                "unusable-api-key",
                f"the key in {path} has characters that no Authorization header carries (or several lines)",
                make,
            )
        ]
    if path.stat().st_mode & 0o077:
        return [Refusal("readable-api-key", f"{path} can be read by others", f"Run: chmod 600 {path}")]
    return []


def check_model_id(model: str, catalog: models.Catalog) -> list[Refusal]:
    """The id stays within the model store, and the catalogue knows its weights."""
    try:
        models.check_model_id(model)
    except models.ModelError as error:
        return [
            Refusal(
                "model-id-escapes",
                str(error),
                "Write it as <owner>/<name>, letters, digits, dot, dash and underscore only",
            )
        ]
    if model in catalog.models:
        return []
    near = difflib.get_close_matches(model, catalog.models, n=1, cutoff=0.5)
    return [
        Refusal(
            "unknown-model",
            f"the catalogue of models has no {model!r}",
            f"Write {near[0]!r} if that is meant"
            if near
            else f"Make its entry in files/models.yml with: ingot models lock {model}",
        )
    ]


# --- nodes and instance types -------------------------------------------------------------------------------


def check_architecture(what: str, found: str, image: str, wanted: str) -> list[Refusal]:
    """``found`` and ``wanted`` in EC2's words; the kernel's own ``aarch64`` is understood."""
    if {"aarch64": "arm64"}.get(found, found) == wanted:
        return []
    return [
        Refusal(
            "architecture-differs",
            f"{what} is {found}, image {image} is {wanted}",
            f"Choose an instance type of architecture {wanted}, or an image built for {found}",
        )
    ]


def check_ami(
    image: Mapping[str, Any],
    *,
    architecture: str = "",
    owner: str = "",
    root_device: str = "",
    volume_gib: int = 0,
    imdsv2_only: bool = False,
    now: datetime | None = None,
) -> list[Refusal]:
    """What speaks against an AMI, from DescribeImages' answer (names as the Ansible modules give them).

    Args:
        image: the answer's entry.
        architecture: in EC2's words, where it must be a certain one.
        owner: account that it must belong to, or EC2's alias for one, such as ``amazon``.
        root_device: name that its root device must have.
        volume_gib: size of the root volume that is asked for; the image's own must not be larger.
        imdsv2_only: whether its instances must refuse version 1 of the metadata service.
        now: when to hold deprecation against.
    """
    what = f"{image['image_id']} ({image.get('name', 'without a name')})"
    found = str(image.get("architecture", ""))
    boot_mode = str(image.get("boot_mode") or "")
    kinds = (str(image.get("root_device_type", "")), str(image.get("virtualization_type", "")))
    root = str(image.get("root_device_name", ""))
    size = max((int((d.get("ebs") or {}).get("volume_size") or 0) for d in _devices(image, root)), default=0)
    owners = {str(image.get("owner_id", "")), str(image.get("image_owner_alias", ""))}
    deprecated = str(image.get("deprecation_time") or "")
    newer = "Take a newer image, or correct the name and owner in packer/images.yml"
    refusals = []

    def refuse(name: str, why: str, do: str) -> None:
        refusals.append(Refusal(name, f"{what} {why}", do))

    if (state := str(image.get("state", ""))) != "available":
        refuse(
            "ami-not-available",
            f"is {state or 'in no known state'}",
            "Wait until it is available, or take another",
        )
    if architecture and found != architecture:
        refuse("ami-architecture", f"is {found or 'of no architecture'}, {architecture} is needed", newer)
    if owner and owner not in owners:
        refuse(
            "ami-foreign-owner",
            f"belongs to {' '.join(sorted(filter(None, owners))) or 'nobody'}, not to {owner}",
            "Anybody can publish an image under any name: take that of the account in packer/images.yml",
        )
    if deprecated and datetime.fromisoformat(deprecated) <= (now or datetime.now(UTC)):
        refuse("ami-deprecated", f"is deprecated since {deprecated[:10]}: nobody mends it any more", newer)
    if kinds != ("ebs", "hvm"):
        refuse("ami-kind", f"is {kinds[0] or '?'}, {kinds[1] or '?'}; a bake needs ebs and hvm", newer)
    if found == "arm64" and boot_mode == "legacy-bios":
        refuse("ami-boot-mode", "boots by legacy-bios, which no arm64 instance does", newer)
    if not image.get("ena_support"):
        refuse(
            "ami-no-ena",
            "has no ENA support, without which no current instance type has a network",
            newer,
        )
    if root_device and root != root_device:
        refuse(
            "ami-root-device",
            f"has its root on {root or 'no device'}, packer/images.yml says {root_device}: a second volume"
            " would appear under that name and the root stay small",
            f"Write root_device: {root} there" if root else newer,
        )
    if volume_gib and size > volume_gib:
        refuse(
            "ami-root-too-large",
            f"has a root volume of {size} GiB, {volume_gib} GiB are asked for",
            f"Ask for {size} GiB or more",
        )
    if imdsv2_only and image.get("imds_support") != "v2.0":
        refuse(
            "ami-imdsv1",
            "lets its instances answer version 1 of the metadata service",
            f"aws ec2 modify-image-attribute --image-id {image['image_id']} --imds-support v2.0",
        )
    return refusals


def _devices(image: Mapping[str, Any], root: str) -> Iterable[Mapping[str, Any]]:
    return [d for d in image.get("block_device_mappings", []) if d.get("device_name") == root]


def check_python(host: str, found: str, minimum: tuple[int, int], core: str) -> list[Refusal]:
    """Modules of this ansible-core run on the node's Python. ``found`` is ``3.13``, or empty."""
    need = ".".join(map(str, minimum))
    if not found:
        return [
            Refusal(
                "no-python",
                f"{host} has no /usr/bin/python3",
                f"Install python3 (>= {need}) there, or launch the node from an Ingot image",
            )
        ]
    if tuple(int(part) for part in found.split(".")[:2]) >= minimum:
        return []
    return [
        Refusal(
            "python-too-old",
            f"{host} has Python {found}; the modules of ansible-core {core} need {need} or newer",
            "Launch it from an Ingot image, or install a newer Python and set ansible_python_interpreter",
        )
    ]


def check_memory(
    what: str, host: sizing.Host, model_id: str, model: models.Model, serving: Mapping[str, Any]
) -> list[Refusal]:
    """Weights, KV cache and overhead against the memory; ``serving`` are the variables of that role."""
    try:
        sizing.size(
            host,
            sizing.Model(
                model_id=model_id,
                weight_bytes=model.shape.weight_bytes,
                layers=model.shape.layers,
                kv_heads=model.shape.kv_heads,
                head_dim=model.shape.head_dim,
                max_positions=model.shape.max_model_len,
                dtype=model.dtype,
            ),
            mode=serving["serving_mode"],
            # 0 is the role's word for "compute it"
            max_model_len=int(serving.get("serving_max_model_len", 0)) or None,
            max_num_seqs=int(serving.get("serving_max_num_seqs", 0)) or None,
            kv_cache_bytes=int(serving.get("serving_kv_cache_memory_bytes", 0)) or None,
        )
    except sizing.SizingError as error:
        why, _, helps = str(error).partition(" What helps: ")
        name = (
            "model-does-not-fit" if isinstance(error, sizing.ModelDoesNotFitError) else "sizing-contradicts"
        )
        do = helps.rstrip(".").capitalize() or "Correct that variable"
        return [Refusal(name, f"{what}: {why.rstrip('.')}", do)]
    return []


def disk_needed(weights: int) -> int:
    """Size of a root volume that holds the system, the environment and weights of this size."""
    return SYSTEM_BYTES + VENV_BYTES + SPARE_BYTES + int(weights * SPARE)


def check_disk(what: str, size: int, needed: int, parts: str) -> list[Refusal]:
    if size >= needed:
        return []
    return [
        Refusal(
            "disk-too-small",
            f"{what} has {size / GIB:.1f} GiB, {needed / GIB:.1f} GiB are needed ({parts})",
            "Set launch_volume_gib higher and launch again, or free space",
        )
    ]


def check_ports(host: str, wanted: Mapping[int, str], held: Iterable[Mapping[str, str]]) -> list[Refusal]:
    """``held`` has a record for each listening socket: port, process, unit."""
    refusals = []
    for record in held:
        port = int(record["port"])
        if port in wanted and record["unit"] not in UNITS:
            refusals.append(
                Refusal(
                    "port-taken",
                    f"port {port} of {host}, wanted by {wanted[port]}, is held by {record['process']}"
                    f" ({record['unit'] or 'no unit'})",
                    "Stop it there, or choose another port",
                )
            )
    return list(dict.fromkeys(refusals))


def check_instance_type(name: str) -> list[Refusal]:
    try:
        instance_types.get(name)
    except instance_types.UnknownInstanceType as error:
        return [
            Refusal(
                "unknown-instance-type",
                str(error),
                "Set launch_instance_type to one of files/instance-types.csv (a new type is one line there)",
            )
        ]
    return []


def check_cidr(name: str, cidr: str) -> list[Refusal]:
    """Who may reach the cluster is said, not assumed."""
    if not cidr:
        return [
            Refusal(
                "no-cidr",
                f"{name} is empty, so that nobody could reach the nodes",
                f"Set {name} to the network that you come from, such as your own address followed by /32",
            )
        ]
    if cidr in values.EVERYWHERE:
        return [
            Refusal(
                "open-to-the-world",
                f"{name} is {cidr}",
                "Name a network: a VPN's, an office's, or your own address followed by /32",
            )
        ]
    return []


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


# --- what a node says of itself -----------------------------------------------------------------------------


def parse_probe(text: str) -> dict[str, Any]:
    """Read the answer of ``playbooks/files/probe.sh``: a ``key value`` a line."""
    answer: dict[str, Any] = {"ports": [], "paths": []}
    for line in text.splitlines():
        key, _, value = line.strip().partition(" ")
        if key == "port":
            port, process, unit = (*value.split(" "), "", "")[:3]
            answer["ports"].append({"port": port, "process": process, "unit": unit})
        elif key == "path":
            answer["paths"].append(value)
        elif key:
            answer[key] = value
    return answer


# --- the faces: everything that speaks against a launch, a cluster, a node ----------------------------------


def variable_refusals(variables: Mapping[str, Any], *, launching: bool = True) -> list[Refusal]:
    """Names that nothing reads, and names that the playbooks read and nobody set.

    Without ``launching``, as with a static inventory, what only launch.yml reads may be absent.
    """
    known = playbook_options()
    needed = {
        name
        for name in known
        if launching or not (name.startswith("launch_") or name in ("ingot_ssh_key", "ingot_connect"))
    }
    known |= {"destroy_confirm"}  # of the command line only
    return [
        *check_variables(variables, role_options(), known),
        *check_missing(variables, needed),
        *check_values(variables),
    ]


def check_values(variables: Mapping[str, Any]) -> list[Refusal]:
    """Every value is of its kind and within its range."""
    return [
        Refusal("bad-value", f"{name} is {problem}", "Correct it; docs/variables.md says what it means")
        for name, problem in values.problems(variables).items()
    ]


def launch_refusals(
    variables: Mapping[str, Any], images: Sequence[Mapping[str, Any]], subnets: Sequence[Mapping[str, Any]]
) -> list[Refusal]:
    """``images`` and ``subnets`` are what EC2 found for what was asked."""
    if refusals := variable_refusals(variables):
        return refusals  # the rest reads them
    catalog = _catalog(variables)
    type_name = str(variables["launch_instance_type"])
    refusals = [
        *check_cidr("launch_ssh_cidr", variables["launch_ssh_cidr"]),
        *check_cidr("launch_client_cidr", variables["launch_client_cidr"]),
        *check_instance_type(type_name),
        *check_model_id(variables["serving_model_id"], catalog),
    ]
    if not subnets:
        refusals.append(
            Refusal(
                "no-subnet",
                f"there is no subnet {variables['launch_subnet_id'] or 'in a default VPC'}",
                "Set launch_subnet_id to one of this region (AWS_REGION)",
            )
        )
    if not images:
        asked = variables["launch_image_id"] or f"tagged ingot:image={variables['launch_image']}"
        refusals.append(
            Refusal(
                "no-image",
                f"this account has no image {asked} in this region",
                "Bake it (packer build packer/x86.pkr.hcl), or set launch_image_id",
            )
        )
    if refusals:
        return refusals
    image = max(images, key=lambda candidate: str(candidate["creation_date"]))
    if "ingot:image" not in image["tags"]:
        return [
            Refusal(
                "not-an-ingot-image",
                f"image {image['image_id']} ({image['name']}) has no tag ingot:image",
                "Bake one (packer build packer/x86.pkr.hcl) and launch that",
            )
        ]
    chosen = instance_types.get(type_name)
    model_id = variables["serving_model_id"]
    model = catalog.models[model_id]
    volume = int(variables["launch_volume_gib"]) * GIB
    image_volume = max(
        (int(device["ebs"].get("volume_size") or 0) for device in image["block_device_mappings"]), default=0
    )
    return [
        *check_ami(image, imdsv2_only=True),
        *check_architecture(
            f"instance type {type_name}", chosen.arch, image["image_id"], image["architecture"]
        ),
        *check_memory(
            f"instance type {type_name}",
            sizing.Host(chosen.vcpu, chosen.memory_bytes),
            model_id,
            model,
            variables,
        ),
        *check_disk(
            "launch_volume_gib", volume, image_volume * GIB, f"the image's own volume: {image['image_id']}"
        ),
        *check_disk(
            "launch_volume_gib",
            volume,
            disk_needed(model.size),
            f"system, virtual environment, {model_id}, and some to spare",
        ),
    ]


def cluster_refusals(variables: Mapping[str, Any], groups: Mapping[str, Sequence[str]]) -> list[Refusal]:
    """What speaks against configuring this cluster, as far as the controller alone can tell.

    ``variables`` maps each host of the inventory to its variables.
    """
    images = {name: image["groups"] for name, image in _images().items()}
    nodes = sorted({*groups.get("ray_head", []), *groups.get("ray_worker", [])})
    refusals: list[Refusal] = []
    for host in nodes or ["localhost"]:
        refusals += variable_refusals(variables[host], launching=False)
    if refusals:
        return list(dict.fromkeys(refusals))  # the rest reads them
    shared = variables[nodes[0] if nodes else "localhost"]
    key_file = Path(shared["ingot_api_key_file"])  # made, where it may be, once nothing is refused
    return [
        *check_topology(groups, images, shared["cluster_name"]),
        *check_serving_mode(shared["serving_mode"]),
        *(check_api_key(key_file) if key_file.exists() or not shared["ingot_api_key_generate"] else []),
        *check_model_id(shared["serving_model_id"], _catalog(shared)),
    ]


def node_refusals(
    probe: str,
    host: str,
    variables: Mapping[str, Any],
    ports: Mapping[str, str],
    minimum: Sequence[int],
    core: str,
) -> list[Refusal]:
    """What speaks against configuring one node, from its answer to ``playbooks/files/probe.sh``.

    ``ports`` maps each port that the node would listen on to who wants it.
    """
    answer = parse_probe(probe)
    model_id = variables["serving_model_id"]
    model = _catalog(variables).models[model_id]
    groups = variables["group_names"]
    image, wanted = next(
        (name, image["architecture"])
        for name, image in _images().items()
        if set(image["groups"]) & set(groups)
    )
    needed, parts = SPARE_BYTES, ["1 GiB to spare"]
    for path, size, part in (
        (f"{MODELS}/{model_id}", int(model.size * SPARE), model_id),
        ("/opt/ingot/venvs/vllm", VENV_BYTES, "virtual environment"),
    ):
        if path not in answer["paths"]:
            needed += size
            parts.append(part)
    return [
        *check_python(host, answer["python"], (minimum[0], minimum[1]), core),
        *check_architecture(host, answer["machine"], image, wanted),
        *check_memory(
            host, sizing.Host(int(answer["cores"]), int(answer["memory"])), model_id, model, variables
        ),
        *check_disk(
            f"free space on the root disk of {host}", int(answer["disk"]), needed, " and ".join(parts)
        ),
        *check_ports(host, {int(port): who for port, who in ports.items()}, answer["ports"]),
    ]


def _images() -> dict[str, Any]:
    # Not through ingot.images, which builds on this module.
    table: dict[str, Any] = yaml.safe_load((REPOSITORY / "packer/images.yml").read_text(encoding="utf-8"))
    return dict(table["images"])


def _catalog(variables: Mapping[str, Any]) -> models.Catalog:
    """The catalogue that the role model_store will use."""
    given = variables.get("model_store_catalog")
    return models.load_catalog(CATALOG) if given is None else models.parse_catalog(given)
