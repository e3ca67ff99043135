"""Tables of data: whatever is wrong with one is said by file and field, with what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ingot import accelerators, driver_sets, formats, images, models, nccl
from ingot.checkout import ROOT
from ingot.table import MEND, Strict, TableError, check, read

LOADERS: dict[str, Callable[[Path], Any]] = {
    "files/accelerators.yml": accelerators.load,
    "files/driver-sets.yml": driver_sets.load,
    "files/formats.yml": formats.load,
    "files/models.yml": models.load_catalog,
    "files/nccl.yml": nccl.load,
    "packer/images.yml": images.load,
}


class Row(Strict):
    size: int


class Rows(Strict):
    rows: dict[str, Row]


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("files/accelerators.yml", "generation: hopper", "generation: volta", "gpus.h100.generation: Input"),
        (
            "files/accelerators.yml",
            'compute_capability: "9.0"',
            "compute_capability: 9.0",
            "gpus.h100.compute_capability: Input should be a valid string",
        ),
        ("files/accelerators.yml", "nvswitch: true", "nvlink: true", "gpus.b200.nvlink: unknown field"),
        ("files/accelerators.yml", "families: [p5]", "families: [p4d]", "families listed twice: p4d"),
        ("files/accelerators.yml", "memory_mib: 144384", "memory_mib: 0", "gpus.h200.memory_mib: Input"),
        ("files/accelerators.yml", "cores: 2", "cores: none", "neuron.inferentia2.cores: Input"),
        ("files/formats.yml", "how: native", "how: fast", "formats.bf16.vllm.0.how: Input should be"),
        ("files/formats.yml", "proof: unproved", "proof: source", "go together"),
        ("files/formats.yml", "source: vllm/platforms/cpu.py", 'source: ""', "needs a source"),
        ("files/formats.yml", "[turing], how: none", "[hopper], how: none", "once: hopper, turing"),
        ("files/formats.yml", "bits: 16", "bit: 16", "formats.bf16.bit: unknown field"),
        ("files/models.yml", "dtype: bfloat16", "dtype: int8", ".dtype: Input should be"),
        ("files/nccl.yml", "  nccl: 2.29.7", "  nccl: 2.31.2", "aws-ofi-nccl 1.20.0 was tested with NCCL"),
        (
            "files/nccl.yml",
            "\n  aws_ofi_nccl: 1.20.0",
            "\n  aws_ofi_nccl: 1.21.1",
            "stack: EFA installer 1.49.0 brings aws-ofi-nccl 1.20.0",
        ),
        ("files/nccl.yml", "here: set", "here: always", ".here: Input should be 'set', 'left' or 'never'"),
        ("files/nccl.yml", "efa_driver: 3.1.0", "driver: 3.1.0", ".driver: unknown field"),
        ("files/nccl.yml", "where: nvswitch", "where: nvlink", ".refused.where: Input"),
        ("files/nccl.yml", "sha256: cf2e", "sha256: zf2e", "installers.1.49.0.sha256: "),
        (
            "files/nccl.yml",
            "libfabric1-aws: 2.4.0amzn5.0",
            "libfabric1-aws: 2.4.0amzn4.0",
            "libfabric1-aws is 2.4.0amzn4.0, and the installer brings 2.4.0amzn5.0",
        ),
        (
            "files/nccl.yml",
            "libnccl-ofi: 1.20.0-1",
            "libnccl-ofi: 1.19.2-1",
            "libnccl-ofi is 1.19.2-1, and the installer brings 1.20.0",
        ),
        ("packer/images.yml", "size: 24", "size: big", "images.x86.volume.size: Input"),
    ],
)
def test_a_wrong_table_is_refused_by_file_and_field(
    tmp_path: Path, name: str, old: str, new: str, said: str
) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "wrong.yml"
    path.write_text(text.replace(old, new))
    with pytest.raises(TableError) as refused:
        LOADERS[name](path)
    assert refused.value.why.startswith(f"{path}: ")
    assert said in refused.value.why
    assert refused.value.do.startswith("Mend it; ")


@pytest.mark.parametrize("content", [None, b"sets: [", b"\xff\xfe"], ids=["absent", "no YAML", "no text"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "table.yml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TableError) as refused:
        read(path, Rows)
    assert refused.value.why.startswith(f"{path} cannot be read: ")
    assert refused.value.do == MEND


def test_all_that_is_wrong_is_said_at_once_without_the_words_of_a_program(tmp_path: Path) -> None:
    path = tmp_path / "table.yml"
    path.write_text("rows: {a: {size: x, colour: red}, b: {}, c: 7}\n")
    with pytest.raises(TableError) as refused:
        read(path, Rows)
    assert str(refused.value) == (
        f"{path}: rows.a.size: Input should be a valid integer, unable to parse string as an integer;"
        " rows.a.colour: unknown field; rows.b.size: Field required;"
        f" rows.c: it is no mapping of names to values. {MEND}."
    )


def test_an_empty_table_is_refused_as_such(tmp_path: Path) -> None:
    path = tmp_path / "table.yml"
    path.write_text("# nothing\n")
    with pytest.raises(TableError, match=r"table\.yml: it is no mapping of names to values\. "):
        read(path, Rows)


def test_data_of_a_variable_is_called_by_its_name() -> None:
    assert check({"rows": {"a": {"size": 1}}}, Rows, "rows_of_mine", "Mend it").rows["a"].size == 1
    with pytest.raises(TableError, match=r"^rows_of_mine: rows\.a\.size: Field required\. Mend it\.$"):
        check({"rows": {"a": {}}}, Rows, "rows_of_mine", "Mend it")
