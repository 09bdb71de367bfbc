"""Measured memory read bandwidth of this machine's CPU, STREAM style, with NumPy (it releases the GIL).

Arrays are far larger than the last-level cache. What counts for decoding is reading, so the figure is the best of
a read (sum) and an add over one to all cores; write-allocate traffic is not counted.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import numpy as np


def _timed(work: Callable[[int], None], threads: int) -> float:
    """Seconds until all threads finished the same amount of work, started together."""
    barrier = threading.Barrier(threads + 1)

    def run(index: int) -> None:
        barrier.wait()
        work(index)

    team = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(threads)]
    for thread in team:
        thread.start()
    barrier.wait()
    start = time.perf_counter()
    for thread in team:
        thread.join()
    return time.perf_counter() - start


def measure_read_peak(megabytes: int = 256, repeats: int = 4, threads: int | None = None) -> dict[str, float]:
    """GB/s of the best read and the best add, and the thread count that gave the best.

    Returns ``{"read_gbps", "add_gbps", "best_gbps", "threads"}``. Uses ``megabytes`` for each of three arrays and
    takes well under two seconds with the defaults.
    """
    cores = threads or len(os.sched_getaffinity(0))
    count = megabytes * 1_000_000 // 8
    first, second = np.ones(count), np.ones(count)
    target = np.empty_like(first)
    best = {"read_gbps": 0.0, "add_gbps": 0.0, "best_gbps": 0.0, "threads": 1.0}
    for team in sorted({1, cores}):
        bounds = np.linspace(0, count, team + 1).astype(int)

        def read(index: int, bounds: np.ndarray = bounds) -> None:
            first[bounds[index] : bounds[index + 1]].sum()

        def add(index: int, bounds: np.ndarray = bounds) -> None:
            part = slice(bounds[index], bounds[index + 1])
            np.add(first[part], second[part], out=target[part])

        for name, work, moved in (("read_gbps", read, count * 8), ("add_gbps", add, count * 24)):
            seconds = min(_timed(work, team) for _ in range(repeats))
            rate = moved / seconds / 1e9
            best[name] = max(best[name], rate)
            if rate > best["best_gbps"]:
                best["best_gbps"], best["threads"] = rate, float(team)
    return best
