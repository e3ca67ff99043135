"""Programs that are compiled ahead of time: their key, how a node makes, passes on and checks them.

The compiler is a stub (a shell script): what is proved is what it is asked, and what becomes of its failures.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ingot_neuron import programs
from program import load

from ingot import compiled, models, neuron_artifacts, neuron_sets
from ingot.checkout import ROOT
from ingot.driver import RefusedError
from ingot.filters import FILTERS
from ingot.sizing import GIB

node = load(ROOT / "roles/neuron/files/neuron_node.py")
FLAGS = {"tensor-parallel-size": 2, "max-model-len": 1024, "max-num-seqs": 4}
MODEL = {"id": "made/up", "hash": "0" * 64, "dtype": "bfloat16", "device": "Inferentia2"}
SDK = "sdk-2.28.1"
MAKES = """
while [ "$1" != --compiled-model-path ]; do shift; done
mkdir -p "$2/weights"
echo program > "$2/model.pt"
echo shard > "$2/weights/tp0.safetensors"
"""


def planned(
    flags: Mapping[str, Any] = FLAGS, model: Mapping[str, str] = MODEL, **more: Any
) -> dict[str, Any]:
    """The plan as the role has it."""
    sets = {name: one.model_dump() for name, one in neuron_sets.load().sets.items()}
    host = {"cpus": 2, "memory_bytes": 1}
    found: dict[str, Any] = FILTERS["ingot_neuron_programs"](flags, sets, SDK, model, GIB, host, **more)
    return found


@dataclass
class Host:
    """A host with a model, and a compiler that does what a script says."""

    place: Path
    plan: dict[str, Any]

    @property
    def directory(self) -> Path:
        return Path(self.plan["directory"])

    @property
    def log(self) -> Path:
        return self.place / "log"

    def run(self, script: str = MAKES, chips: int = 1) -> None:
        program = self.place / "inference_demo"
        program.write_text(
            f'#!/bin/sh\necho "$NEURON_PLATFORM_TARGET_OVERRIDE $*" >> {self.place}/asked\n{script}'
        )
        program.chmod(0o755)
        programs.compile_all(self.plan, self.place / "model", program, self.log, chips=chips)

    def asked(self) -> list[str]:
        return (self.place / "asked").read_text().splitlines()

    def check(self) -> None:
        programs.check(self.plan, self.place / "seen.json")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return made(tmp_path, planned())


def made(place: Path, plan: dict[str, Any]) -> Host:
    (place / "model").mkdir(parents=True, exist_ok=True)
    (place / "model/config.json").write_text('{"model_type": "llama"}')
    root = place / "neuron"
    root.mkdir(exist_ok=True)
    takes = plan["takes"] | {"disk_bytes": 1}
    return Host(place, plan | {"root": str(root), "directory": str(root / plan["key"]), "takes": takes})


# --- the key ------------------------------------------------------------------------------------------------


def test_everything_that_decides_what_is_made_is_in_the_key() -> None:
    keys = {
        planned()["key"],
        planned(FLAGS | {"tensor-parallel-size": 4})["key"],
        planned(FLAGS | {"max-num-seqs": 8})["key"],
        planned(FLAGS | {"max-model-len": 2048})["key"],
        planned(context=[512, 1024])["key"],
        planned(generation=[512, 1024])["key"],
        planned(extra=["--fused-qkv"])["key"],
        planned(model=MODEL | {"hash": "1" * 64})["key"],
        planned(model=MODEL | {"dtype": "float16"})["key"],
    }
    assert len(keys) == 9
    inputs = planned()["inputs"]
    assert {inputs["sdk"], inputs["plugin"], inputs["vllm"]} == {"2.28.1", "0.4.1", "0.13.0"}
    assert inputs["neuronx-cc"].startswith("2.23.6484.0")
    for name in inputs:
        assert compiled.key(inputs | {name: "another"}) != planned()["key"], name


def test_the_models_hash_is_that_of_all_its_files() -> None:
    entry = models.load_catalog(ROOT / "files/models.yml").models["HuggingFaceTB/SmolLM2-135M-Instruct"]
    told = FILTERS["ingot_model_hash"](entry.model_dump())
    assert told == neuron_artifacts.model_hash(entry) and len(told) == 64
    other = entry.model_copy(update={"files": entry.files[1:]})
    assert neuron_artifacts.model_hash(other) != told


def test_flags_that_follow_from_the_plan_are_refused() -> None:
    told = planned(extra=["--fused-qkv", "--tp-degree=8"])
    assert "neuron_compile_flags has --tp-degree=8" in told["refused"]
    assert planned(extra=["--skip-save-sharded-checkpoint"])["refused"]
    assert "ends with 512" in planned(context=[512])["refused"]


# --- compiling ----------------------------------------------------------------------------------------------


def test_nxd_inference_is_asked_as_its_guides_have_it(host: Host) -> None:
    host.run()
    (asked,) = host.asked()
    assert asked.startswith(" --model-type llama --task-type causal-lm run --model-path ")
    for words in (
        "--torch-dtype bfloat16 --tp-degree 2 --batch-size 4 --is-continuous-batching --ctx-batch-size 1",
        "--tkg-batch-size 4 --max-context-length 1024 --seq-len 1024",
        "--context-encoding-buckets 128 256 512 1024 --token-generation-buckets 128 256 512 1024",
        "--compile-only",
    ):
        assert words in asked
    host.check()
    assert (host.directory / "model.pt").stat().st_mode & 0o777 == 0o644
    assert host.directory.stat().st_mode & 0o777 == 0o755
    host.run()
    assert len(host.asked()) == 1, "what is there is not compiled again"


def test_without_chips_it_is_told_for_which_ones(host: Host) -> None:
    host.run(chips=0)
    assert host.asked()[0].startswith("inf2 --model-type")


def test_a_failure_without_reason_is_tried_again_and_no_other(host: Host) -> None:
    once = f"[ $(wc -l < {host.place}/asked) = 2 ] || exit 70\n"
    host.run(once + MAKES)
    assert len(host.asked()) == 2
    host.check()


@pytest.mark.parametrize(
    ("script", "said", "times"),
    [
        ("exit 70", "failed with status 70 3 times: it says nothing", 3),
        ("echo before; echo 'ERROR: no such op'; echo after; exit 1", "status 1: ERROR: no such op (log:", 1),
        ("kill -9 $$", "the compiler was killed for memory; 0.0 GiB were estimated", 1),
        ("echo '[F137] neuronx-cc was forcibly killed'; exit 1", "the compiler was killed for memory", 1),
        ("exit 0", "ended well and left nothing", 1),
    ],
    ids=["always without reason", "an error", "killed", "its compiler killed", "nothing made"],
)
def test_a_failed_compilation_is_named_and_leaves_nothing(
    host: Host, script: str, said: str, times: int
) -> None:
    with pytest.raises(RefusedError) as refused:
        host.run(script)
    assert said in str(refused.value)
    assert len(host.asked()) == times
    assert list(Path(host.plan["root"]).iterdir()) == []


def test_a_host_that_is_too_small_is_refused_first(host: Host) -> None:
    plan = neuron_artifacts.plan(planned()["inputs"], 15 * GIB, 8, 0) | {"directory": str(host.place / "x")}
    with pytest.raises(RefusedError) as refused:
        programs.enough(plan, memory=32 * GIB)
    assert "compiling takes 62.0 GiB of memory (3 x 15.0 GiB of weights + 8 compilers of 2 GiB" in str(
        refused.value
    )
    assert "and 32.0 GiB are available" in str(refused.value)
    plan["takes"] |= {"memory_bytes": 1, "disk_bytes": 1 << 60}
    with pytest.raises(RefusedError, match="GiB are free: make room or grow the volume"):
        programs.enough(plan)


def test_what_cannot_be_compiled_at_all_is_named(host: Host) -> None:
    with pytest.raises(RefusedError, match="this host lacks the engine's environment"):
        programs.compile_all(host.plan, host.place / "model", host.place / "none", host.log, chips=1)
    (host.place / "model/config.json").write_text("{}")
    with pytest.raises(RefusedError, match=r"config\.json does not say model_type"):
        host.run()


# --- what is missing, and what is wrong ---------------------------------------------------------------------


def test_nothing_compiled_at_all_says_so_with_the_command(host: Host) -> None:
    with pytest.raises(RefusedError) as refused:
        host.check()
    said = str(refused.value)
    assert "nothing is compiled of made/up: its buckets 128, 256, 512, 1024 (lengths of prompts) and" in said
    assert "The engine would compile for hours. Compile first: ansible-playbook" in said
    assert '"neuron_context_buckets": [128, 256, 512, 1024]' in said


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ({"context": [256, 1024]}, "of made/up: bucket 128, 512 (lengths of prompts) is missing"),
        ({"flags": FLAGS | {"max-num-seqs": 8}}, "of made/up: what is compiled is for batch 8, wanted is 4"),
        (
            {"flags": FLAGS | {"tensor-parallel-size": 4}},
            "what is compiled is for tensor_parallel 4, wanted is 2",
        ),
        (
            {"model": MODEL | {"hash": "1" * 64}},
            f"what is compiled is for model_hash {'1' * 64}, wanted is {'0' * 64}",
        ),
        ({"extra": ["--fused-qkv"]}, "what is compiled is for flags --fused-qkv, wanted is none"),
    ],
    ids=["a bucket", "the batch", "the degree", "the model's files", "the flags"],
)
def test_which_bucket_is_missing_or_what_differs_is_said(
    host: Host, there: dict[str, Any], said: str
) -> None:
    made(host.place, planned(**there)).run()
    with pytest.raises(RefusedError) as refused:
        host.check()
    assert said in str(refused.value)
    assert "Compile first:" in str(refused.value)


def test_another_release_of_the_sdk_is_said(host: Host) -> None:
    host.run()
    newer = host.plan["inputs"] | {"sdk": "2.28.2"}
    plan = host.plan | {"inputs": newer, "directory": host.plan["directory"][:-1]}
    with pytest.raises(RefusedError, match=r"what is compiled is for sdk 2\.28\.1, wanted is 2\.28\.2"):
        programs.check(plan, host.place / "seen.json")


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda place: (place / "model.pt").write_text("PROGRAM\n"), "model.pt is not what its record says"),
        (lambda place: (place / "model.pt").unlink(), "lacks model.pt"),
        (
            lambda place: (place / "weights/tp1.safetensors").write_text("x"),
            "has weights/tp1.safetensors, which",
        ),
        (lambda place: (place / compiled.RECORD).unlink(), "ingot-neuron.json cannot be read"),
        (lambda place: (place / compiled.RECORD).write_text("{}"), "ingot-neuron.json cannot be read"),
    ],
    ids=["changed", "gone", "one more", "no record", "another record"],
)
def test_programs_that_were_changed_are_found(host: Host, harm: Any, said: str) -> None:
    host.run()
    host.check()
    harm(host.directory)
    with pytest.raises(RefusedError) as refused:
        host.check()
    assert said in str(refused.value)


def test_a_file_is_hashed_once(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.run()
    host.check()
    monkeypatch.setattr(compiled, "sha256_of", lambda _: pytest.fail("hashed again"))
    host.check()


# --- the store ----------------------------------------------------------------------------------------------


def test_programs_pass_through_a_store_byte_by_byte(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.run()
    store, plan = host.place / "store", host.place / "plan.json"
    store.mkdir()
    archive = store / f"{host.plan['key']}.tar"
    plan.write_text(json.dumps(host.plan))
    assert node.main(["pack", str(plan), str(archive)]) == 0
    beside = archive.with_suffix(".json")
    beside.write_text(capsys.readouterr().out)
    assert neuron_artifacts.held(str(store)) == [host.plan["inputs"]]
    assert neuron_artifacts.missing(host.plan["inputs"], neuron_artifacts.held(str(store)), "x") == ""
    shutil.rmtree(host.directory)
    assert node.main(["take", str(plan), str(archive), str(beside)]) == 0
    host.check()

    shutil.rmtree(host.directory)
    with archive.open("r+b") as tar:
        tar.seek(600)
        tar.write(b"X")
    assert node.main(["take", str(plan), str(archive), str(beside)]) == 1
    assert "it is damaged, or was changed. Remove both from the store" in capsys.readouterr().err
    assert not host.directory.exists()


def test_an_archive_for_others_is_not_taken_in(host: Host) -> None:
    other = made(host.place, planned(context=[1024]))
    other.run()
    archive = host.place / "a.tar"
    archive.with_suffix(".json").write_text(json.dumps(programs.pack(other.plan, archive)))
    with pytest.raises(RefusedError, match="was made from other inputs: context 1024, wanted is 128, 256"):
        programs.take(host.plan, archive, archive.with_suffix(".json"))
    assert [path.name for path in Path(host.plan["root"]).iterdir()] == [other.plan["key"]]


def test_an_archive_writes_nowhere_else(host: Host) -> None:
    archive = host.place / "a.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(host.place / "model/config.json", "../outside")
    record = {"inputs": host.plan["inputs"], "sha256": compiled.sha256_of(archive)}
    archive.with_suffix(".json").write_text(json.dumps(record))
    with pytest.raises(RefusedError, match="which is no file of programs"):
        programs.take(host.plan, archive, archive.with_suffix(".json"))
    assert list(Path(host.plan["root"]).iterdir()) == []
