"""Who runs a playbook with a Python that lacks Ingot is told so, whichever of its filters comes first."""

from __future__ import annotations

import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

from ingot import filters

ROOT = Path(__file__).parents[2]
# Ansible as a Python would run it that cannot import what is named first.
ANSIBLE = """
import sys
if sys.argv[1]:
    sys.modules[sys.argv[1]] = None
from ansible.cli.adhoc import main
shown = ["-m", "ansible.builtin.debug", "-a", "msg={{ 2 | ingot_ray_num_cpus }}"]
main(["ansible", "localhost", "-i", "localhost,", *shown])
"""


def ansible(missing: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    command = [sys.executable, "-c", ANSIBLE, missing]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)


@pytest.mark.parametrize("missing", ["ingot", "pydantic"])
def test_a_python_without_the_package_is_named_as_the_cause(missing: str) -> None:
    refused = ansible(missing)
    assert refused.returncode != 0
    assert "Ingot's own Python package is not importable by this ansible-playbook" in refused.stderr
    assert "`uv sync` makes it" in refused.stderr


def test_ansible_finds_the_filters_where_the_package_is() -> None:
    found = ansible("")
    assert found.returncode == 0, found.stderr
    assert "msg: '3'" in found.stdout or "msg: 3" in found.stdout


def test_no_two_files_give_a_filter_of_the_same_name() -> None:
    parts = [
        importlib.import_module(f"{filters.__name__}.{module.name}")
        for module in pkgutil.iter_modules(filters.__path__)
    ]
    assert sum(len(part.FILTERS) for part in parts) == len(filters.FILTERS)
