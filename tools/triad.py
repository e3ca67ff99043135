"""Memory bandwidth as STREAM's triad counts it, by torch: run it with an engine's Python, on its node.

    triad.py THREADS     prints bytes per second, the best of ten runs

a = b + s * c over arrays of 256 MiB each: three times that is moved for each run, as in STREAM
(https://www.cs.virginia.edu/stream/ref.html). What a write reads before it writes is not counted, as there.
"""

from __future__ import annotations

import sys
import time

RUNS = 10
ARRAY_BYTES = 256 << 20
FLOAT32_BYTES = 4


def main() -> None:
    import torch  # the engine's: this project's environment has none

    torch.set_num_threads(int(sys.argv[1]))
    b, c = (torch.rand(ARRAY_BYTES // FLOAT32_BYTES) for _ in range(2))
    a = torch.empty_like(b)
    times = []
    for _ in range(RUNS):
        started = time.perf_counter()
        torch.add(b, c, alpha=3.0, out=a)
        times.append(time.perf_counter() - started)
    print(3 * ARRAY_BYTES / min(times))


if __name__ == "__main__":
    main()
