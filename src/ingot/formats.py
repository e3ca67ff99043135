"""Number formats of weights: what a checkpoint is in, and whether an engine computes with it there.

``files/formats.yml`` is the table. Where a node computes is a *place*: a generation of GPUs, Inferentia2, or
CPUs, those for x86-64 by what their cores have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, model_validator

from ingot import accelerators, instance_types
from ingot.checkout import ROOT
from ingot.table import Strict, read

TABLE = ROOT / "files" / "formats.yml"

Cpu = Literal["x86-64-v3", "x86-64-v4", "x86-64-amx", "arm"]
Place = Literal[accelerators.Generation, "inferentia2", Cpu]
Engine = Literal["vllm", "tensorrt_llm"]
How = Literal["native", "weights", "none", "unknown"]
Proof = Literal["silicon", "emulated", "native-x86", "stub", "source", "documentation", "unproved"]

GPUS: tuple[Place, ...] = get_args(accelerators.Generation)
CPUS: tuple[Place, ...] = get_args(Cpu)
PLACES: tuple[Place, ...] = (*GPUS, "inferentia2", *CPUS)
ENGINE_NAMES: Mapping[Engine, str] = {"vllm": "vLLM", "tensorrt_llm": "TensorRT-LLM"}

#: By the catalogue's word for what a model computes in.
UNQUANTISED: Mapping[str, str] = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
#: The same for the engine's `--dtype`, where it is not of the above.
DTYPE_ALIASES: Mapping[str, str] = {"half": "float16", "float": "float32"}


class FormatError(ValueError):
    """A checkpoint is in a format that the table does not know; the message names it."""


class Claim(Strict):
    """What is so on some places, and who says so."""

    places: Annotated[list[Place], Field(min_length=1)]
    how: How
    proof: Proof
    source: str = ""

    @model_validator(mode="after")
    def _is_a_claim(self) -> Self:
        if (self.how == "unknown") != (self.proof == "unproved"):
            raise ValueError("how: unknown and proof: unproved go together")
        if self.how != "unknown" and not self.source:
            raise ValueError(f"how: {self.how} needs a source")
        return self

    @property
    def works(self) -> bool:
        return self.how in ("native", "weights")


class Format(Strict):
    """One format.

    ``methods``: what `--quantization` may say where a checkpoint is in it. ``online``: what it says for the
    engine to make the format from a checkpoint that is not quantised.
    """

    what: Annotated[str, Field(min_length=1)]
    bits: Annotated[int, Field(gt=0)]
    methods: list[str] = Field(default_factory=list)
    online: list[str] = Field(default_factory=list)
    vllm: list[Claim]
    tensorrt_llm: list[Claim]

    @model_validator(mode="after")
    def _says_something_of_each_place(self) -> Self:
        for engine, claims, places in (
            ("vllm", self.vllm, PLACES),
            ("tensorrt_llm", self.tensorrt_llm, GPUS),
        ):
            said = [place for claim in claims for place in claim.places]
            if sorted(said) != sorted(places):
                wrong = sorted({place for place in (*said, *places) if said.count(place) != 1})
                raise ValueError(f"{engine} must have each place once: {', '.join(wrong)}")
        return self

    def claim(self, place: Place, engine: Engine = "vllm") -> Claim:
        """What is known of it there."""
        claims = self.vllm if engine == "vllm" else self.tensorrt_llm
        found = next((claim for claim in claims if place in claim.places), None)
        return found or Claim(
            places=[place], how="none", proof="documentation", source="it is for NVIDIA's GPUs"
        )


class Table(Strict):
    """The whole file.

    ``vllm``: the version that was read. ``amx``: pattern of the families that have it. ``others``: what
    `--quantization` takes besides.
    """

    vllm: str
    amx: str
    others: list[str]
    formats: dict[str, Format]


@cache
def load(path: Path = TABLE) -> Table:
    """Read the table."""
    return read(path, Table)


def place_of(instance_type: str, accelerator: str) -> Place | None:
    """Where an engine computes on a type: on its ``nvidia`` or ``neuron``, or else its CPUs.

    None where nobody knows.
    """
    if accelerator == "nvidia":
        gpu = accelerators.gpu_of(instance_type)
        return gpu.generation if gpu else None
    if accelerator == "neuron":
        return "inferentia2" if accelerators.neuron_of(instance_type) else None
    if re.fullmatch(load().amx, instance_types.family(instance_type)):
        return "x86-64-amx"
    core = instance_types.core_of(instance_type)
    if core in ("x86-64-v3", "x86-64-v4"):
        return "x86-64-v3" if core == "x86-64-v3" else "x86-64-v4"
    return "arm" if core.startswith("neoverse-") else None


def working(place: Place, engine: Engine = "vllm") -> list[str]:
    """The formats that work there, as far as anybody looked, in the table's order."""
    return [name for name, one in load().formats.items() if one.claim(place, engine).works]


