"""What is compiled for Neuron chips ahead of time: what its key is of, how it is made, what is lacking."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ingot import compiled, neuron_buckets
from ingot.models import Model
from ingot.neuron_buckets import Buckets
from ingot.neuron_sets import NeuronSet
from ingot.sizing import SizingError

#: Where they lie on a node: the engine must not be able to write there.
ROOT = "/opt/ingot/neuron"
#: Whose other version makes other programs.
COMPILERS = ("neuronx-cc", "torch-neuronx", "neuronx-distributed-inference")
#: What a plan decides, and so nobody else.
OWN_FLAGS = (
    "--batch-size",
    "--compile-only",
    "--compiled-model-path",
    "--context-encoding-buckets",
    "--ctx-batch-size",
    "--max-context-length",
    "--model-path",
    "--seq-len",
    "--skip-save-sharded-checkpoint",  # the plugin looks for weights beside the programs, and nowhere else
    "--tkg-batch-size",
    "--token-generation-buckets",
    "--torch-dtype",
    "--tp-degree",
)


def model_hash(model: Model) -> str:
    """One hash for all files of a model, as its entry in the catalogue has them."""
    lines = sorted(f"{file.sha256}  {file.path}\n" for file in model.files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def inputs(
    chosen: NeuronSet,
    device: str,
    model: Mapping[str, str],
    flags: Mapping[str, Any],
    buckets: Buckets,
    extra: Sequence[str] = (),
) -> dict[str, Any]:
    """All that decides what the compiler makes.

    Args:
        chosen: the set whose compiler it is.
        device: the chip.
        model: ``id``, ``hash`` and ``dtype``.
        flags: vLLM's, of ``neuron_cores.plan``.
        buckets: the lengths.
        extra: further flags of the compiling program.

    Raises:
        SizingError: one of the further flags says what is decided here.
    """
    if taken := [flag for flag in extra if flag.partition("=")[0] in OWN_FLAGS]:
        raise SizingError(
            f"neuron_compile_flags has {', '.join(taken)}, which follows from the model, the buckets and the"
            " node: remove it"
        )
    return {
        "model": model["id"],
        "model_hash": model["hash"],
        "dtype": model["dtype"],
        "device": device,
        "sdk": chosen.sdk,
        **{name: chosen.python.packages[name] for name in COMPILERS},
        "plugin": chosen.plugin.tag,
        "vllm": chosen.plugin.vllm,
        "tensor_parallel": flags["tensor-parallel-size"],
        "batch": flags["max-num-seqs"],
        "context": list(buckets.context),
        "generation": list(buckets.generation),
        "flags": " ".join(extra),
    }


def command(made_from: Mapping[str, Any], extra: Sequence[str]) -> list[str]:
    """How NxD Inference is told to compile, without its paths: the flags of its guides to serving."""
    batch = made_from["batch"]
    continuous = ["--is-continuous-batching", "--ctx-batch-size", "1", "--tkg-batch-size", str(batch)]
    return [
        *("--torch-dtype", made_from["dtype"]),
        *("--tp-degree", str(made_from["tensor_parallel"])),
        *("--batch-size", str(batch)),
        *(continuous if batch > 1 else []),
        *("--max-context-length", str(made_from["context"][-1])),
        *("--seq-len", str(made_from["generation"][-1])),
        *("--padding-side", "right"),
        *("--on-device-sampling", "--dynamic"),
        "--enable-bucketing",
        *("--context-encoding-buckets", *map(str, made_from["context"])),
        *("--token-generation-buckets", *map(str, made_from["generation"])),
        *extra,
        "--compile-only",
    ]


def plan(
    made_from: Mapping[str, Any], weight_bytes: int, cpus: int, memory_bytes: int, extra: Sequence[str] = ()
) -> dict[str, Any]:
    """What a node is told: the key, what it stands for, how it is compiled, and what that takes of this host.

    ``memory_bytes`` is what somebody has measured, instead of the estimate; 0 estimates it.
    """
    buckets = Buckets(tuple(made_from["context"]), tuple(made_from["generation"]))
    takes = asdict(neuron_buckets.estimate(weight_bytes, buckets, cpus))
    if memory_bytes:
        takes |= {"memory_bytes": memory_bytes, "why": "neuron_compile_memory_bytes"}
    key = compiled.key(made_from)
    return {
        "key": key,
        "directory": f"{ROOT}/{key}",
        "root": ROOT,
        "inputs": dict(made_from),
        "arguments": command(made_from, extra),
        "takes": takes,
        "how": how(made_from),
    }


def how(made_from: Mapping[str, Any]) -> str:
    """The command that compiles it, for whoever is told that it is missing."""
    settings = {
        "serving_model_id": made_from["model"],
        "serving_max_model_len": made_from["generation"][-1],
        "serving_max_num_seqs": made_from["batch"],
        "neuron_tensor_parallel": made_from["tensor_parallel"],
        "neuron_context_buckets": made_from["context"],
        "neuron_generation_buckets": made_from["generation"],
    }
    return f"ansible-playbook -i INVENTORY playbooks/compile.yml -e '{json.dumps(settings)}'"


def held(store: str) -> list[dict[str, Any]]:
    """The inputs of all that a store in a directory has; nothing where there is no such directory.

    Each has a record beside its archive, so that gigabytes need not be read to learn this.
    """
    found = []
    for path in sorted(Path(store).expanduser().glob("*.json")):
        try:
            found.append(dict(json.loads(path.read_text(encoding="utf-8"))["inputs"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # not ours: what is taken is checked
    return found


def missing(made_from: Mapping[str, Any], there: Iterable[Mapping[str, Any]], where: str) -> str:
    """Why an engine would have to compile, and what to do first; empty where it would not."""
    known = list(there)
    if any(compiled.key(one) == compiled.key(made_from) for one in known):
        return ""
    return f"{where}: {compiled.lacking(made_from, known)}"
