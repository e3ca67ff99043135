"""Bakes the image x86 in the local region (INGOT_LOCAL_NAME), unless one of the same inputs is there.

Machines of molecule's scenarios `ray`, `serving` and `site` are launched from it.
"""

from __future__ import annotations

import sys

from ingot.rehearsal import cli as local
from ingot.rehearsal.config import Settings
from ingot.rehearsal.control import settings_of_running
from ingot.rehearse import EXPECTED, Rehearsal
from steps import ToolError, fail


def main() -> int:
    try:
        rehearsal = Rehearsal(settings_of_running(Settings.from_environment()))
        rehearsal.bring_up()
        rehearsal.bake()
    except EXPECTED as error:
        return fail(ToolError(local.failure(error)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
