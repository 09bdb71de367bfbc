"""How often does the gate cry wolf, and how often does it miss? Simulated runs with realistic, heavy-tailed noise.

    python benchmarks/gate_statistics.py [--resamples 200] [--out benchmarks/results/gate_statistics.json]

Every resample draws two sides from the same generator: requests arrive in batches that share hiccups, every
request has its own speed (lognormal), gaps are lognormal with rare stragglers (Pareto), first tokens queue, and every
*run* is shifted as a whole, as neighbours, clocks and memory layouts do. Then the default regression rule judges them
with a 3% tolerance. "False alarms": nothing changed, anything flagged worse. "Detection": one thing is 10% worse.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from sits.spec.columns import Samples
from sits.spec.compare import RUN_TO_RUN, Ratio, judge, percentile_ratio, typical_ratio
from sits.spec.intervals import Run, block_length

TOLERANCE, RESOLUTION = 0.03, 0.10


@dataclass(frozen=True)
class Noise:
    """The generator's knobs; sigmas are of natural logarithms."""

    run_sigma: float = 0.01  # whole-run shift
    request_sigma: float = 0.05  # a request's own speed
    batch_sigma: float = 0.04  # shared by the requests of one batch
    gap_sigma: float = 0.12
    straggler_share: float = 0.005  # gaps that are Pareto(2.5) times 3
    ttft_sigma: float = 0.25
    ttft_straggler_share: float = 0.01
    concurrency: int = 8
    tokens: int = 64


@dataclass(frozen=True)
class Change:
    """What is different on the candidate's side, as factors."""

    ttft: float = 1.0
    itl: float = 1.0
    itl_tail: float = 1.0  # gaps above the 97th percentile only: p99 moves by this much, the median not at all


def simulate(rng: np.random.Generator, requests: int, noise: Noise, change: Change) -> dict[str, Samples]:
    """One run: TTFT and gaps in ms."""
    shift = np.exp(rng.normal(0, noise.run_sigma))
    batches = -(-requests // noise.concurrency)
    batch = np.repeat(np.exp(rng.normal(0, noise.batch_sigma, batches)), noise.concurrency)[:requests]
    own = batch * np.exp(rng.normal(0, noise.request_sigma, requests))
    gaps = 10.0 * own[:, None] * np.exp(rng.normal(0, noise.gap_sigma, (requests, noise.tokens - 1)))
    slow = rng.random(gaps.shape) < noise.straggler_share
    gaps[slow] *= 3 * (1 + rng.pareto(2.5, int(slow.sum())))
    ttft = 100.0 * batch * np.exp(rng.normal(0, noise.ttft_sigma, requests))
    late = rng.random(requests) < noise.ttft_straggler_share
    ttft[late] *= 3 * (1 + rng.pareto(2.5, int(late.sum())))
    gaps[gaps > np.quantile(gaps, 0.97)] *= change.itl_tail
    gaps, ttft = gaps * shift * change.itl, ttft * shift * change.ttft
    tpot = gaps.mean(axis=1)
    counts = np.full(requests, noise.tokens - 1, dtype=np.int64)
    return {
        "ttft": Samples.per_request(ttft),
        "itl": Samples(gaps.astype(np.float32).ravel(), counts),
        "tpot": Samples.per_request(tpot),
        "e2e": Samples.per_request(ttft + gaps.sum(axis=1)),
    }


METRICS = ("ttft.typical", "itl.typical", "itl.p99", "e2e.typical")


def side(
    rng: np.random.Generator, runs: int, requests: int, noise: Noise, change: Change
) -> list[dict[str, Samples]]:
    each = requests // runs
    return [simulate(rng, each, noise, change) for _ in range(runs)]


def ratio_of(metric: str, a: list[dict[str, Samples]], b: list[dict[str, Samples]], concurrency: int) -> Ratio | None:
    name, _, statistic = metric.partition(".")
    old, new = ([Run(run[name], block_length(run[name].requests, concurrency)) for run in runs] for runs in (a, b))
    if statistic == "typical":
        return typical_ratio(old, new)
    return percentile_ratio(old, new, float(statistic[1:]))


def measure(design: tuple[int, int], noise: Noise, change: Change, resamples: int, seed: int) -> dict[str, object]:
    """Share of resamples in which each metric, and any of them, is flagged; and how often it was too noisy."""
    runs, requests = design
    flagged = dict.fromkeys((*METRICS, "any"), 0)
    noisy = dict.fromkeys(METRICS, 0)
    for index in range(resamples):
        rng = np.random.default_rng([seed, index])
        a = side(rng, runs, requests, noise, Change())
        b = side(rng, runs, requests, noise, change)
        hit = False
        for metric in METRICS:
            verdict = judge(ratio_of(metric, a, b, noise.concurrency), TOLERANCE, RESOLUTION).verdict
            flagged[metric] += verdict == "worse"
            noisy[metric] += verdict == "too_noisy"
            hit |= verdict == "worse"
        flagged["any"] += hit
    return {
        "runs_a_side": runs,
        "requests_a_side": requests,
        "flagged_worse": {name: count / resamples for name, count in flagged.items()},
        "too_noisy": {name: count / resamples for name, count in noisy.items()},
    }


CHANGES = {
    "none": Change(),
    "everything 10% slower": Change(ttft=1.1, itl=1.1),
    "token gaps 10% slower": Change(itl=1.1),
    "tail of the gaps 10% slower (p99, median unchanged)": Change(itl_tail=1.1),
    "first token 10% slower": Change(ttft=1.1),
}
DESIGNS = ((1, 500), (5, 500))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resamples", type=int, default=200)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    started = time.process_time()
    noise, rows = Noise(), []
    for design in DESIGNS:
        for name, change in CHANGES.items():
            row = {"change": name, **measure(design, noise, change, options.resamples, options.seed)}
            rows.append(row)
            print(
                f"{design[0]} x {design[1] // design[0]:4} {name:54}",
                row["flagged_worse"],
                row["too_noisy"],
                flush=True,
            )
    report = {
        "tolerance": TOLERANCE,
        "resolution": RESOLUTION,
        "resamples": options.resamples,
        "seed": options.seed,
        "assumed_run_to_run": RUN_TO_RUN,
        "noise": asdict(noise),
        "rows": rows,
        "cpu_seconds": round(time.process_time() - started, 1),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
