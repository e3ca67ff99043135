"""Make the reference of a model: what it says of the gate's texts, computed in fp32 by transformers.

Run it on a node that has the model, with the engine's Python:

    fp32.py --model DIR --model-id ID --key KEY --texts gate-texts.json --out FILE

It needs four bytes of memory for each parameter, and computes on CPUs with nothing of the engine but torch's
plain operators. A file that is there already is left as it is.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

#: Tokens of the long text, where the model can read as many.
LONG_MOST = 8192
#: Tokens that are computed at a time: so many rows of logits are in memory.
AT_ONCE = 128
#: Digits after the point: 1e-5 nats is far below what bf16 rounds.
DIGITS = 5


def scored(network: Any, name: str, tokens: list[int]) -> dict[str, Any]:
    """What the model says of each token but the first (``ingot.gate.reference.Scored``)."""
    import torch

    found: dict[str, list[float]] = {
        part: [] for part in ("logprobs", "top", "top_logprob", "margin", "entropy", "variance")
    }
    cache = None
    with torch.inference_mode():
        for at in range(0, len(tokens) - 1, AT_ONCE):
            piece = tokens[at : min(at + AT_ONCE, len(tokens) - 1)]
            said = network(torch.tensor([piece]), past_key_values=cache, use_cache=True)
            cache = said.past_key_values
            logprobs = said.logits[0].float().log_softmax(-1)
            following = torch.tensor(tokens[at + 1 : at + 1 + len(logprobs)])
            two = logprobs.topk(2)
            surprisal = -logprobs
            chance = logprobs.exp()
            entropy = (chance * surprisal).sum(-1)
            spread = (chance * surprisal.square()).sum(-1) - entropy.square()
            for part, values in (
                ("logprobs", logprobs.gather(1, following[:, None])[:, 0]),
                ("top_logprob", two.values[:, 0]),
                ("margin", two.values[:, 0] - two.values[:, 1]),
                ("entropy", entropy),
                ("variance", spread.clamp(min=0)),
            ):
                found[part] += [round(float(value), DIGITS) for value in values]
            found["top"] += [int(token) for token in two.indices[:, 0]]
    return {"name": name, "tokens": tokens, **found}


def conversation(tokenizer: Any, messages: list[dict[str, str]]) -> dict[str, Any] | None:
    """The tokens of the conversation; none of a model without a template."""
    template = tokenizer.get_chat_template() if tokenizer.chat_template else ""
    if not template:
        return None
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    return {"messages": messages, "tokens": tokens, "dated": "strftime" in template}


def repeated(texts: list[list[int]], length: int) -> list[int]:
    """All texts, over and over, to a length."""
    whole = [token for tokens in texts for token in tokens]
    return (whole * (length // len(whole) + 1))[:length]


def reference(model: Path, model_id: str, key: str, asked: dict[str, Any]) -> dict[str, Any]:
    """The whole of it (``ingot.gate.reference.Reference``)."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(model, local_files_only=True)
    network = transformers.AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.float32, local_files_only=True
    )
    network.eval()
    tokens = [tokenizer(text["text"])["input_ids"] for text in asked["texts"]]
    length = min(getattr(network.config, "max_position_embeddings", LONG_MOST), LONG_MOST)
    strings = [(text, tokenizer(text)["input_ids"]) for text in asked["strings"]]
    return {
        "model_id": model_id,
        "key": key,
        "made_with": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "texts": [
            scored(network, text["name"], ids) for text, ids in zip(asked["texts"], tokens, strict=True)
        ],
        "long": scored(network, "long", repeated(tokens, length)),
        "strings": [
            {"text": text, "tokens": ids, "read": tokenizer.decode(ids, skip_special_tokens=False)}
            for text, ids in strings
        ],
        "chat": conversation(tokenizer, asked["conversation"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--model-id", required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    if given.out.exists():
        return
    made = reference(given.model, given.model_id, given.key, json.loads(given.texts.read_text()))
    given.out.parent.mkdir(mode=0o755, exist_ok=True)
    partial = given.out.with_suffix(".partial")
    partial.write_text(json.dumps(made))
    partial.chmod(0o644)
    partial.replace(given.out)


if __name__ == "__main__":
    main()
