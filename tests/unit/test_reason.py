"""The callback `reason`: the last lines of a run that failed say why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FAIL = "ansible.builtin.fail"
REFUSED = {"name": "Refuse it", FAIL: {"msg": "Refused: no-head: there is none.\n    Tag one."}}


def last_lines(directory: Path, *tasks: dict[str, Any], hosts: str = "a,b,") -> str:
    """What is printed behind the recap of the run and the table of its times."""
    for task in tasks:
        task.setdefault("name", "Do a thing")
    play = {"hosts": "all", "connection": "local", "gather_facts": False, "tasks": list(tasks)}
    (directory / "play.yml").write_text(yaml.safe_dump([play], sort_keys=False))
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), "-i", hosts, directory / "play.yml"],
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    _, found, tail = done.stdout.partition("TASKS RECAP")
    assert found, done.stderr
    _, _, said = tail.partition("\nWhy it ended")
    assert bool(said) == (done.returncode != 0)
    return said


def test_a_refusal_is_the_last_thing_as_it_was_written_once_for_all_hosts(tmp_path: Path) -> None:
    assert last_lines(tmp_path, REFUSED) == (
        ", on a, b (Refuse it):\nRefused: no-head: there is none.\n    Tag one.\n"
    )


def test_what_was_rescued_or_ignored_is_no_reason(tmp_path: Path) -> None:
    rescued = {"block": [REFUSED], "rescue": [{"name": "Say it", FAIL: {"msg": "the first cause"}}]}
    assert last_lines(tmp_path, rescued, hosts="a,") == ", on a (Say it):\nthe first cause\n"
    harmless = {"block": [REFUSED], "rescue": [{"name": "Go on", "ansible.builtin.meta": "noop"}]}
    assert last_lines(tmp_path, harmless, REFUSED | {"ignore_errors": True}) == ""


def test_of_a_loop_the_items_that_failed_are_said(tmp_path: Path) -> None:
    loop = {
        "name": "Check {{ item }}",
        "ansible.builtin.assert": {"that": "item != 2", "fail_msg": "two is wrong"},
        "loop": [1, 2, 3],
    }
    assert last_lines(tmp_path, loop, hosts="a,").endswith(":\ntwo is wrong\n")


@pytest.mark.parametrize("command", ["echo first; echo last >&2; exit 3"])
def test_of_a_command_its_errors_are_said(tmp_path: Path, command: str) -> None:
    said = last_lines(tmp_path, {"ansible.builtin.shell": {"cmd": command}}, hosts="a,")
    assert said == ", on a (Do a thing):\nnon-zero return code\nlast\n"


def test_a_secret_stays_one(tmp_path: Path) -> None:
    task = {FAIL: {"msg": "sk-canary"}, "no_log": True}
    assert "sk-canary" not in last_lines(tmp_path, task, hosts="a,")
