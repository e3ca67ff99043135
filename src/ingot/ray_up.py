"""A cluster of Ray's own launcher (`ray up`): what speaks against it, and how large its nodes are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.common.dict_transformations import snake_dict_to_camel_dict

from ingot import instance_types, report, sizing
from ingot.preflight import launch
from ingot.preflight.refusal import Refusal
from ingot.preflight.variables import refusals as check_variables

RAYS_TAG = "ray-cluster-name"
"""Ray's launcher and its autoscaler give it to every instance of theirs."""


def check_mixed(instances: Sequence[Mapping[str, Any]], cluster: str, *, by_ray: bool) -> list[Refusal]:
    """Nobody counts another's instances as their own: ``launch.yml`` would end workers that Ray launched."""
    others = [node for node in instances if (RAYS_TAG in node.get("tags", {})) != by_ray]
    if not others:
        return []
    whose, whom = ("launch.yml", "ray up") if by_ray else ("ray up", "launch.yml")
    ids = ", ".join(sorted(str(node["instance_id"]) for node in others))
    return [
        Refusal(
            "launched-otherwise",
            f"cluster {cluster} has instances that {whose} launched ({ids}), and {whom} would take it over",
            "Name another cluster with INGOT_CLUSTER, or remove this one first (playbooks/destroy.yml)",
        )
    ]


def launch_refusals(
    variables: Mapping[str, Any],
    images: Sequence[Mapping[str, Any]],
    subnets: Sequence[Mapping[str, Any]],
    instances: Sequence[Mapping[str, Any]],
) -> list[Refusal]:
    """What speaks against a launch by launch.yml; ``instances`` are those that the cluster has."""
    found = launch.refusals(variables, images, subnets)
    return found + check_mixed(instances, variables["cluster_name"], by_ray=False)


def refusals(
    variables: Mapping[str, Any],
    images: Sequence[Mapping[str, Any]],
    subnets: Sequence[Mapping[str, Any]],
    instances: Sequence[Mapping[str, Any]],
) -> list[Refusal]:
    """What speaks against a launch by `ray up`: all that speaks against any, and what Ray does by itself."""
    if found := check_variables(variables):
        return found  # the rest reads them
    return [
        *launch.refusals(variables, images, subnets),
        *check_mixed(instances, variables["cluster_name"], by_ray=True),
        *_check_mode(variables["serving_mode"]),
        *_check_profile(variables["launch_head_profile"]),
        *_check_limits(int(variables["launch_workers"]), int(variables["launch_workers_most"])),
        *_check_addresses(variables["ingot_connect"], subnets),
    ]


def _check_mode(mode: str) -> list[Refusal]:
    if mode == "ray_serve":
        return []
    return [
        Refusal(
            "no-ray", f"serving_mode is {mode!r}, which runs without Ray", "Set it to ray_serve for ray up"
        )
    ]


def _check_profile(profile: str) -> list[Refusal]:
    if profile:
        return []
    return [
        Refusal(
            "no-head-profile",
            "launch_head_profile is empty, and Ray's launcher would make a role with every right on EC2",
            "Make an instance profile with files/iam/ray-head.json and name it there",
        )
    ]


def _check_limits(workers: int, most: int) -> list[Refusal]:
    if workers <= most:
        return []
    return [
        Refusal(
            "workers-exceed-limit",
            f"launch_workers is {workers}, more than launch_workers_most, {most}",
            "Set launch_workers_most to how many workers there may ever be",
        )
    ]


def _check_addresses(connect: str, subnets: Sequence[Mapping[str, Any]]) -> list[Refusal]:
    """Ray's launcher takes no other subnet where it is to use public addresses."""
    if connect != "public" or not subnets:
        return []
    first = min(subnets, key=lambda subnet: str(subnet["availability_zone"]))
    if first.get("map_public_ip_on_launch"):
        return []
    return [
        Refusal(
            "subnet-without-public-addresses",
            f"subnet {first['subnet_id']} gives instances no public address, and ingot_connect is public",
            "Name another with launch_subnet_id, or set ingot_connect to private",
        )
    ]


def node_size(type_name: str) -> dict[str, int]:
    """What a node of this instance type announces to Ray, from the type's own figures."""
    kind = instance_types.get(type_name)
    return {
        "cpus": sizing.ray_num_cpus(kind.vcpu),
        "object_store_bytes": sizing.object_store_bytes(kind.memory_bytes),
    }


def metadata_options(template: Mapping[str, Any]) -> dict[str, Any]:
    """How instances of a launch template serve their metadata, in RunInstances' words.

    Ray's launcher gives what EC2 says of a template back to it, and RunInstances does not know the state that
    is among these options. ``template`` is the answer of Ansible's module.
    """
    options: dict[str, Any] = {}
    for version in template.get("versions", ()):
        if version["default_version"]:
            options = dict(version["launch_template_data"].get("metadata_options") or {})
    options.pop("state", None)
    return dict(snake_dict_to_camel_dict(options, capitalize_first=True))


def planned(image: Mapping[str, Any], type_name: str, workers: int, most: int) -> list[str]:
    """What ray_config.yml says before it makes anything."""
    lines = report.planned(image, type_name, workers)
    if most > workers:
        lines.append(f"with {most} workers, the most: {report.price([type_name] * (most + 1))}")
    return lines
