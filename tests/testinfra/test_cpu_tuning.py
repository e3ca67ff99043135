"""Role cpu_tuning: the allocator is at work in a process with the engine's environment, and in no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from testinfra.host import Host

RECORD = "/etc/ingot/tuning.json"
FACTS = "/usr/share/ingot/facts.d/cpu_tuning.json"
MAPS = "import os; print(open('/proc/self/maps').read())"


def read(host: Host, path: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(host.file(path).content_string)
    return content


def libraries(host: Host, environment: dict[str, str]) -> set[str]:
    """Shared libraries of a Python process that has this environment."""
    given = " ".join(f"{name}='{value}'" for name, value in environment.items())
    answer = host.run(f"env {given} /usr/bin/python3 -I -c %s", MAPS)
    assert (answer.rc, answer.stderr) == (0, ""), answer.stderr
    return {Path(line.split()[-1]).name for line in answer.stdout.splitlines() if ".so" in line}


@pytest.mark.install
def test_the_image_says_what_is_preloaded_and_it_is_there(host: Host) -> None:
    facts = read(host, FACTS)
    if facts["allocator"] == "none":
        pytest.skip("this image has glibc's allocator")
    assert facts["allocator"] in facts["library"]
    assert host.file(facts["library"]).is_file


@pytest.mark.install
def test_no_other_process_of_the_machine_has_it(host: Host) -> None:
    """Preloaded for the engine alone: neither for everybody nor for the manager that starts the units."""
    assert not host.file("/etc/ld.so.preload").exists
    assert "LD_PRELOAD" not in host.check_output("systemctl show-environment")
    with host.sudo():
        maps = host.file("/proc/1/maps").content_string
    assert "libc.so" in maps
    assert "malloc" not in maps


@pytest.mark.configure
def test_a_process_with_the_engines_environment_uses_the_allocator(host: Host) -> None:
    """`ldd` would show what a file asks for; the maps show what a process has."""
    record = read(host, RECORD)
    found = {name for name in libraries(host, record["environment"]) if "malloc" in name}
    if record["allocator"] == "none":
        assert found == set()
    else:
        assert len(found) == 1
        assert record["allocator"] in found.pop()


@pytest.mark.configure
def test_without_that_environment_there_is_none(host: Host) -> None:
    assert not [name for name in libraries(host, {}) if "malloc" in name]


@pytest.mark.configure
def test_jemalloc_takes_every_setting(host: Host) -> None:
    """What it does not understand it leaves out; asked for a setting, it says the one in force."""
    environment = read(host, RECORD)["environment"]
    if "MALLOC_CONF" not in environment:
        pytest.skip("only jemalloc has settings")
    ask = (
        "import ctypes; v = ctypes.c_ssize_t(); n = ctypes.c_size_t(ctypes.sizeof(v));"
        " print(ctypes.CDLL(None).mallctl(b'opt.dirty_decay_ms', ctypes.byref(v), ctypes.byref(n), None,"
        " ctypes.c_size_t(0)), v.value)"
    )
    given = " ".join(f"{name}='{value}'" for name, value in environment.items())
    assert host.check_output(f"env {given} /usr/bin/python3 -I -c %s", ask) == "0 30000"


@pytest.mark.configure
def test_vllm_leaves_the_choice_alone(host: Host) -> None:
    """vllm/platforms/cpu.py puts its own tcmalloc first unless it reads these letters in LD_PRELOAD."""
    preload = read(host, RECORD)["environment"].get("LD_PRELOAD")
    if preload is None:
        pytest.skip("glibc's allocator is to be used")
    assert "libtcmalloc" in preload


@pytest.mark.configure
def test_engines_have_cpus_that_exist_and_no_cpu_has_two(host: Host) -> None:
    record = read(host, RECORD)
    online = cpus(host.file("/sys/devices/system/cpu/online").content_string)
    taken: set[int] = set()
    for engine in record["engines"]:
        threads = cpus(engine["threads"])
        assert threads
        assert threads <= online
        assert not threads & taken
        taken |= threads


def cpus(text: str) -> set[int]:
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found
