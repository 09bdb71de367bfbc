"""CPU speed of SITS beside other engines on SmolLM2-135M: same weights, interleaved rounds, medians, ratios.

    OMP_NUM_THREADS=2 python benchmarks/cpu_peers.py --threads 2 --rounds 5
        [--cases fp32,bf16,int4] [--ort-folder DIR] [--clock wall|cpu] [--out FILE]

Every round runs every engine once on every workload, so that a change of the machine meets all alike; a ratio is the
median over rounds of (SITS rate / peer rate). Bars: batch 1 decode >= 1.4x transformers at equal precision and >= 3x
its BF16 with INT4 weights, 8 mixed requests >= 2x its padded batch, prefill not slower. Exit 1 when one is missed.
``--clock cpu`` counts processor time: meant for one thread on a busy machine, where wall time means nothing.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from cpu_peer_engines import Engine, LlamaCpp, OnnxRuntime, OpenVino, Sits, Transformers

from sits.models.hub import fetch

MIXED = [32, 64, 96, 128, 160, 192, 224, 256]  # prompt lengths of the eight requests
TOKENS = 64
# (case, workload) -> least ratio to transformers
BARS = {("fp32", "decode"): 1.4, ("bf16", "decode"): 1.4, ("int4", "decode"): 3.0}
BARS |= {(case, "mixed8"): 2.0 for case in ("fp32", "bf16")}
BARS |= {(case, "prefill"): 1.0 for case in ("fp32", "bf16", "int4")}


def rates(engine: Engine, ids: list[int], clock: Callable[[], float]) -> dict[str, float]:
    """tok/s of one engine on the three workloads.

    decode: the time of 1 + TOKENS tokens less that of 1 token; prefill: prompt tokens over the time to one token;
    mixed8: generated tokens over the whole time of eight requests, prompts included.
    """

    def timed(prompts: list[list[int]], tokens: int) -> float:
        started = clock()
        out = engine.generate(prompts, tokens)
        seconds = clock() - started
        assert [len(row) for row in out] == [tokens] * len(prompts), (
            f"{engine.name} returned another number of tokens"
        )
        return seconds

    first = timed([ids[:128]], 1)
    rest = timed([ids[:128]], 1 + TOKENS)
    return {
        "decode": TOKENS / (rest - first),
        "prefill": 512 / timed([ids[:512]], 1),
        "mixed8": 8 * TOKENS / timed([ids[start : start + size] for start, size in enumerate(MIXED)], TOKENS),
    }


def make_case(case: str, path: Path) -> list[Engine]:
    """[ours, transformers] of a case; INT4 is compared with transformers' BF16."""
    dtype = "float32" if case == "fp32" else "bfloat16"
    return [Sits(dtype, "int4-g32" if case == "int4" else None), Transformers(path, dtype)]


def others(path: Path, threads: int, ort_folder: str | None) -> tuple[list[Engine], list[str]]:
    """Whatever else is installed, and why the rest is not there."""
    engines: list[Engine] = []
    missing: list[str] = []
    makers: list[Callable[[], Engine]] = [lambda: LlamaCpp(path, threads), lambda: OpenVino(path, threads)]
    if ort_folder:
        makers.append(lambda: OnnxRuntime(Path(ort_folder)))
    for make in makers:
        try:
            engines.append(make())
        except Exception as error:  # a peer that cannot run must not stop the comparison
            missing.append(str(error).splitlines()[0][:160])
    return engines, missing


def cpu_name() -> str:
    """The processor's own name."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"model name\s*: (.+)", text)
    return found[1] if found else platform.machine()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", default="fp32,bf16,int4")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--ort-folder")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    import torch

    torch.set_num_threads(options.threads)
    clock = time.perf_counter if options.clock == "wall" else time.process_time
    path = fetch("smollm2-135m")
    # Real text, so that no engine gets an unusually easy prompt.
    from sits.models.loading import open_source, resolve
    from sits.models.tokenizer import load_tokenizer

    location = resolve("smollm2-135m")
    text = (Path(__file__).parents[1] / "LICENSE").read_text()
    ids = load_tokenizer(location, *open_source(location)).encode(text)[:600]

    rows: list[dict[str, Any]] = []
    card: dict[str, Any] = {}
    failed = []
    extra, missing = others(path, options.threads, options.ort_folder)
    for case in options.cases.split(","):
        engines = [*make_case(case, path), *extra]
        card[case] = engines[0].card  # type: ignore[attr-defined]
        measured: list[list[dict[str, float]]] = [[] for _ in engines]
        for number in range(options.rounds + 1):
            order = range(len(engines)) if number % 2 else reversed(range(len(engines)))
            for index in order:
                result = rates(engines[index], ids, clock)
                if number:  # the first round warms caches, thread pools and kernels
                    measured[index].append(result)
        for workload in ("decode", "prefill", "mixed8"):
            ours = [round_[workload] for round_ in measured[0]]
            for engine, results in zip(engines[1:], measured[1:]):
                peer = [round_[workload] for round_ in results]
                ratios = sorted(a / b for a, b in zip(ours, peer))
                bar = BARS.get((case, workload)) if isinstance(engine, Transformers) else None
                row = {
                    "case": f"{case} {workload}",
                    "unit": "tok/s",
                    "ours": round(median(ours), 2),
                    "peer": round(median(peer), 2),
                    "peer_name": f"{engine.name} {engine.version}",
                    "ratio": round(median(ratios), 3),
                    "ratio_range": [round(ratios[0], 3), round(ratios[-1], 3)],
                    "bar": bar,
                }
                rows.append(row)
                verdict = "" if bar is None else f"  bar {bar}: {'reached' if row['ratio'] >= bar else 'MISSED'}"
                if bar is not None and row["ratio"] < bar:
                    failed.append(row["case"])
                print(
                    f"{row['case']:<14} {row['ours']:>8.1f} tok/s  {row['peer_name']:<30} {row['peer']:>8.1f}"
                    f"  ratio {row['ratio']:.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}]{verdict}",
                    flush=True,
                )
        for engine in engines[:2]:
            engine.close()
    for reason in missing:
        print(f"left out: {reason}")
    write(options, card, rows, missing)
    if failed:
        print(f"bars missed: {', '.join(failed)}")
    return 1 if failed else 0


def write(options: argparse.Namespace, card: dict[str, Any], rows: list[dict[str, Any]], missing: list[str]) -> None:
    """One JSON file, replaced at once."""
    from sits.kernels.cpu.native.build import unavailable_because

    name = re.sub(r"[^a-z0-9]+", "-", cpu_name().lower()).strip("-")
    today = datetime.date.today().isoformat()
    out = options.out or Path(__file__).parent / "results" / f"{today}-{name}-cpu-peers.json"
    packages = ["torch", "transformers", "sits"]
    versions = {package: importlib.import_module(package).__version__ for package in packages}
    result = {
        "name": "cpu_peers",
        "card": card,
        "driver": {
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "threads": options.threads,
            "clock": options.clock,
            "rounds": options.rounds,
            "load_average": os.getloadavg(),
            "native_kernels": unavailable_because() or "in use",
        },
        "versions": {"python": platform.python_version(), **versions},
        "command": " ".join(sys.argv),
        "date": today,
        "rows": rows,
        "left_out": missing,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_suffix(".part")
    part.write_text(json.dumps(result, indent=2) + "\n")
    os.replace(part, out)
    print(f"wrote {out}")


if __name__ == "__main__":
    sys.exit(main())
