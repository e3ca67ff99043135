"""The module preload_check: an allocator that would be passed over, or end the engine, is refused by name."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from program import load

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return load(ROOT / "plugins/modules/preload_check.py")


def library(path: Path, source: str) -> Path:
    """A shared library of that source."""
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)], input=source, text=True, check=True
    )
    return path


JEMALLOC = """
#include <string.h>
int mallctl(const char *name, void *old, unsigned long *size, void *new, unsigned long length) {
    if (strcmp(name, "arenas.page")) return 2;
    *(unsigned long *)old = 4096;
    return 0;
}
"""


def test_a_library_that_is_loaded_is_taken(module: ModuleType, tmp_path: Path) -> None:
    real = library(tmp_path / "libtcmalloc_minimal.so.4.5.18", "int x;")
    link = tmp_path / "libtcmalloc_minimal.so.4"
    link.symlink_to(real.name)
    assert module.check(link, 0) == {"library": str(real), "library_page_size": 0}


def test_jemalloc_says_its_page_size(module: ModuleType, tmp_path: Path) -> None:
    path = library(tmp_path / "libjemalloc.so.2", JEMALLOC)
    assert module.check(path, 4096)["library_page_size"] == 4096


def test_pages_larger_than_jemalloc_was_built_for_are_refused(module: ModuleType, tmp_path: Path) -> None:
    path = library(tmp_path / "libjemalloc.so.2", JEMALLOC)
    with pytest.raises(
        module.RefusedError, match=r"libjemalloc.so.2 was built for pages of at most 4096 .*65536"
    ):
        module.check(path, 65536)


def test_a_jemalloc_that_ends_the_process_is_refused_with_what_it_said(
    module: ModuleType, tmp_path: Path
) -> None:
    source = """
    #include <stdio.h>
    #include <stdlib.h>
    __attribute__((constructor)) static void start(void) {
        fputs("<jemalloc>: Unsupported system page size\\n", stderr);
        _Exit(134);
    }
    """
    path = library(tmp_path / "libjemalloc.so.2", source)
    with pytest.raises(
        module.RefusedError, match=r"does not start \(<jemalloc>: Unsupported system page size;"
    ):
        module.check(path, 0)


def test_a_missing_library_is_refused(module: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(module.RefusedError, match="does not exist: install the package"):
        module.check(tmp_path / "libjemalloc.so.2", 0)


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n"])
def test_what_the_linker_would_pass_over_is_refused(module: ModuleType, tmp_path: Path, content: Any) -> None:
    path = tmp_path / "libjemalloc.so.2"
    path.write_bytes(content)
    with pytest.raises(module.RefusedError, match="the dynamic linker does not preload"):
        module.check(path, 0)


def test_settings_that_jemalloc_does_not_understand_are_refused(module: ModuleType, tmp_path: Path) -> None:
    """It says so on standard error and goes on without them."""
    source = """
    #include <stdio.h>
    #include <stdlib.h>
    __attribute__((constructor)) static void start(void) {
        if (getenv("MALLOC_CONF")) fputs("<jemalloc>: Invalid conf pair: decay:30\\n", stderr);
    }
    """
    path = library(tmp_path / "libjemalloc.so.2", source)
    module.check(path, 0)
    with pytest.raises(
        module.RefusedError, match=r"does not understand MALLOC_CONF .*Invalid conf pair: decay:30"
    ):
        module.check(path, 0, {"MALLOC_CONF": "decay:30"})


def test_the_process_is_of_the_python_that_is_named(module: ModuleType, tmp_path: Path) -> None:
    """Ansible's own may not be one of the machine's."""
    path = library(tmp_path / "libtcmalloc_minimal.so.4", "int x;")
    (tmp_path / "python").write_text(f'#!/bin/sh\necho "$LD_PRELOAD" > {tmp_path}/ran\nexit 3\n')
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(module.RefusedError, match="does not start"):
        module.check(path, 0, python=str(tmp_path / "python"))
    assert (tmp_path / "ran").read_text().strip() == str(path)
