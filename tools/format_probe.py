"""One number format of weights on CPUs: does the engine load it, is it right, how fast is it?

Run it on a node, with the engine's Python:

    format_probe.py FORMAT MODEL SCRATCH     prints one line of JSON, after `RESULT `

with `--tokens N` for a shorter text, and `--untimed` where the processor is emulated.

It rounds the model's weights to the format (to nearest, with no calibration: what is tested is the
engine's kernel and not how well a model was quantised), computes the log-probabilities of a text in fp32
with exactly those rounded weights by transformers, and holds the engine's against them. A kernel that is
right differs by the rounding of bf16, and of activations where the format rounds them as well.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

GROUP = 64
TEXT = """\
A lighthouse keeper writes down the weather every evening. On Monday the wind came from the west and the
sea was calm. On Tuesday it rained, and two fishing boats came back early. On Wednesday the sun was out
again, so the keeper painted the door of the tower white and ate his lunch on the stairs. Water freezes at
zero degrees Celsius and boils at one hundred. The capital of France is Paris, the capital of Italy is
Rome, and the capital of Germany is Berlin. If a train leaves at nine and travels for three hours, it
arrives at noon. The keeper's sister, who is a teacher in the town, says that children learn to count by
counting things they like: apples, marbles, ships. One, two, three, four, five."""

Weights = dict[str, Any]


class Rounded:
    """A checkpoint: its tensors, its `quantization_config`, and the weights that they stand for, in fp32."""

    def __init__(self, tensors: Weights, config: dict[str, Any] | None, meant: Weights) -> None:
        self.tensors = tensors
        self.config = config
        self.meant = meant


def linear(name: str) -> bool:
    return name.endswith("_proj.weight")


def each(weights: Weights, config: dict[str, Any], one: Callable[[str, Any], tuple[Weights, Any]]) -> Rounded:
    """Round every linear layer by ``one``, which returns its tensors and the weight that they stand for."""
    tensors, meant = {}, {}
    for name, weight in weights.items():
        if linear(name):
            made, meant[name] = one(name.removesuffix(".weight"), weight.float())
            tensors.update(made)
        else:
            tensors[name], meant[name] = weight, weight.float()
    return Rounded(tensors, config, meant)


def compressed(
    form: str, weights: dict[str, Any], activations: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A `quantization_config` of compressed-tensors, for all linear layers but the last."""
    group = {"targets": ["Linear"], "weights": {"symmetric": True, "dynamic": False, **weights}}
    if activations:
        group["input_activations"] = {
            "symmetric": True,
            "dynamic": True,
            "strategy": "token",
            **activations,
        }
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def bf16(weights: Weights) -> Rounded:
    return Rounded(weights, None, {name: weight.float() for name, weight in weights.items()})


def by_channel(kind: str) -> Callable[[Weights], Rounded]:
    """8 bits, one scale for each output channel, activations rounded for each token: int8 or fp8."""

    def convert(weights: Weights) -> Rounded:
        import torch

        most = 127.0 if kind == "int" else 448.0

        def one(name: str, weight: Any) -> tuple[Weights, Any]:
            scale = (weight.abs().amax(1, keepdim=True) / most).clamp(min=1e-8).bfloat16()
            scaled = (weight / scale.float()).clamp(-most, most)
            rounded = scaled.round().to(torch.int8) if kind == "int" else scaled.to(torch.float8_e4m3fn)
            return {
                f"{name}.weight": rounded,
                f"{name}.weight_scale": scale,
            }, rounded.float() * scale.float()

        bits = {"num_bits": 8, "type": kind}
        form = "int-quantized" if kind == "int" else "float-quantized"
        return each(weights, compressed(form, {**bits, "strategy": "channel"}, bits), one)

    return convert


