"""The last lines of a run that failed are the reason, and nothing that Ansible says around it."""

from __future__ import annotations

import atexit
from collections.abc import Mapping
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = r"""
name: reason
type: aggregate
short_description: Repeats at the end why a run failed
description:
  - A refusal is a sentence with what to do about it. Ansible shows it as a failed task among its data, and
    recaps and tables of other callbacks follow, in a bake also what Packer says. This one says it again, as
    plain text, at the very end. After a run that did not fail it says nothing.
"""

STDERR_LINES = 10


class CallbackModule(CallbackBase):
    """Keeps the last failure of each host; what was rescued is followed by another, or by success."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "reason"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.failures: dict[str, tuple[str, str]] = {}

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            self.failures[result.host.get_name()] = (result.task.get_name(), reason(result.result))

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self.failures[result.host.get_name()] = (result.task.get_name(), reason(result.result))

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Other callbacks print their tables at this event, some of them after this one."""
        ended = {**stats.failures, **stats.dark}
        if text := report({host: self.failures[host] for host in self.failures if ended.get(host)}):
            atexit.register(self._display.display, text)


def reason(result: Mapping[str, Any]) -> str:
    """What a failed task says; of a loop, what its failed items say."""
    if items := [item for item in result.get("results", []) if item.get("failed")]:
        return "\n".join(dict.fromkeys(reason(item) for item in items))
    said = str(result.get("msg") or "it does not say why").rstrip()
    return "\n".join([said, *str(result.get("stderr") or "").splitlines()[-STDERR_LINES:]])


def report(failures: Mapping[str, tuple[str, str]]) -> str:
    """One paragraph for each reason, with the hosts that have it."""
    hosts: dict[tuple[str, str], list[str]] = {}
    for host, failure in failures.items():
        hosts.setdefault(failure, []).append(host)
    return "\n".join(
        f"\nWhy it ended, on {', '.join(sorted(names))} ({task}):\n{said}"
        for (task, said), names in hosts.items()
    )
