"""What speaks against configuring a cluster, as far as the controller alone can tell."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ingot import images as images_table
from ingot import pools
from ingot.preflight import engine, fit, formats, nccl
from ingot.preflight.refusal import Refusal
from ingot.preflight.variables import refusals as check_variables

SERVING_MODES = ("ray_serve", "vllm")
MINIMUM_KEY_LENGTH = 16
PLACEHOLDER = re.compile(
    r"change[-_ ]?me|replace[-_ ]?(me|this)|your[-_ ]?(api[-_ ]?)?key|example|placeholder|secret|password"
    r"|^(sk-)?x+$|\.\.\.|<.*>|(?P<same>.)(?P=same){7,}|^(sk-)?(test|key|token|dummy)",
    re.IGNORECASE,
)


def refusals(variables: Mapping[str, Any], groups: Mapping[str, Sequence[str]]) -> list[Refusal]:
    """What speaks against configuring this cluster, as far as the controller alone can tell.

    ``variables`` maps each host of the inventory to its variables.
    """
    nodes = sorted({*groups.get("ray_head", []), *groups.get("ray_worker", [])})
    found: list[Refusal] = []
    for host in nodes or ["localhost"]:
        found += check_variables(variables[host], launching=False)
    if found:
        return list(dict.fromkeys(found))  # the rest reads them
    shared = variables[nodes[0] if nodes else "localhost"]
    if found := [*images_table.check_catalog(), *fit.check_catalog(shared)]:
        return found
    key_file = Path(shared["ingot_api_key_file"])  # made, where it may be, once nothing is refused
    members = {host: variables[host] for host in nodes}
    catalog = fit.catalog_of(shared)
    served = dict.fromkeys(str(one["serving_model_id"]) for one in [shared, *members.values()])
    unserved = engine.check_nodes(members)
    modes = dict.fromkeys(str(one["serving_mode"]) for one in [shared, *members.values()])
    return [
        *check_topology(
            groups,
            {name: image.groups for name, image in images_table.load().images.items()},
            shared["cluster_name"],
        ),
        *(refusal for mode in modes for refusal in check_serving_mode(mode)),
        *check_pools(members, list(groups.get("ray_head", []))),
        *dict.fromkeys(
            refusal
            for one in [shared, *members.values()]
            for refusal in check_engine(str(one.get("vllm_method", "")), one["serving_mode"])
        ),
        *(check_api_key(key_file) if key_file.exists() or not shared["ingot_api_key_generate"] else []),
        *unserved,
        *(
            refusal
            for model_id in served
            for refusal in fit.check_model_id(model_id, catalog)
            or formats.check_nodes(
                # Of an engine that is not there, what it computes with need not be asked.
                {
                    host: one
                    for host, one in members.items()
                    if one["serving_model_id"] == model_id and not unserved
                },
                model_id,
                catalog.models[model_id],
            )
        ),
        *nccl.check_environment(members),
    ]


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


def check_pools(members: Mapping[str, Mapping[str, Any]], heads: Sequence[str]) -> list[Refusal]:
    """One model is served in one way, and all that is served by Ray Serve is the head's."""
    if len(heads) != 1 or heads[0] not in members:
        return []  # which is refused
    head_model, _ = pools.kind(members[heads[0]])
    found = []
    for host, (model, mode) in {host: pools.kind(one) for host, one in members.items()}.items():
        if mode == "ray_serve" and model != head_model:
            found.append(
                Refusal(
                    "pool-in-ray",
                    f"{host} serves {model} by Ray Serve, and the head {heads[0]} {head_model}: one"
                    " application has one model",
                    "Set serving_mode to vllm for the nodes of the other model: they are a pool of their own",
                )
            )
        ways = {other for one, other in map(pools.kind, members.values()) if one == model}
        if len(ways) > 1:
            found.append(
                Refusal(
                    "model-in-two-modes",
                    f"{model} is served with serving_mode {' and '.join(sorted(ways))}, and a request that"
                    " names it goes to one pool",
                    "Serve it in one mode on all its nodes, or another model on some of them",
                )
            )
    return list(dict.fromkeys(found))


def check_engine(method: str, mode: str) -> list[Refusal]:
    """A replica of Ray Serve has vLLM in its own process."""
    if method != "container" or mode != "ray_serve":
        return []
    return [
        Refusal(
            "container-in-ray",
            "vllm_method is container and serving_mode ray_serve, whose replicas have vLLM in their process",
            "Set serving_mode to vllm, or vllm_method to wheel or source",
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
