"""Values of the playbooks' variables: each of its kind and within its range, whoever reads it."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from ingot import table

EVERYWHERE = ("0.0.0.0/0", "::/0")
ENGINE_PORT = 8000  # of every node, where serving_port does not say otherwise
WIDEST = 8  # bits of a network's prefix: a wider one is most of the world


def _network(value: str) -> str:
    if value in ("", *EVERYWHERE):
        return value  # refused under a name of its own by preflight.launch.check_cidr
    if "/" not in value:
        raise ValueError(f"name a network, such as {value}/32")
    network = ipaddress.ip_network(value)
    if network.prefixlen < WIDEST:
        raise ValueError(f"a network wider than /{WIDEST} is most of the world")
    return value


def _own_tags(value: dict[str, Any]) -> dict[str, Any]:
    if kept := sorted(name for name in value if name == "Name" or name.startswith(("aws:", "ingot:"))):
        raise ValueError(f"{', '.join(kept)}: Amazon and Ingot keep aws:, ingot: and Name to themselves")
    return value


Network = Annotated[str, AfterValidator(_network)]
Port = Annotated[int, Field(ge=1024, le=65535)]


class _Values(BaseModel):
    """Those that a typing error turns into something which fails late, or on a node."""

    cluster_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,62}$")] | None = None
    gateway_port: Port | None = None
    serving_port: Port | None = None
    ingot_connect: Literal["private", "public"] | None = None
    launch_workers: Annotated[int, Field(ge=0, le=1000)] | None = None
    launch_workers_most: Annotated[int, Field(ge=0, le=1000)] | None = None
    launch_idle_minutes: Annotated[int, Field(ge=1, le=1440)] | None = None
    launch_volume_gib: Annotated[int, Field(ge=1, le=65536)] | None = None
    launch_ssh_cidr: Network | None = None
    launch_client_cidr: Network | None = None
    launch_tags: Annotated[dict[str, Any], AfterValidator(_own_tags)] | None = None


NAMES = frozenset(_Values.model_fields)


def problems(variables: Mapping[str, Any]) -> dict[str, str]:
    """What is wrong with a value, by the name of its variable; empty when nothing is."""
    given = {name: variables[name] for name in _Values.model_fields if name in variables}
    try:
        _Values.model_validate(given)
    except ValidationError as error:
        found = {field.partition(".")[0]: said for field, said in table.problems(error).items()}
        return {name: f"{given[name]!r}: {said}" for name, said in found.items()}
    port = given.get("gateway_port")
    if str(port) == str(given.get("serving_port", ENGINE_PORT)):
        return {"gateway_port": f"{port!r}: the head's engine listens on that (serving_port)"}
    return {}
