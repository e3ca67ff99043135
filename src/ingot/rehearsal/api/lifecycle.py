"""Long operations on machines, each in its turn.

The API answers at once; what it set in motion runs here. Operations on one instance run one after the other
in the order in which they were asked for, operations on different instances side by side.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

log = logging.getLogger(__name__)

# More than instances that a host can hold: a launch waits for its machine to be accepted while it holds the
# lock of the books, so it must never wait for a thread. Threads are made when they are needed.
MAX_WORKERS = 1024


class SerialQueues:
    """A thread pool in which the tasks of one key never overlap and keep their order."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=MAX_WORKERS, thread_name_prefix="machine")
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[tuple[Callable[[], Any], Future[Any]]]] = defaultdict(deque)

    def submit(self, key: str, task: Callable[[], Any]) -> Future[Any]:
        """Run ``task`` after all earlier tasks of ``key``."""
        future: Future[Any] = Future()
        with self._lock:
            queue = self._waiting[key]
            queue.append((task, future))
            if len(queue) == 1:
                self._pool.submit(self._drain, key)
        return future

    def _drain(self, key: str) -> None:
        while True:
            with self._lock:
                task, future = self._waiting[key][0]
            try:
                future.set_result(task())
            except Exception as error:  # whoever asked for it finds it in the future
                log.exception("operation on %s failed", key)
                future.set_exception(error)
            with self._lock:
                self._waiting[key].popleft()
                if not self._waiting[key]:
                    del self._waiting[key]
                    return

    def busy(self, key: str) -> bool:
        """Whether something runs or waits for this key."""
        with self._lock:
            return key in self._waiting

    def shutdown(self) -> None:
        """Wait for everything that was asked for; nothing may be asked for after this."""
        self._pool.shutdown(wait=True)
