"""Refusals: everything that can be known to fail is refused by name before anything is changed.

Each check takes plain data and returns the refusals it found, none when all is well, so that a person sees all of
them at once. The faces are the filters of ``plugins/filter/ingot_preflight.py`` and ``ingot rehearse``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ingot import instance_types

REPOSITORY = Path(__file__).resolve().parents[2]
GIB = 1 << 30

SERVING_MODES = ("ray_serve", "vllm")
UNITS = frozenset(
    f"{name}.service" for name in ("ray-head", "ray-worker", "vllm", "ingot-serve", "haproxy")
)
"""The units that Ingot runs: a port that one of them holds is not taken by somebody else."""

MINIMUM_KEY_LENGTH = 16
PLACEHOLDER = re.compile(
    r"change[-_ ]?me|replace[-_ ]?(me|this)|your[-_ ]?(api[-_ ]?)?key|example|placeholder|secret|password"
    r"|^(sk-)?x+$|\.\.\.|<.*>|(?P<same>.)(?P=same){7,}|^(sk-)?(test|key|token|dummy)",
    re.IGNORECASE,
)
MODEL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")


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


# --- the inventory ------------------------------------------------------------------------------------------------


def check_topology(
    groups: Mapping[str, Sequence[str]], image_groups: Iterable[str], cluster: str
) -> list[Refusal]:
    """One head, the head is the gateway, and every node says which image it was made from."""
    heads = list(groups.get("ray_head", []))
    workers = list(groups.get("ray_worker", []))
    if not heads and not workers:
        return [
            Refusal(
                "no-nodes",
                f"the inventory has no running node of cluster {cluster!r}",
                "Launch it (ansible-playbook playbooks/launch.yml), or name another with INGOT_CLUSTER, and check"
                " that AWS_REGION is the region it runs in",
            )
        ]
    refusals = []
    if not heads:
        refusals.append(
            Refusal(
                "no-head",
                f"no node is in group ray_head ({len(workers)} in ray_worker)",
                "Tag exactly one instance ingot:role=head, or put one host into ray_head in a static inventory",
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
    known = sorted(image_groups)
    placed = {host for group in known for host in groups.get(group, [])}
    for host in sorted({*heads, *workers} - placed):
        refusals.append(
            Refusal(
                "no-image-group",
                f"{host} is in none of the image groups ({', '.join(known)})",
                "Tag the instance ingot:image=<image>, or put the host into that group in a static inventory",
            )
        )
    return refusals


# --- variables ----------------------------------------------------------------------------------------------------


def role_options(roles: Path = REPOSITORY / "roles") -> dict[str, frozenset[str]]:
    """The options of every role, from its argument specification."""
    options = {}
    for spec in sorted(roles.glob("*/meta/argument_specs.yml")):
        entries = yaml.safe_load(spec.read_text(encoding="utf-8"))["argument_specs"]
        options[spec.parent.parent.name] = frozenset(
            name for entry in entries.values() for name in entry.get("options", {})
        )
    return options


def playbook_options(defaults: Path = REPOSITORY / "inventories/aws/group_vars/all.yml") -> frozenset[str]:
    """The variables that the playbooks read: those that the AWS inventory documents."""
    return frozenset(yaml.safe_load(defaults.read_text(encoding="utf-8")))


def check_variables(
    names: Iterable[str], roles: Mapping[str, frozenset[str]], playbooks: frozenset[str]
) -> list[Refusal]:
    """No variable that looks like one of ours and is none: a mistyped name would be ignored without a word."""
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
                f"the key in {path} has characters that an Authorization header cannot carry (or several lines)",
                make,
            )
        ]
    if path.stat().st_mode & 0o077:
        return [Refusal("readable-api-key", f"{path} can be read by others", f"Run: chmod 600 {path}")]
    return []


def check_model_id(model: str, catalog: Iterable[str]) -> list[Refusal]:
    """The id stays within the model store, and we know its weights."""
    if not MODEL_ID.fullmatch(model) or ".." in model:
        return [
            Refusal(
                "model-id-escapes",
                f"{model!r} is no model id: as a path it could leave the model store",
                "Write it as <organisation>/<name>, letters, digits, dot, dash and underscore only",
            )
        ]
    names = list(catalog)
    if model in names:
        return []
    near = difflib.get_close_matches(model, names, n=1, cutoff=0.5)
    return [
        Refusal(
            "unknown-model",
            f"the catalogue (files/models.yml) has no model {model!r}",
            f"Write {near[0]!r} if that is meant" if near else "Add it there with the hashes of its files",
        )
    ]


# --- nodes and instance types -------------------------------------------------------------------------------------


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
            "Launch the node from an Ingot image, or install a newer Python and set ansible_python_interpreter",
        )
    ]


def check_memory(what: str, memory: int, needed: int, model: str) -> list[Refusal]:
    if memory >= needed:
        return []
    return [
        Refusal(
            "model-does-not-fit",
            f"{what} has {memory / GIB:.1f} GiB of memory, {model} needs {needed / GIB:.1f} GiB"
            " (weights, KV cache and overhead)",
            "Choose a larger instance type or a smaller model",
        )
    ]


def check_disk(what: str, free: int, needed: int, parts: str) -> list[Refusal]:
    if free >= needed:
        return []
    return [
        Refusal(
            "disk-too-small",
            f"{what} has {free / GIB:.1f} GiB free on disk, {needed / GIB:.1f} GiB are needed ({parts})",
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
    if cidr in ("0.0.0.0/0", "::/0"):
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
            "Install a newer one, or let `make packer` build the pinned one",
        )
    ]


# --- what a node says of itself -----------------------------------------------------------------------------------


def parse_probe(text: str) -> dict[str, Any]:
    """Read the answer of ``playbooks/files/probe.sh``: lines of ``key value``; ``port`` may come several times."""
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


# --- the faces: everything that speaks against a launch, a cluster, a node ----------------------------------------


def variable_refusals(variables: Mapping[str, Any]) -> list[Refusal]:
    """Names that nothing reads, and names that the playbooks read and nobody set."""
    needed = playbook_options()
    return [*check_variables(variables, role_options(), needed), *check_missing(variables, needed)]


def launch_refusals(
    variables: Mapping[str, Any], images: Sequence[Mapping[str, Any]], subnets: Sequence[Mapping[str, Any]]
) -> list[Refusal]:
    """``images`` and ``subnets`` are what EC2 found for what was asked."""
    if refusals := variable_refusals(variables):
        return refusals  # the rest reads them
    type_name = str(variables["launch_instance_type"])
    refusals = [
        *check_cidr("launch_ssh_cidr", variables["launch_ssh_cidr"]),
        *check_cidr("launch_client_cidr", variables["launch_client_cidr"]),
        *check_instance_type(type_name),
        *check_model_id(variables["serving_model_id"], models.catalog()),
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
    return [
        *check_architecture(f"instance type {type_name}", chosen.arch, image["image_id"], image["architecture"]),
    ]