def by_group(weight: Any, *, zeros: bool) -> tuple[Any, Any, Any, Any]:
    """4 bits by groups of GROUP inputs: what it stands for, [in, out] ints of 0 to 15, scales, points."""
    from vllm.model_executor.layers.quantization.utils.quant_utils import quantize_weights
    from vllm.scalar_type import scalar_types

    kind = scalar_types.uint4 if zeros else scalar_types.uint4b8
    transposed = weight.t().contiguous()
    _, ints, scales, points = quantize_weights(transposed, kind, GROUP, zero_points=zeros)
    scales = scales.bfloat16()
    offset = points.repeat_interleave(GROUP, 0) if zeros else 8
    meant = (ints - offset).float() * scales.float().repeat_interleave(GROUP, 0)
    return meant.t().contiguous(), ints, scales, points


def gptq(weights: Weights) -> Rounded:
    import torch
    from vllm.model_executor.layers.quantization.utils.quant_utils import gptq_pack

    def one(name: str, weight: Any) -> tuple[Weights, Any]:
        meant, ints, scales, _ = by_group(weight, zeros=False)
        inputs, outputs = ints.shape
        # GPTQ's files hold a zero point less one: 7 in each of eight nibbles.
        points = torch.full((inputs // GROUP, outputs // 8), 0x77777777, dtype=torch.int32)
        return {
            f"{name}.qweight": gptq_pack(ints, 4, inputs, outputs),
            f"{name}.qzeros": points,
            f"{name}.scales": scales,
            f"{name}.g_idx": torch.arange(inputs, dtype=torch.int32) // GROUP,
        }, meant

    config = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True}
    return each(weights, config, one)


def awq(weights: Weights) -> Rounded:
    from vllm.model_executor.layers.quantization.utils.quant_utils import awq_pack

    def one(name: str, weight: Any) -> tuple[Weights, Any]:
        meant, ints, scales, points = by_group(weight, zeros=True)
        inputs, outputs = ints.shape
        return {
            f"{name}.qweight": awq_pack(ints, 4, inputs, outputs),
            f"{name}.qzeros": awq_pack(points, 4, inputs // GROUP, outputs),
            f"{name}.scales": scales,
        }, meant

    config = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
    return each(weights, config, one)


def packed(weights: Weights) -> Rounded:
    """INT4 weights as llm-compressor writes them (`W4A16`)."""
    import torch
    from vllm.model_executor.layers.quantization.utils.quant_utils import gptq_pack

    def one(name: str, weight: Any) -> tuple[Weights, Any]:
        meant, ints, scales, _ = by_group(weight, zeros=False)
        inputs, outputs = ints.shape
        return {
            f"{name}.weight_packed": gptq_pack(ints, 4, inputs, outputs).t().contiguous(),
            f"{name}.weight_scale": scales.t().contiguous(),
            f"{name}.weight_shape": torch.tensor([outputs, inputs]),
        }, meant

    bits = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}
    return each(weights, compressed("pack-quantized", bits), one)


def four_by_eight(weights: Weights) -> Rounded:
    """INT4 weights with activations rounded to INT8 for each token (`W4A8`): Arm's own kernels."""
    import torch

    def one(name: str, weight: Any) -> tuple[Weights, Any]:
        meant, ints, scales, _ = by_group(weight, zeros=False)
        return {
            f"{name}.weight": (ints.t() - 8).to(torch.int8).contiguous(),
            f"{name}.weight_scale": scales.t().contiguous(),
        }, meant

    bits = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}
    return each(weights, compressed("int-quantized", bits, {"num_bits": 8, "type": "int"}), one)


FORMATS: dict[str, tuple[Callable[[Weights], Rounded], str | None]] = {
    "bf16": (bf16, None),
    "int8-w8a8": (by_channel("int"), None),
    "int4-gptq": (gptq, None),
    "int4-awq": (awq, None),
    "int4-w4a16": (packed, None),
    "int4-w4a8": (four_by_eight, None),
    "fp8-w8a8": (by_channel("float"), None),
    "fp8-online": (bf16, "fp8"),
    "int8-online": (bf16, "int8_per_channel_weight_only"),
}
"""How the checkpoint is made, and what is said to the engine's `--quantization`."""


