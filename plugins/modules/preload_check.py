#!/usr/bin/python
# Copyright: Ingot contributors
# Apache-2.0
"""Start a process with a memory allocator preloaded, and see whether it is the one that it uses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: preload_check
short_description: Whether an allocator may be preloaded on this node
description:
  - The dynamic linker passes over a library that it cannot preload, and says so in a log that nobody reads. A
    jemalloc that was built for smaller pages than the kernel's ends every process that it is preloaded into.
    Both are refused here, by name. Nothing is changed.
options:
  path:
    description: The library.
    type: path
    required: true
  page_size:
    description: Page size to check against, in bytes; 0 is the running kernel's.
    type: int
    default: 0
  environment:
    description: Further environment of that process, such as C(MALLOC_CONF), which jemalloc must accept.
    type: dict
    default: {}
  python:
    description: What the process runs. The machine's own Python, as the engine's; Ansible's may be another.
    type: path
    default: /usr/bin/python3
"""

EXAMPLES = r"""
- name: Check the allocator
  preload_check:
    path: /usr/lib/x86_64-linux-gnu/libjemalloc.so.2
"""

RETURN = r"""
library:
  description: The file that was loaded, links resolved.
  type: str
  returned: success
library_page_size:
  description: Largest page size that the library works with, in bytes; 0 where it does not say.
  type: int
  returned: success
"""

# Run with the library preloaded: one that nothing maps was passed over. jemalloc alone has `mallctl`, which
# says what page size it was built for. (Opened later, jemalloc asks for room that only a start has.)
PROBE = """
import ctypes, json
names = {line.split()[-1] for line in open("/proc/self/maps") if "/" in line}
page = ctypes.c_size_t(0)
size = ctypes.c_size_t(ctypes.sizeof(page))
try:
    mallctl = ctypes.CDLL(None).mallctl
    mallctl(b"arenas.page", ctypes.byref(page), ctypes.byref(size), None, ctypes.c_size_t(0))
except AttributeError:
    pass
print(json.dumps({"maps": sorted(names), "page": page.value}))
"""


class RefusedError(Exception):
    """The library must not be preloaded; the message says why and what to do."""


def probe(path: Path, environment: Mapping[str, str], python: str) -> subprocess.CompletedProcess[str]:
    """Run a small program with the library preloaded."""
    return subprocess.run(
        [python, "-I", "-c", PROBE],
        env={"LC_ALL": "C", **environment, "LD_PRELOAD": str(path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def check(
    path: Path,
    page_size: int,
    environment: Mapping[str, str] | None = None,
    python: str = sys.executable,
) -> dict[str, Any]:
    """What the library is.

    Raises:
        RefusedError: it is not there, is passed over, ends the process, is built for smaller pages, or does
            not understand its settings.
    """
    if not path.is_file():
        raise RefusedError(
            f"{path} does not exist: install the package that holds it (bake again, or run the install"
            " phase), or set cpu_tuning_allocator to another one"
        )
    kernel = page_size or os.sysconf("SC_PAGE_SIZE")
    done = probe(path, environment or {}, python)
    said = done.stderr.strip().splitlines()
    if done.returncode != 0:
        raise RefusedError(
            f"a process with {path} preloaded does not start ({said[0] if said else 'no message'}; status"
            f" {done.returncode}; the kernel's pages have {kernel} bytes). Set cpu_tuning_allocator to"
            " another one"
        )
    found = json.loads(done.stdout)
    real = str(path.resolve())
    if real not in found["maps"]:
        raise RefusedError(
            f"the dynamic linker does not preload {path} ({said[0] if said else 'no message'}): it must be a"
            " shared library for this machine's architecture"
        )
    built_for = int(found["page"])
    if built_for and kernel > built_for:
        raise RefusedError(
            f"{path} was built for pages of at most {built_for} bytes and the kernel's have {kernel}: every"
            " process that it is preloaded into would end. Set cpu_tuning_allocator to tcmalloc, or boot a"
            " kernel with"
            f' pages of {built_for} bytes (on arm64, one without "-64k")'
        )
    if wrong := [line for line in said if "conf" in line and line.startswith("<jemalloc>")]:
        raise RefusedError(
            f"jemalloc does not understand MALLOC_CONF ({wrong[0]}), and would run without that part: correct"
            " cpu_tuning_malloc_conf"
        )
    return {"library": real, "library_page_size": built_for}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "page_size": {"type": "int", "default": 0},
            "environment": {"type": "dict", "default": {}},
            "python": {"type": "path", "default": "/usr/bin/python3"},
        },
        supports_check_mode=True,
    )
    try:
        given = module.params
        found = check(Path(given["path"]), given["page_size"], given["environment"], given["python"])
    except RefusedError as error:
        module.fail_json(msg=str(error))
    else:
        module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
