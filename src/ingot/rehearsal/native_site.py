"""sitecustomize of the Python that runs natively on an emulated machine (emulation.py puts it there).

A native program is told by the kernel that this is x86-64, whereas qemu tells every other program of the
machine aarch64. What is done natively is to decide as if it were not.
"""

from __future__ import annotations

import os

_told = os.uname


def uname() -> os.uname_result:
    return os.uname_result((*_told()[:4], "aarch64"))


os.uname = uname
