"""The lock of the engine's environment on Neuron nodes: whether it has all of a set, with hashes."""

from __future__ import annotations

import re

from ingot.neuron_sets import NeuronSet

PLUGIN = "vllm-neuron"


def wanted(chosen: NeuronSet) -> dict[str, str]:
    """Distributions by name, and the version that the set has of each."""
    return chosen.python.packages | {"vllm": chosen.plugin.vllm, PLUGIN: chosen.plugin.tag}


def source(chosen: NeuronSet) -> str:
    """The plugin as a requirement: the archive of its tag, for what PyPI has of that name is another."""
    return f"{PLUGIN} @ {chosen.plugin.repository}/archive/refs/tags/{chosen.plugin.tag}.tar.gz"


def problems(text: str, chosen: NeuronSet) -> list[str]:
    """What a lock lacks of the set, or has of another version, or without a hash; each in words."""
    found = []
    for name, version in sorted(wanted(chosen).items()):
        block = _entries(text).get(name)
        exact = (f"{name}=={version} ", f"{source(chosen)} ") if name == PLUGIN else (f"{name}=={version} ",)
        if block is None:
            found.append(f"it has no {name}")
        elif not block.startswith(exact):
            has = block.splitlines()[0].rstrip(" \\")
            found.append(f"it has {has} and not {name} {version}")
        elif "--hash=sha256:" not in block:
            found.append(f"it has no hash for {name}")
    return found


def _entries(text: str) -> dict[str, str]:
    """Name to its block of lines: the requirement and its hashes."""
    blocks = re.split(r"\n(?=[A-Za-z0-9])", "\n" + text)
    named = ((re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", block), block) for block in blocks)
    return {match[0].lower(): f"{block.strip()} " for match, block in named if match}
