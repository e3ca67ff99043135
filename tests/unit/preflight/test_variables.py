"""Variables that nothing reads, that nobody set, or that are of another kind."""

from __future__ import annotations

import pytest
from refusals import names

from ingot.preflight import variables

ROLES = {
    "serving": frozenset({"serving_mode", "serving_model_id", "serving_port"}),
    "ray": frozenset({"ray_num_cpus", "ray_token"}),
}
PLAYBOOKS = frozenset({"cluster_name", "launch_workers", "launch_instance_type"})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("serving_modle_id", "serving_model_id"),  # a role's prefix
        ("ray_numcpus", "ray_num_cpus"),
        ("launch_worker", "launch_workers"),  # a playbook's prefix
        ("clustername", "cluster_name"),  # none of our prefixes, but all but one of our names
        ("servingport", "serving_port"),
    ],
)
def test_a_mistyped_variable_is_refused_with_the_one_that_is_meant(name: str, meant: str) -> None:
    refusals = variables.check_variables([name, "serving_port"], ROLES, PLAYBOOKS)
    assert names(refusals) == ["unknown-variable"]
    assert name in refusals[0].why
    assert meant in refusals[0].do


def test_a_variable_of_a_role_that_is_near_to_none_is_refused_too() -> None:
    assert names(variables.check_variables(["ray_zzzzzzzzzzzzzzzzz"], ROLES, PLAYBOOKS)) == [
        "unknown-variable"
    ]


def test_a_persons_own_variables_and_ansibles_are_let_through() -> None:
    theirs = ["ansible_host", "ec2_tags", "team", "colour_of_the_shed", "inventory_hostname", "__private"]
    assert variables.check_variables([*theirs, "serving_mode", "cluster_name"], ROLES, PLAYBOOKS) == []


def test_the_repositorys_own_roles_have_specifications() -> None:
    options = variables.role_options()
    assert "base" in options
    assert all(options.values())


def test_a_variable_that_nobody_set_is_named() -> None:
    refusals = variables.check_missing(["cluster_name"], ["cluster_name", "gateway_port"])
    assert names(refusals) == ["missing-variable"]
    assert "'gateway_port'" in refusals[0].why


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("cluster_name", "bad name!", "match pattern"),
        ("gateway_port", "abc", "valid integer"),
        ("gateway_port", 99999, "less than or equal to 65535"),
        ("gateway_port", 22, "greater than or equal to 1024"),
        ("gateway_port", "8000", "the head's engine listens on that (serving_port)"),
        ("serving_port", 80, "greater than or equal to 1024"),
        ("ingot_connect", "pubic", "'private' or 'public'"),
        ("launch_workers", -1, "greater than or equal to 0"),
        ("launch_volume_gib", "abc", "valid integer"),
        ("launch_ssh_cidr", "garbage/x", "appear to be an IPv4 or IPv6 network"),
        ("launch_client_cidr", "1.2.3.4", "1.2.3.4/32"),
        ("launch_client_cidr", "0.0.0.0/1", "most of the world"),
        ("launch_tags", "team=search", "valid dictionary"),
        ("launch_tags", {"team": "a", "ingot:cluster": "b"}, "ingot:cluster: Amazon and Ingot keep"),
    ],
)
def test_a_value_of_another_kind_is_refused_by_its_name(name: str, value: object, said: str) -> None:
    (refusal,) = variables.check_values({name: value})
    assert refusal.name == "bad-value"
    assert f"{name} is {value!r}" in str(refusal)
    assert said in str(refusal)


def test_gateway_and_engine_may_change_ports() -> None:
    assert variables.check_values({"gateway_port": 8000, "serving_port": "8080"}) == []
    assert names(variables.check_values({"gateway_port": 9000, "serving_port": "9000"})) == ["bad-value"]


def test_values_are_taken_as_the_command_line_gives_them() -> None:
    assert (
        variables.check_values({"gateway_port": "8080", "launch_workers": "2", "launch_ssh_cidr": ""}) == []
    )
