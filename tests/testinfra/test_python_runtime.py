"""Role python_runtime: what the service user gets from each environment."""

from __future__ import annotations

import json
import re

import pytest
from testinfra.host import Host

ROOT = "/opt/ingot/venvs"


def entries(host: Host) -> list[str]:
    """What lies in the root, hidden names too."""
    said: str = host.check_output("find %s -mindepth 1 -maxdepth 1 -printf '%%f\\n'", ROOT)
    return said.splitlines()


@pytest.fixture
def venvs(host: Host) -> list[str]:
    return [f"{ROOT}/{name}" for name in entries(host) if not name.startswith(".")]


@pytest.mark.install
def test_there_is_an_environment_and_no_rest_of_one(host: Host, venvs: list[str]) -> None:
    assert venvs
    assert [name for name in entries(host) if name.startswith(".")] == []


@pytest.mark.install
def test_it_is_marked_with_the_lock_that_it_was_made_from(host: Host, venvs: list[str]) -> None:
    for venv in venvs:
        lock = host.file(f"{venv}/.ingot-requirements.txt")
        assert host.file(f"{venv}/.ingot-lock").content_string.strip() == lock.sha256sum


@pytest.mark.install
def test_what_is_installed_is_what_the_lock_names(host: Host, venvs: list[str]) -> None:
    listing = (
        "import importlib.metadata as m, json, re;"
        "print(json.dumps({re.sub('[-_.]+', '-', d.name).lower(): d.version for d in m.distributions()}))"
    )
    for venv in venvs:
        installed = json.loads(host.check_output("%s -c %s", f"{venv}/bin/python", listing))
        text = host.file(f"{venv}/.ingot-requirements.txt").content_string
        locked = dict(re.findall(r"^([a-z0-9-]+)(?:\[[^]]*\])?==([^\s;]+)", text, re.MULTILINE))
        assert installed == locked


@pytest.mark.install
def test_the_service_cannot_write_its_own_code(host: Host, venvs: list[str]) -> None:
    for venv in venvs:
        writable = host.check_output(
            "find %s ! -type l '(' -perm /022 -o ! -user root -o ! -group root ')' -print -quit", venv
        )
        assert writable == ""


@pytest.mark.install
def test_every_module_has_its_bytecode(host: Host, venvs: list[str]) -> None:
    """Nobody can write it later: a module without it is compiled at every start of every process."""
    check = (
        "import importlib.util as u, pathlib, sys;"
        "missing = [str(p) for p in pathlib.Path(sys.prefix, 'lib').rglob('*.py')"
        " if not pathlib.Path(u.cache_from_source(str(p))).exists()];"
        "print('\\n'.join(missing[:5]))"
    )
    for venv in venvs:
        assert host.check_output("%s -c %s", f"{venv}/bin/python", check) == ""


@pytest.mark.install
def test_bytecode_says_where_its_source_is(host: Host, venvs: list[str]) -> None:
    """It was compiled in another directory, which is gone, and maybe by another interpreter."""
    check = (
        "import importlib.util as u, marshal, pathlib, sys;"
        "sources = pathlib.Path(sys.prefix, 'lib').rglob('*.py');"
        "found = [(str(p), pathlib.Path(u.cache_from_source(str(p))).read_bytes()) for p in sources];"
        "wrong = [p for p, b in found if b[:4] != u.MAGIC_NUMBER or marshal.loads(b[16:]).co_filename != p];"
        "print(len(found), *wrong[:5])"
    )
    for venv in venvs:
        found, *wrong = host.check_output("%s -c %s", f"{venv}/bin/python", check).split()
        assert int(found) > 0 and wrong == []


@pytest.mark.install
def test_scripts_work_from_their_place(host: Host, venvs: list[str]) -> None:
    """They were written in another directory, which is gone."""
    for venv in venvs:
        left = host.run(
            "grep --recursive --binary-files=without-match --files-with-matches partial %s/bin", venv
        )
        assert left.stdout == ""
        prefix = host.check_output("%s -c 'import sys; print(sys.prefix)'", f"{venv}/bin/python")
        assert prefix == venv


@pytest.mark.install
def test_no_download_is_left_on_the_image(host: Host) -> None:
    for path in (f"{ROOT}/.cache", "/root/.cache/uv", "/root/.cache/pip"):
        assert not host.file(path).exists


@pytest.mark.configure
def test_no_shared_library_is_missing(host: Host, venvs: list[str]) -> None:
    for venv in venvs:
        swept = host.run("/usr/lib/ingot/ldd_sweep.py %s", venv)
        assert swept.rc == 0, swept.stderr
