"""Start to verdict on a large result: wall time, CPU time and peak memory of ``sits-validate`` in its own process.

    python benchmarks/gate_large_result.py [--requests 50000] [--tokens 64] [--out FILE]

The bar: 50,000 requests judged (objectives, consistency, regression against a baseline of the same size) in less than
2 s and 300 MB. ``--tokens`` is the length of each answer; every gap between tokens is read.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from sits.spec.records import RequestRecord, write_records
from sits.spec.result import Figure, LoadPoint, Result, Target, save_result

OBJECTIVES = (
    "  ttft: {p50: 1 s, p99: 5 s}\n  itl: {p50: 1 s, p99: 1 s}\n  e2e: {p99: 100 s}\n  error-rate: {max: 1%}\n"
)
CONFIGS = {
    "objectives": f"result: new\nrules:\n{OBJECTIVES}",
    "objectives and regression": f"result: new\nbaseline: old\nrules:\n{OBJECTIVES}"
    "  regression: {metrics: [ttft.typical, itl.typical, itl.p99]}\n",
}


def make(folder: Path, requests: int, tokens: int, seed: int) -> None:
    """A result of ``requests`` with its records."""
    rng = np.random.default_rng(seed)
    sizes = (requests, tokens - 1)
    first = (1e8 * np.exp(rng.normal(0, 0.2, requests))).astype(np.int64)
    gaps = (1e7 * np.exp(rng.normal(0, 0.1, sizes))).astype(np.int64)
    times = np.concatenate((first[:, None], first[:, None] + np.cumsum(gaps, axis=1)), axis=1)
    records = (
        RequestRecord(
            request_id=f"r{i}", t_due=i * 10**7, t_sent=i * 10**7, t_end=i * 10**7 + int(times[i, -1]),
            chunk_times_ns=times[i].tolist(), prompt_tokens=64, output_tokens=tokens, requested_output_tokens=tokens,
        )
        for i in range(requests)
    )  # fmt: skip
    pooled = np.sort(gaps.ravel())
    figures = {
        "ttft.p50": np.sort(first)[requests // 2 - 1] / 1e6,
        "itl.p50": pooled[len(pooled) // 2 - 1] / 1e6,
    }
    point = LoadPoint(
        index=0, mode="closed", concurrency=64, duration_s=500.0,
        requests={"sent": requests, "ok": requests, "warmup": 8},
        metrics={key: Figure(value=float(value), unit="ms", n=requests) for key, value in figures.items()},
    )  # fmt: skip
    result = Result(
        run_id=folder.name, created="2026-12-01T00:00:00Z", status="complete", points=[point],
        target=Target(kind="embedded", name="made up"),
    )  # fmt: skip
    save_result(result, folder)
    write_records(folder / "records.jsonl.gz", records)


def measure(folder: Path, repeats: int) -> dict[str, float]:
    """The best of some runs, each a new process."""
    best: dict[str, float] = {}
    for _ in range(repeats):
        started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        script = (
            "import resource, sys; from sits.cli.validate import run;"
            "code = run(['-f', 'json', '-o', 'report.json']);"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, code, file=sys.stderr)"
        )
        done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=True)
        wall = time.perf_counter() - started
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        peak, code = done.stderr.split()[-2:]
        assert code in ("0", "2"), done.stdout
        row = {
            "wall_s": round(wall, 3),
            "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 3),
            "peak_mb": round(int(peak) / 1024, 1),
            "exit_code": int(code),
        }
        if not best or row["cpu_s"] < best["cpu_s"]:
            best = row
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    report: dict[str, object] = {
        "requests": options.requests, "tokens_a_request": options.tokens, "bar": {"wall_s": 2.0, "peak_mb": 300},
        "python": platform.python_version(), "numpy": np.__version__, "cores": os.cpu_count(),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for index, side in enumerate(("new", "old")):
            make(folder / side, options.requests, options.tokens, index)
        report["records_mb"] = round((folder / "new" / "records.jsonl.gz").stat().st_size / 1e6, 1)
        (folder / ".sits").mkdir()
        for title, config in CONFIGS.items():
            (folder / ".sits" / "config.yaml").write_text(config)
            report[title] = measure(folder, options.repeats)
            print(title, report[title])
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
