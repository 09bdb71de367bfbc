"""GPM against bytes we moved ourselves: what the bandwidth counter of SITS is worth on this card, and what it costs.

Run from the repository root: PYTHONPATH=src python3 benchmarks/gpu/telemetry.py --out benchmarks/results
Bars: error within 3% at 250 ms and 1% at 1 s; the sampler under 1% of a core per GPU.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from _common import Report

from sits.telemetry.nvml import NvmlCollector
from sits.telemetry.sampler import Sampler
from sits.telemetry.samples import BandwidthSample

_SIZE = 1 << 30


def loads() -> dict[str, tuple[Callable[[], None], float, float]]:
    """name -> (one call, bytes it moves, seconds of sleep after each burst as a share of the burst)."""
    source = torch.empty(_SIZE // 4, dtype=torch.float32, device="cuda").normal_()
    target = torch.empty_like(source)
    return {
        "copy": (lambda: target.copy_(source), 2.0 * _SIZE, 0.0),
        "read": (lambda: source.sum(), 1.0 * _SIZE, 0.0),
        "copy-half-duty": (lambda: target.copy_(source), 2.0 * _SIZE, 1.0),
        "idle": (lambda: None, 0.0, 0.0),
    }


def lead_in(call: Callable[[], None], moved: float, rest: float, seconds: float) -> None:
    """Run the load for a while, so that what the counter still holds of the last one is gone."""
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        burst = time.perf_counter()
        for _ in range(8 if moved else 0):
            call()
        torch.cuda.synchronize()
        time.sleep((time.perf_counter() - burst) * rest if moved else 0.01)


def one_window(collector: NvmlCollector, call: Callable[[], None], moved: float, rest: float, seconds: float):
    """(bytes per second we moved, the window the collector saw) over about ``seconds``."""
    torch.cuda.synchronize()
    collector.sample()  # closes the window before ours
    begin = time.perf_counter()
    count = 0
    while time.perf_counter() - begin < seconds:
        if moved == 0.0:
            time.sleep(0.01)
            continue
        burst = time.perf_counter()
        for _ in range(8):
            call()
        torch.cuda.synchronize()
        count += 8
        if rest:
            time.sleep((time.perf_counter() - burst) * rest)
    torch.cuda.synchronize()
    length = time.perf_counter() - begin
    windows = [item for item in collector.sample() if isinstance(item, BandwidthSample)]
    return count * moved / length / 1e9, windows[0] if windows else None


def main() -> None:
    report = Report("telemetry", __doc__ or "")
    collector = NvmlCollector()
    for row in collector.probe():
        print(row, flush=True)
    collector.open()
    time.sleep(0.15)
    failed = []
    for name, (call, moved, rest) in loads().items():
        # The counter lags by up to 0.15 s: a window that follows a change of load holds a part of the load before.
        lead_in(call, moved, rest, 0.5)
        for seconds, repeats, bar in ((0.25, 20, 0.03), (1.0, 6, 0.01)):
            errors, rates, lost = [], [], 0
            for _ in range(repeats):
                ours, window = one_window(collector, call, moved, rest, seconds)
                if window is None or window.observed_gbps is None:
                    lost += 1
                    continue
                rates.append(window.observed_gbps)
                peak = window.peak_gbps or 1.0
                # an idle card has no relative error: its reading as a share of peak must be near 0
                errors.append(window.observed_gbps / ours - 1 if ours else window.observed_gbps / peak)
            if not errors:
                failed.append(f"{name} {seconds} s: no window")
                continue
            median = statistics.median(abs(error) for error in errors)
            worst = max(abs(error) for error in errors)
            report.row(
                f"gpm/{name}/{seconds}s", "relative error", median, worst=worst, bar=bar, dropped=lost,
                observed_gbps=statistics.median(rates), windows=len(errors), within_bar=median <= bar,
            )  # fmt: skip
    lag(report, collector)
    collector.close()
    overhead(report)
    report.save()
    if failed:
        sys.exit("; ".join(failed))


def lag(report: Report, collector: NvmlCollector) -> None:
    """Seconds by which the counter is late: what an idle window right after a load still shows of it."""
    call, moved, rest = loads()["copy"]
    found = []
    for _ in range(6):
        lead_in(call, moved, rest, 0.5)
        collector.sample()
        time.sleep(0.25)
        for item in collector.sample():
            if isinstance(item, BandwidthSample) and item.observed_gbps is not None:
                found.append(item.observed_gbps / 4200.0 * item.window_ns / 1e9)
    report.row("gpm/lag", "s", statistics.median(found) if found else None, worst=max(found, default=None))


def overhead(report: Report) -> None:
    """Copy throughput with and without the sampler, interleaved, and the sampler's own share of a core."""
    call, moved, _ = loads()["copy"]
    rates: dict[bool, list[float]] = {False: [], True: []}
    shares = []
    for round_index in range(6):
        sampling = round_index % 2 == 1
        collector = NvmlCollector()
        collector.probe()
        sampler = Sampler([collector])
        if sampling:
            sampler.start()
        torch.cuda.synchronize()
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < 2.0:
            for _ in range(8):
                call()
            torch.cuda.synchronize()
            count += 8
        rates[sampling].append(count * moved / (time.perf_counter() - begin) / 1e9)
        sampler.stop()
        if sampling and sampler.cpu_share is not None:
            shares.append(sampler.cpu_share)
    without, with_sampler = (statistics.median(rates[key]) for key in (False, True))
    report.row("sampler/copy-throughput", "GB/s", with_sampler, without, "without the sampler")
    report.row("sampler/share-of-a-core", "ratio", statistics.median(shares), bar=0.01)


if __name__ == "__main__":
    main()
