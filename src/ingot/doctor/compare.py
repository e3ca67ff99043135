"""Whether an engine answers many requests at once as it answers each alone.

Kernels that are wrong for a batch, and blocks of the prefix cache that are another request's, raise no error:
the text is wrong. Each prompt names a word that its answer has to repeat, so that rounding, which is not the
same in a batch, decides nothing.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .causes import RANK_CHECK
from .finding import Finding
from .settings import Settings

API_KEY = Path("/etc/ingot/credentials/api-key")
TIMEOUT = 300.0
WORDS = ("granite", "walnut", "copper", "lantern", "harbour", "saffron", "marble", "falcon")
# Longer than a block of the cache (128 tokens on CPUs), so that prompts with the same beginning share some.
_SHARED = "The guests of the house write their passwords into this book, one on each page. " * 12
_FILLER = "It rained all day, and nobody came. "
_ADVICE = (
    "Find out which: serving_engine_flags {enable-prefix-caching: false} leaves the cache out,"
    " serving_max_num_seqs: 1 the batch. Then take a build or a version without the fault: what this one says"
    " under load cannot be trusted."
)


class CannotAskError(Exception):
    """The engine does not answer as an engine does; the message says what it did."""


def prompt(number: int, note: str) -> str:
    """The prompts differ in length and in the word that is asked for; a note of its own shares no block."""
    word = WORDS[number]
    page = f'Note {note}. {_SHARED}{_FILLER * number}My password is "{word}". '
    return f'{page}Question: What is my password? Answer: My password is "'


def ask(url: str, model: str, key: str, text: str) -> str:
    """What the engine writes after ``text``.

    Raises:
        CannotAskError: it gives no answer.
    """
    body = {"model": model, "prompt": text, "max_tokens": 8, "temperature": 0}
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    try:
        request = urllib.request.Request(url, data=json.dumps(body).encode(), headers=headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            return str(json.loads(answer.read())["choices"][0]["text"])
    except urllib.error.HTTPError as error:
        said = error.read().decode("utf-8", "replace").strip()[:300]
        raise CannotAskError(f"{url} answered {error.code}: {said}") from None
    except (OSError, http.client.HTTPException) as error:
        raise CannotAskError(f"{url} does not answer: {error}") from None
    except (ValueError, LookupError, TypeError) as error:
        raise CannotAskError(f"{url} answered something else than a completion ({error!r})") from None


def judge(alone: Sequence[str], at_once: Sequence[str], again: Sequence[str]) -> Iterator[Finding]:
    """What is answered right alone is answered right in a batch, and from the cache."""
    right = [number for number, text in enumerate(alone) if WORDS[number] in text]
    if len(right) <= len(WORDS) // 2:
        yield Finding(
            cause="answers-wrong",
            what=f"Of {len(WORDS)} simple questions {len(right)} were answered right, each asked alone.",
            action="Is this a model that follows instructions? If it is, the build or the weights are wrong.",
            rank=RANK_CHECK,
            evidence=alone[0],
        )
        return
    for how, texts in (("together with others", at_once), ("with its beginning in the cache", again)):
        wrong = [number for number in right if WORDS[number] not in texts[number]]
        if wrong:
            words = ", ".join(f"{WORDS[number]!r}: {texts[number].strip()!r}" for number in wrong)
            yield Finding(
                cause="answers-differ",
                what=f"{len(wrong)} of {len(right)} questions that are answered right alone are answered"
                f" wrong {how}.",
                action=_ADVICE,
                rank=RANK_CHECK,
                evidence=f"wanted and got: {words}"[:400],
            )


def compare(settings: Settings, key_file: Path = API_KEY) -> list[Finding]:
    """Ask this node's engine, and judge.

    Raises:
        CannotAskError: it could not be asked.
    """
    if not settings.address:
        raise CannotAskError("this node serves nothing: run site.yml")
    url = f"http://{settings.address}:{settings.port}/v1/completions"
    try:
        # Behind Ray Serve there is none.
        key = key_file.read_text(encoding="utf-8").strip() if settings.mode == "vllm" else ""
    except OSError as error:
        raise CannotAskError(f"{key_file}: {error.strerror}; run this as root") from None
    numbers = range(len(WORDS))
    alone = [ask(url, settings.model_id, key, prompt(number, f"{number}")) for number in numbers]
    prompts = [prompt(number, "of all") for number in numbers]
    with ThreadPoolExecutor(len(prompts)) as pool:
        at_once = list(pool.map(lambda text: ask(url, settings.model_id, key, text), prompts))
        again = list(pool.map(lambda text: ask(url, settings.model_id, key, text), prompts))
    return [finding.at(node=settings.node) for finding in judge(alone, at_once, again)]
