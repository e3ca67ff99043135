"""ingot.ray_up: what speaks against a cluster of Ray's own launcher, and what its nodes are told."""

from __future__ import annotations

from ingot import ray_up
from ingot.preflight.refusal import Refusal

OURS = {"instance_id": "i-ours", "tags": {"ingot:cluster": "c"}}
RAYS = {"instance_id": "i-rays", "tags": {"ingot:cluster": "c", "ray-cluster-name": "c"}}


def names(refusals: list[Refusal]) -> list[str]:
    return [refusal.name for refusal in refusals]


def test_neither_launcher_takes_over_what_the_other_launched() -> None:
    assert ray_up.check_mixed([OURS], "c", by_ray=False) == []
    assert ray_up.check_mixed([RAYS], "c", by_ray=True) == []
    assert names(ray_up.check_mixed([OURS, RAYS], "c", by_ray=True)) == ["launched-otherwise"]
    (refused,) = ray_up.check_mixed([OURS, RAYS], "c", by_ray=False)
    assert "ray up launched (i-rays), and launch.yml would take it over" in refused.why


def test_a_subnet_must_give_the_addresses_that_are_to_be_used() -> None:
    private = {"subnet_id": "subnet-1", "availability_zone": "a", "map_public_ip_on_launch": False}
    public = {"subnet_id": "subnet-2", "availability_zone": "b", "map_public_ip_on_launch": True}
    assert ray_up._check_addresses("private", [private]) == []
    assert ray_up._check_addresses("public", [public]) == []
    assert names(ray_up._check_addresses("public", [public, private])) == ["subnet-without-public-addresses"]


def test_a_node_announces_what_site_yml_would_have_it_announce() -> None:
    assert ray_up.node_size("m7i.large") == {"cpus": 3, "object_store_bytes": int(8 * 2**30 * 0.05)}


def test_the_templates_metadata_options_are_those_that_runinstances_takes() -> None:
    data = {
        "metadata_options": {
            "state": "pending",
            "http_tokens": "required",
            "instance_metadata_tags": "enabled",
        }
    }
    versions = [
        {"default_version": False, "launch_template_data": {"metadata_options": {"http_tokens": "optional"}}},
        {"default_version": True, "launch_template_data": data},
    ]
    assert ray_up.metadata_options({"versions": versions}) == {
        "HttpTokens": "required",
        "InstanceMetadataTags": "enabled",
    }
    assert ray_up.metadata_options({}) == {}
