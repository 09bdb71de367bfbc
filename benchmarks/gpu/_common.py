"""What the GPU benchmarks share: timing by graph replay, the measured read peak, the result file."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

DEVICE = "cuda"


def driver_version() -> str:
    """NVIDIA driver, or why it is not known."""
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.strip().splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        return f"unknown ({type(error).__name__})"


def versions() -> dict[str, str]:
    """Software that decides the figures."""
    import sits

    found = {"sits": sits.__version__, "torch": torch.__version__, "triton": triton.__version__}
    found["cuda"] = str(torch.version.cuda)
    found["python"] = sys.version.split()[0]
    return found


def graph_milliseconds(work: Callable[[], Any], calls: int = 1, replays: int = 20) -> float:
    """Median milliseconds of one call, ``work`` making ``calls`` of them (over rotated buffers) inside one graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
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


@triton.jit
def _read_kernel(source, out, N, STEP: tl.constexpr, BLOCK: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.int32)
    for start in range(program * BLOCK, N, STEP):
        total += tl.load(source + start + lane)
    tl.store(out + program, tl.sum(total, 0))


def read_peak_gbps() -> float:
    """Bytes per second of a kernel that only reads (best of several launch sizes), in GB/s."""
    source = torch.randint(0, 2**30, (1 << 30,), dtype=torch.int32, device=DEVICE)  # 4 GiB: far beyond any L2
    best = 0.0
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    for per_processor, block, warps in ((4, 4096, 8), (8, 4096, 8), (4, 8192, 8), (2, 8192, 16)):
        programs = processors * per_processor
        out = torch.empty(programs, dtype=torch.int32, device=DEVICE)
        count = source.numel() // (programs * block) * programs * block

        def work(programs=programs, block=block, warps=warps, out=out, count=count):
            _read_kernel[(programs,)](source, out, count, STEP=programs * block, BLOCK=block, num_warps=warps)

        best = max(best, count * 4 / graph_milliseconds(work, 1, 10) / 1e6)
    return best


def recorded_command(arguments: Sequence[str]) -> str:
    """The command a result file names: ``arguments`` without ``--out FOLDER``, which is a place on one machine."""
    kept = list(arguments)
    while "--out" in kept:
        at = kept.index("--out")
        del kept[at : at + 2]
    return shlex.join(["python", *(word for word in kept if not word.startswith("--out="))])


class Report:
    """Collects rows, prints each as it comes, writes the JSON at the end."""

    def __init__(self, name: str, description: str, extra: Callable[[argparse.ArgumentParser], None] | None = None):
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument("--out", type=Path, default=Path("results"), help="folder of the result file")
        if extra:
            extra(parser)
        self.options = parser.parse_args()
        if not torch.cuda.is_available():
            sys.exit(f"{name}: no CUDA device")
        torch.manual_seed(0)
        self.name = name
        self.rows: list[dict[str, Any]] = []
        self.read_peak = read_peak_gbps()
        print(f"{torch.cuda.get_device_name()}: read peak {self.read_peak:.0f} GB/s", flush=True)

    def row(
        self,
        case: str,
        unit: str,
        ours: float | None,
        peer: float | None = None,
        peer_name: str | None = None,
        read_bytes: float | None = None,
        **more: Any,
    ) -> None:
        """One line. ``read_bytes`` are those the operation has to read once; ``ours`` is then in ms or s."""
        gbps = None
        if read_bytes and ours:
            gbps = read_bytes / ours / (1e6 if unit == "ms" else 1e9)
        share = None if gbps is None else 100.0 * gbps / self.read_peak
        entry = {"case": case, "unit": unit, "ours": ours, "peer": peer, "peer_name": peer_name}
        entry |= {"gbps": gbps, "pct_of_read_peak": share, **more}
        self.rows.append(entry)
        text = f"{case:52s} {'-' if ours is None else f'{ours:9.4f}'} {unit}"
        text += f" {gbps:6.0f} GB/s {share:5.1f} %" if gbps is not None and share is not None else ""
        text += f"   {peer_name} {peer:.4f}" if peer is not None else ""
        text += f"   {more}" if more else ""
        print(text, flush=True)
        self.save()  # a run stopped half-way keeps what it measured

    def save(self) -> None:
        """Write ``<out>/<name>.json`` whole or not at all."""
        folder = self.options.out
        folder.mkdir(parents=True, exist_ok=True)
        data = {
            "name": self.name,
            "card": torch.cuda.get_device_name(),
            "driver": driver_version(),
            "versions": versions(),
            "command": recorded_command(sys.argv),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "read_peak_gbps": self.read_peak,
            "rows": self.rows,
        }
        partial = folder / f"{self.name}.json.partial"
        partial.write_text(json.dumps(data, indent=1) + "\n")
        os.replace(partial, folder / f"{self.name}.json")


def rotate(items: Sequence[Any], count: int) -> list[Any]:
    """``count`` items, cycling."""
    return [items[i % len(items)] for i in range(count)]
