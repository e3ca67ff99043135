"""What starts vLLM's server on CPUs, with stubs of vLLM and torch in place of the real ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from steps import ROOT

PROGRAM = ROOT / "roles/serving/files/serve_vllm.py"

STUBS = {
    "torch.py": """
        threads = 8
        def set_num_threads(count):
            global threads
            threads = count
    """,
    "vllm-0.32.0+cpu.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu",
    "vllm/__init__.py": "",
    "vllm/utils/__init__.py": "",
    "vllm/utils/system_utils.py": """
        import multiprocessing, os
        def get_mp_context():
            return multiprocessing.get_context(os.environ["VLLM_WORKER_MULTIPROC_METHOD"])
    """,
    "vllm/v1/__init__.py": "",
    "vllm/v1/engine/__init__.py": "",
    "vllm/v1/engine/core.py": """
        import json, os, torch
        loaded_by = os.getpid()
        def run_engine_core(path):
            from vllm.utils.system_utils import get_mp_context
            from vllm.v1.executor.multiproc_executor import WorkerProc
            said = {"imported_by": loaded_by, "parent": os.getppid(), "pid": os.getpid()}
            said |= {"threads": torch.threads, "late": os.environ.get("SET_LATE")}
            os.environ.update(json.loads(os.environ["FOR_THE_WORKER"]))
            process = get_mp_context().Process(target=WorkerProc.worker_main, args=(path + ".worker",))
            process.start()
            process.join()
            json.dump(said, open(path, "w"))
    """,
    "vllm/v1/executor/__init__.py": "",
    "vllm/v1/executor/multiproc_executor.py": """
        import json, os, torch
        class WorkerProc:
            @staticmethod
            def worker_main(path):
                said = {"threads": torch.threads, "parent": os.getppid()}
                said["cpus"] = sorted(os.sched_getaffinity(0))
                json.dump(said, open(path, "w"))
    """,
    "vllm/v1/worker/__init__.py": "",
    "vllm/v1/worker/cpu_worker.py": "",
    "vllm/entrypoints/__init__.py": "",
    "vllm/entrypoints/openai/__init__.py": "",
    "vllm/entrypoints/openai/api_server.py": """
        import json, sys
        json.dump({"arguments": sys.argv[1:]}, open(sys.argv[-1], "w"))
    """,
    "vllm/entrypoints/launchers/__init__.py": "",
    "vllm/entrypoints/launchers/api_server/__init__.py": "",
    "vllm/entrypoints/launchers/api_server/entry.py": """
        import os, sys
        from vllm.utils.system_utils import get_mp_context
        def main():
            os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"  # as the platform for CPUs does
            os.environ["SET_LATE"] = "yes"
            from vllm.v1.engine.core import run_engine_core
            process = get_mp_context().Process(target=run_engine_core, args=(sys.argv[-1],))
            process.start()
            process.join()
            sys.exit(process.exitcode)
    """,
}


@pytest.fixture
def library(tmp_path: Path) -> Path:
    for name, text in STUBS.items():
        lines = text.splitlines()
        indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
        path = tmp_path / "lib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(line[indent:] for line in lines) + "\n")
    return tmp_path / "lib"


def serve(library: Path, out: Path, **for_the_worker: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(library), "FOR_THE_WORKER": json.dumps(for_the_worker)}
    env.pop("OMP_NUM_THREADS", None)
    argv = [sys.executable, "-P", str(PROGRAM), "--config", str(out)]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=60)


def said(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


def test_the_engine_is_forked_from_what_has_imported_it(library: Path, tmp_path: Path) -> None:
    done = serve(library, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    engine = said(tmp_path / "out")
    assert engine["imported_by"] == engine["parent"] != engine["pid"], "imported before the fork, and once"
    assert engine["threads"] == 1, "threads of OpenMP would not survive the fork of the worker"
    assert engine["late"] == "yes", "variables that vLLM set after the fork server had been started"
    assert said(tmp_path / "out.worker")["parent"] == engine["pid"]


def test_a_worker_has_the_threads_and_cpus_that_vllm_bound_it_to(library: Path, tmp_path: Path) -> None:
    last = max(os.sched_getaffinity(0))
    serve(library, tmp_path / "out", OMP_NUM_THREADS="3", OMP_PLACES=f"{{{last}}}")
    worker = said(tmp_path / "out.worker")
    assert (worker["threads"], worker["cpus"]) == (3, [last])


def test_an_unbound_worker_has_a_thread_for_each_cpu(library: Path, tmp_path: Path) -> None:
    serve(library, tmp_path / "out")
    worker = said(tmp_path / "out.worker")
    assert worker["cpus"] == sorted(os.sched_getaffinity(0))
    assert worker["threads"] == len(worker["cpus"])


@pytest.mark.parametrize("name", ["0.13.0", "0.32.0"])
def test_a_vllm_for_chips_is_started_as_it_is(library: Path, tmp_path: Path, name: str) -> None:
    (library / "vllm-0.32.0+cpu.dist-info").rename(library / f"vllm-{name}.dist-info")
    metadata = library / f"vllm-{name}.dist-info/METADATA"
    metadata.write_text(metadata.read_text().replace("0.32.0+cpu", name))
    done = serve(library, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert said(tmp_path / "out") == {"arguments": ["--config", str(tmp_path / "out")]}


def test_a_vllm_that_starts_its_engine_in_another_way_is_refused(library: Path, tmp_path: Path) -> None:
    (library / "vllm/utils/system_utils.py").write_text("")
    done = serve(library, tmp_path / "out")
    assert done.returncode == 1
    assert "ingot: refused: this vLLM has no vllm.utils.system_utils.get_mp_context" in done.stderr
