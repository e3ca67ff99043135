"""What speaks against asking an engine whether it computes right, before it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingot.preflight.refusal import Refusal
from ingot.preflight.variables import check_missing, playbook_options

PREFIX = "gate_"


def refusals(variables: Mapping[str, Any], path: str, *, there: bool) -> list[Refusal]:
    """``path`` is where the reference has to lie, and ``there`` whether it does."""
    found = check_missing(variables, {name for name in playbook_options() if name.startswith(PREFIX)})
    engine = variables.get("serving_engine", "vllm")
    if engine != "vllm":
        return [
            *found,
            Refusal(
                "gate-needs-vllm",
                f"the engine is {engine}, which tells no log-probabilities of a prompt",
                "Ask engines of vLLM alone: --limit names hosts",
            ),
        ]
    if not there:
        found.append(
            Refusal(
                "no-reference",
                f"there is nothing to hold {variables['serving_model_id']} against: {path} does not exist",
                "Make it, once for each model: ansible-playbook playbooks/gate_reference.yml",
            )
        )
    return found
