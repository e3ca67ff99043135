"""Role vllm: the engine loads as the user that will run it, and the image says what it has."""

from __future__ import annotations

import json

import pytest
from testinfra.host import Host

PYTHON = "/opt/ingot/venvs/vllm/bin/python"
ENGINE = "/usr/lib/ingot/vllm/engine.py"


@pytest.mark.install
def test_the_engine_loads_as_the_service_user(host: Host) -> None:
    with host.sudo():
        loaded = host.run(f"runuser -u ingot -- {PYTHON} -I {ENGINE} load")
    assert loaded.rc == 0, loaded.stderr
    assert loaded.stdout.startswith("_C")


@pytest.mark.install
def test_every_patch_is_applied_and_its_bytecode_is_current(host: Host) -> None:
    answer = host.run(f"{PYTHON} -I {ENGINE} patch --dry-run /usr/lib/ingot/vllm/patches")
    assert answer.stdout.strip() == "unchanged", answer.stderr
    site = host.check_output(f"{PYTHON} -I -c 'import sysconfig; print(sysconfig.get_path(\"platlib\"))'")
    source = host.file(f"{site}/vllm/compilation/decorators.py")
    assert source.contains('hasattr(compiled_fn, "finalize_loading")')
    bytecode = host.file(f"{site}/vllm/compilation/__pycache__/decorators.cpython-313.pyc")
    assert bytecode.mtime >= source.mtime


@pytest.mark.install
def test_the_service_user_cannot_change_the_engine(host: Host) -> None:
    with host.sudo():
        written = host.check_output("find /opt/ingot/venvs/vllm ! -type l -perm /022 -print -quit")
        foreign = host.check_output("find /opt/ingot/venvs/vllm ! -user root -print -quit")
    assert (written, foreign) == ("", "")


@pytest.mark.install
def test_the_image_says_which_engine_it_has(host: Host) -> None:
    facts = json.loads(host.file("/usr/share/ingot/facts.d/vllm.json").content_string)
    assert facts["vllm"] == host.check_output(
        f"{PYTHON} -I -c 'import importlib.metadata as m; print(m.version(\"{facts['distribution']}\"))'"
    )
    assert facts["lock_sha256"] == host.file("/opt/ingot/venvs/vllm/.ingot-lock").content_string.strip()
    assert facts["patches"]


@pytest.mark.configure
def test_the_cache_belongs_to_the_service_user(host: Host) -> None:
    with host.sudo():
        cache = host.file("/var/cache/ingot/vllm")
        assert (cache.user, cache.mode) == ("ingot", 0o750)


@pytest.mark.configure
def test_the_engine_stays_off_the_network(host: Host) -> None:
    environment = host.file("/etc/ingot/engine.env")
    for line in ("HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "VLLM_CACHE_ROOT=/var/cache/ingot/vllm"):
        assert environment.contains(f"^{line}$")
