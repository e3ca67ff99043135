"""What ``ingot rehearse`` rehearses: an image, and the variables with which a cluster of it is launched."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

import yaml

from ingot import images as images_table
from ingot.checkout import ROOT
from ingot.preflight import refusal as told
from ingot.preflight.launch import check_instance_type
from ingot.preflight.refusal import Refusal
from ingot.preflight.variables import (
    check_missing,
    check_values,
    check_variables,
    playbook_options,
    public_role_options,
    role_options,
)

INVENTORY = ROOT / "inventories/rehearsal"


class RehearsalError(Exception):
    """A phase failed; what it printed is above, the message says which command it was."""


TYPE = "launch_instance_type"
ELSEWHERE = {
    "cluster_name": (
        "extra variables set the cluster's name",
        "Set INGOT_CLUSTER in the environment instead",
    ),
    "launch_image": ("extra variables set the image", "Name it with --image instead"),
}
"""Variables that not only the playbooks go by: what is wrong with setting one, and what to do."""


def inventory() -> dict[str, Any]:
    """The variables of the rehearsal's inventory, which a person may have changed.

    Raises:
        RehearsalError: it cannot be read, or what is read here is not there or of another kind.
    """
    path = INVENTORY / "group_vars/all.yml"
    try:
        variables = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise RehearsalError(f"{path} cannot be read: {error}") from error
    needed = ("serving_model_id", "gateway_port", TYPE, "launch_workers")
    found = {name: variables[name] for name in needed if name in variables} if variables else {}
    refusals = [
        *check_missing(found, needed),
        *check_values(found),
        *(check_instance_type(str(found[TYPE])) if TYPE in found else []),
    ]
    if refusals:
        raise RehearsalError(f"{path}: {told.report(refusals)}")
    return found


@dataclass(frozen=True)
class Target:
    """An image to rehearse, and what differs from the rehearsal's inventory.

    ``variables``: to launch a cluster of it. ``extra``: what a person sets, for launch and site.yml, and
    for the bake as far as roles read it.
    """

    image: str
    variables: dict[str, str | int] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def template(self) -> str:
        return f"packer/{self.image}.pkr.hcl"

    @property
    def baked(self) -> dict[str, Any]:
        """What of ``extra`` an image is made with: a launch of fewer machines needs no other one."""
        return {name: value for name, value in self.extra.items() if name in public_role_options()}

    def inventory(self) -> dict[str, Any]:
        """The variables of a launch that are known here.

        Raises:
            RehearsalError: as the function `inventory`.
        """
        return inventory() | self.variables | self.extra

    def with_extra(self, extra: dict[str, Any]) -> Self:
        """The same with variables of a person's.

        Raises:
            RehearsalError: nothing reads one of them, it is said elsewhere, or is not of its kind.
        """
        refusals = [
            *(Refusal("fixed-variable", *ELSEWHERE[name]) for name in extra if name in ELSEWHERE),
            *check_variables(extra, role_options(), playbook_options()),
            *check_values(extra),
            *(check_instance_type(str(extra[TYPE])) if TYPE in extra else []),
        ]
        if refusals:
            raise RehearsalError(told.report(refusals))
        return replace(self, extra=extra)


def _emulated(image: str, instance_type: str) -> Target:
    """One node: an emulated core is slow, and the machine takes half of the host's memory."""
    return Target(
        image,
        {
            "launch_image": image,
            "launch_instance_type": instance_type,
            "launch_volume_gib": images_table.load().images[image].volume.size,
            "launch_workers": 0,
        },
    )


TARGETS = {
    target.image: target
    for target in (
        Target("x86"),
        _emulated("graviton3", "c7g.2xlarge"),
        _emulated("graviton4", "c8g.2xlarge"),
    )
}
