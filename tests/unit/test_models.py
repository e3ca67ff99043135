"""The catalogue of models: what it accepts, what it refuses and in which words, and how an entry is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ingot import models
from ingot.table import TableError

ROOT = Path(__file__).parents[2]
SMOLLM = "HuggingFaceTB/SmolLM2-135M-Instruct"


def entry(**changes: Any) -> dict[str, Any]:
    """A sound entry, with changes."""
    files = [
        {"path": name, "size": 3, "sha256": "a" * 64}
        for name in ("config.json", "tokenizer_config.json", "model.safetensors")
    ]
    shape = {
        "layers": 2,
        "attention_heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "max_model_len": 128,
        "weight_bytes": 3,
    }
    return {
        "revision": "abc",
        "licence": "mit",
        "dtype": "bfloat16",
        "shape": shape,
        "files": files,
    } | changes


def test_a_format_that_no_table_has_is_refused() -> None:
    models.parse_catalog({"a/b": entry(quantization=["int4-awq"])})
    with pytest.raises(TableError, match=r"files/formats\.yml has no format int5-awq"):
        models.parse_catalog({"a/b": entry(quantization=["int5-awq"])})


@pytest.mark.parametrize("name", ["models.yml", "models.rehearsal.yml"])
def test_our_catalogues_are_valid_and_have_the_same_model(name: str) -> None:
    model = models.load_catalog(ROOT / "files" / name).model(SMOLLM)
    assert model.shape.weight_bytes == 269_060_552
    assert (model.shape.layers, model.shape.kv_heads, model.shape.head_dim) == (30, 3, 64)


@pytest.mark.parametrize(
    ("model_id", "words"),
    [
        ("../x", "'..'"),
        ("owner/../../etc", "'..'"),
        ("/etc/passwd", "absolute"),
        ("", "owner/name"),
        ("owner/name/more", "owner/name"),
        ("owner/.hidden", "owner/name"),
        ("owner/na me", "owner/name"),
        ("owner//name", "owner/name"),
    ],
)
def test_an_id_that_leaves_the_store_is_refused_by_name(model_id: str, words: str) -> None:
    with pytest.raises(models.ModelError) as refusal:
        models.parse_catalog({}).model(model_id)
    assert repr(model_id) in str(refusal.value)
    assert words in str(refusal.value)


def test_a_catalogue_cannot_bring_such_an_id_in() -> None:
    with pytest.raises(TableError, match="leave the model store"):
        models.parse_catalog({"../x": entry()})


@pytest.mark.parametrize("path", ["../config.json", "/etc/passwd", "a//b", "a/./b", ".hidden"])
def test_a_file_that_leaves_its_model_is_refused(path: str) -> None:
    files = [*entry()["files"], {"path": path, "size": 1, "sha256": "b" * 64}]
    with pytest.raises(TableError, match="not a plain path"):
        models.parse_catalog({"a/b": entry(files=files)})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"files": entry()["files"][:2]}, "no .safetensors"),
        ({"files": entry()["files"][1:]}, "config.json is not among the files"),
        ({"files": entry()["files"] * 2}, "listed twice"),
        ({"files": [{"path": "config.json", "size": 1, "sha256": "xyz"}]}, "a/b.files.0.sha256"),
        ({"dtype": "int8"}, "a/b.dtype"),
        ({"colour": "red"}, "a/b.colour"),
        ({"source": {"kind": "s3", "location": "https://x"}}, "begins with s3://"),
        ({"source": {"kind": "directory"}}, "begins with /"),
    ],
)
def test_a_bad_entry_is_refused_and_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(TableError) as refusal:
        models.parse_catalog({"a/b": entry(**changes)}, "inventory")
    assert words in str(refusal.value)
    assert str(refusal.value).startswith("inventory: models.a/b")


def test_an_unknown_model_names_those_that_are_known_and_what_to_do() -> None:
    with pytest.raises(
        models.ModelError, match=r"it has: a/b\); make its entry with `ingot models lock c/d`"
    ):
        models.parse_catalog({"a/b": entry()}).model("c/d")


def test_where_files_are() -> None:
    model = models.parse_catalog({"a/b": entry()}).model("a/b")
    assert model.source.url("a/b", "abc", "x.json") == "https://huggingface.co/a/b/resolve/abc/x.json"
    mirror = models.override_source("a/b", {"kind": "http", "location": "http://mirror/models/"})
    assert mirror.url("a/b", "abc", "x.json") == "http://mirror/models/a/b/x.json"
    with pytest.raises(TableError, match=r"model_store_source_override: .* begins with s3://"):
        models.override_source("a/b", {"kind": "s3", "location": "http://mirror"})
