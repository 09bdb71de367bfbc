"""Times the kernels of ``linear_int4`` on the card at hand: what a table of ``sits.kernels.tuning`` is made from."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from sits.kernels import int4_linear

COLD_BYTES = 300_000_000  # rotated through, so that no launch finds its weight in the L2 cache
KERNELS = ("wgmma", "humming", "dense", "triton")
PORTABLE_LIMIT = 64  # rows above which the portable kernel never wins and takes long to time


def graph_milliseconds(work: Callable[[], Any], calls: int, replays: int = 15) -> float:
    """Median milliseconds of one of the ``calls`` calls ``work`` makes, replayed as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # compile and allocate outside the capture
        work()
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(replays):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times) / calls


def time_shape(
    shape: tuple[int, int],
    batches: Sequence[int],
    group_size: int,
    dtype: torch.dtype,
    codes_of: Callable[[int, int, int], Any],
    report: Callable[[str], None] = lambda line: None,
) -> dict[int, dict[str, float]]:
    """``{batch: {kernel: milliseconds}}`` of one weight shape (out, in).

    ``codes_of(rows, columns, group_size)`` makes random ``Int4Codes`` on the device. A kernel that fails is left out
    and reported, never fatal.
    """
    rows, columns = shape
    copies = max(2, min(16, int(COLD_BYTES // (rows * columns * 0.5625)) + 1))
    times: dict[int, dict[str, float]] = {batch: {} for batch in batches}
    for name in KERNELS:
        wanted = [batch for batch in batches if can_run(name, batch)]
        if not wanted:
            continue
        weights = []
        for _ in range(copies):
            layouts = int4_linear.layouts_for(name, codes_of(rows, columns, group_size), dtype)
            if not layouts:
                break
            weights.append(int4_linear.PackedForCuda(layouts, object, shape, group_size))
        if len(weights) < copies:
            report(f"{rows}x{columns} {name}: cannot hold this weight")
            continue
        for batch in wanted:
            x = torch.randn(batch, columns, device="cuda", dtype=dtype)

            def work(x: torch.Tensor = x, name: str = name, weights: Iterable[Any] = weights) -> None:
                for weight in weights:
                    int4_linear.multiply(name, x, weight, None)

            try:
                times[batch][name] = graph_milliseconds(work, copies)
            except RuntimeError as error:
                report(f"{rows}x{columns} {name} batch {batch}: {str(error).splitlines()[0]}")
                continue
            gbps = rows * columns * 0.5625 / times[batch][name] / 1e6
            report(f"{rows}x{columns} {name:8s} batch {batch:4d}  {times[batch][name]:.4f} ms  {gbps:.0f} GB/s")
    return times


def can_run(name: str, batch: int) -> bool:
    """Whether a kernel is there and worth timing at this batch."""
    own = int4_linear._own()
    if name == "wgmma":
        return own is not None and batch <= 2 * own.WGMMA_ROWS
    if name == "dense":
        return own is not None and batch >= 64
    if name == "humming":
        return int4_linear.humming.available()
    return batch <= PORTABLE_LIMIT