def checkpoint(made: Rounded, model: Path, target: Path) -> None:
    """Write a model directory: the tensors, and the rest from the model's own."""
    from safetensors.torch import save_file

    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for path in model.iterdir():
        if path.suffix == ".json" and path.name != "model.safetensors.index.json":
            shutil.copy(path, target)
    config = json.loads((model / "config.json").read_text())
    if made.config:
        config["quantization_config"] = made.config
    (target / "config.json").write_text(json.dumps(config))
    tensors = {name: tensor.contiguous() for name, tensor in made.tensors.items()}
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})


def reference(meant: Weights, model: Path, tokens: list[int]) -> list[float]:
    """Log-probability of each token but the first, in fp32, by transformers."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(model)
    network = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    missing, unknown = network.load_state_dict(meant, strict=False)
    assert set(missing) <= {"lm_head.weight"} and not unknown, (missing, unknown)  # that one is tied
    network.tie_weights()
    network.eval()
    with torch.inference_mode():
        logits = network(torch.tensor([tokens])).logits[0]
    of_next = logits.log_softmax(-1)[:-1].gather(1, torch.tensor(tokens[1:])[:, None])
    return [float(value) for value in of_next[:, 0]]


def speed(engine: Any, tokens: list[int]) -> dict[str, float]:
    """Tokens a second, by prompts at a time."""
    from vllm import SamplingParams

    forced = SamplingParams(max_tokens=64, ignore_eos=True, temperature=0)
    speeds = {}
    for batch in (1, 16):
        prompts = [{"prompt_token_ids": tokens[at : at + 16]} for at in range(batch)]
        engine.generate(prompts, SamplingParams(max_tokens=4, ignore_eos=True))  # the first is slower
        started = time.perf_counter()
        engine.generate(prompts, forced)
        speeds[str(batch)] = batch * 64 / (time.perf_counter() - started)
    return speeds


def probe(name: str, model: Path, scratch: Path, most: int | None, *, timed: bool) -> dict[str, Any]:
    """All that is asked of one format, with the first ``most`` tokens of the text."""
    from safetensors.torch import load_file
    from transformers import AutoTokenizer

    convert, online = FORMATS[name]
    tokens = AutoTokenizer.from_pretrained(model)(TEXT)["input_ids"][:most]
    made = convert(load_file(model / "model.safetensors"))
    target = scratch / name
    checkpoint(made, model, target)
    size = (target / "model.safetensors").stat().st_size
    expected = reference(made.meant, model, tokens)
    del made
    gc.collect()

    from vllm import LLM, SamplingParams

    engine = LLM(
        str(target),
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=16,
        kv_cache_memory_bytes=1 << 29,
        quantization=online,
        enable_prefix_caching=False,
    )
    prompt = {"prompt_token_ids": tokens}
    (answer,) = engine.generate(prompt, SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0))
    found = [
        place[token].logprob for place, token in zip(answer.prompt_logprobs[1:], tokens[1:], strict=True)
    ]
    apart = sorted(abs(one - other) for one, other in zip(found, expected, strict=True))
    return {
        "bytes": size,
        "loss": -statistics.fmean(found),
        "loss_expected": -statistics.fmean(expected),
        "apart_median": statistics.median(apart),
        "apart_p99": apart[int(len(apart) * 0.99)],
        "tokens": len(apart),
        "tokens_s": speed(engine, tokens) if timed else {},
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("format", choices=list(FORMATS))
    parser.add_argument("model", type=Path)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--untimed", action="store_true")
    asked = parser.parse_args()
    found = probe(asked.format, asked.model, asked.scratch, asked.tokens, timed=not asked.untimed)
    print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
