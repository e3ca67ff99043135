"""sitecustomize of the Python that runs natively on an emulated machine (emulation.py puts it there).

A native program is told by the kernel that this is x86-64, whereas qemu tells every other program of the
machine aarch64; and apt's library takes the machine's packages for those of its own architecture. Ansible's
modules have to find here what they would find without it.
"""

from __future__ import annotations

import os

_told = os.uname


def uname() -> os.uname_result:
    return os.uname_result((*_told()[:4], "aarch64"))


os.uname = uname
os.environ["APT_CONFIG"] = "/amd64/etc/apt/machine.conf"