def places_of(name: str, engine: Engine = "vllm") -> list[Place]:
    """Where a format works."""
    return [place for place in PLACES if load().formats[name].claim(place, engine).works]


def of_online(method: str) -> str | None:
    """The format that the engine makes of an unquantised checkpoint, told so by `--quantization`."""
    return next((name for name, one in load().formats.items() if method in one.online), None)


def of_method(method: str) -> list[str]:
    """The formats of which checkpoints may be so called by `--quantization`."""
    return [name for name, one in load().formats.items() if method in one.methods]


def documented() -> str:
    """The table of docs/models.md: for vLLM, by place."""
    lines = [
        "| on | computes with | loads, and widens to 16 bits | does not work | nobody looked |",
        "|---|---|---|---|---|",
    ]
    for place in PLACES:
        cells = [
            ", ".join(name for name, one in load().formats.items() if one.claim(place).how == how)
            for how in ("native", "weights", "none", "unknown")
        ]
        lines.append(f"| {place} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def of_checkpoint(config: Mapping[str, Any]) -> list[str]:
    """The formats of a checkpoint, by the ``quantization_config`` of its config.json.

    Or by ModelOpt's own hf_quant_config.json. Several, where its layers differ.

    Raises:
        FormatError: it is in one that the table lacks.
    """
    own = config.get("quantization")
    if isinstance(own, Mapping):
        config = {"quant_method": "modelopt", **own}
    method = str(config.get("quant_method", "")).lower()
    match method:
        case "fp8" | "bitsandbytes" | "gguf":
            return [method]
        case "mxfp4" | "gpt_oss_mxfp4":
            return ["mxfp4"]
        case "awq":
            return ["int4-awq"]
        case "gptq":
            return [_known(f"int{config.get('bits', 4)}-gptq", config)]
        case "modelopt" | "modelopt_fp4":
            algorithm = str(config.get("quant_algo", "")).upper()
            if "NVFP4" in algorithm:
                return ["nvfp4"]
            if algorithm.startswith("FP8"):
                return ["fp8"]
        case "compressed-tensors":
            groups = config.get("config_groups")
            if isinstance(groups, Mapping) and groups:
                return sorted({_compressed(group, config) for group in groups.values()})
    raise _unknown(config)


def _compressed(group: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """The format of one group of layers of compressed-tensors."""
    weights = group.get("weights") or {}
    activations = group.get("input_activations")
    bits, kind = weights.get("num_bits"), weights.get("type")
    if kind == "float":
        if bits == 8:
            return "fp8"
        if bits == 4:
            return "mxfp4" if weights.get("group_size") == 32 else "nvfp4"
    rounded = (activations or {}).get("num_bits", 16)
    return _known(f"{kind}{bits}-w{bits}a{rounded}", config)


def _known(name: str, config: Mapping[str, Any]) -> str:
    if name not in load().formats:
        raise _unknown(config)
    return name


def _unknown(config: Mapping[str, Any]) -> FormatError:
    told = ", ".join(
        f"{key} {config[key]}" for key in ("quant_method", "quant_algo", "format", "bits") if config.get(key)
    )
    return FormatError(
        f"its quantization_config ({told or 'without a quant_method'}) is of no format of files/formats.yml:"
        f" {', '.join(load().formats)}"
    )
