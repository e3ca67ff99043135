"""Values of the roles' variables, held against all roles' argument specifications at once.

Ansible itself does so when it comes to a role: in a bake that is minutes later, with half of an image made.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from jinja2 import UndefinedError

from ingot import values
from ingot.checkout import ROOT
from ingot.preflight.refusal import Refusal
from ingot.preflight.variables import specified

ELSEWHERE = frozenset({"serving_mode", *values.NAMES})
"""Those whose values are refused with words of their own."""


def refusals(variables: Mapping[str, Any], roles: Path = ROOT / "roles") -> list[Refusal]:
    """Those of the variables, of one host, whose value is of another kind or none of the choices.

    Secrets are left to the roles: a message could show them. So is a value that cannot be known yet, since
    it is made from facts or from something of a role's own.
    """
    found = []
    for role, options in specified(roles).items():
        for name in sorted(options.keys() - ELSEWHERE):
            if options[name].get("no_log") or name not in variables:
                continue
            try:
                value = variables[name]
            except UndefinedError:
                continue
            said = ArgumentSpecValidator({name: options[name]}).validate({name: value}).error_messages
            do = f"Correct it; roles/{role}/README.md says what it means"
            found += [Refusal("bad-value", f"{name}: {problem.rstrip('.')}", do) for problem in said]
    return found
