"""Where the compiled graphs of an engine came from, in the words of its log (vllm/compilation)."""

from __future__ import annotations

import re

ANEW, CACHED, RELOAD_FAILED = (
    "compiled anew",
    "from the cache",
    "compiled again, for the cache failed to load",
)


def origin(log: str) -> str:
    """One of the above, by the log of one start; empty where the log says nothing of graphs."""
    if "Compiling model again due to a load failure" in log:
        return RELOAD_FAILED
    if re.search("Directly load (AOT compilation|the compiled graph)", log):
        return CACHED
    return ANEW if "Compiling a graph for compile range" in log else ""
