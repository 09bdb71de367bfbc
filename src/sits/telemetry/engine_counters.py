"""Required bytes as an engine estimates them itself: vLLM's and SGLang's ``estimated_{read,write}_bytes_per_gpu``.

Both are off by default: start vLLM with ``--enable-mfu-metrics``, SGLang with ``--enable-metrics
--enable-mfu-metrics``. They are analytic, like our own count from shapes: an estimate, never an observation.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from sits.telemetry.samples import BandwidthSample

ENGINES = ("vllm", "sglang")
# our name in a server snapshot -> the metric; counters per GPU
METRICS = {
    f"{engine}_estimated_{what}_bytes_total": (f"{engine}:estimated_{what}_bytes_per_gpu",)
    for engine in ENGINES
    for what in ("read", "write")
}


def required_samples(timeline: Sequence[Mapping[str, Any]], started_ns: int) -> list[BandwidthSample]:
    """One sample per interval of a server's metrics timeline (rows of ``s`` and counters); empty without them.

    ``started_ns`` is the monotonic time of ``s == 0``. An interval over which a counter went back is left out.
    """
    wall = time.time_ns() - time.monotonic_ns()
    found = []
    for engine in ENGINES:
        names = [f"{engine}_estimated_{what}_bytes_total" for what in ("read", "write")]
        rows = [row for row in timeline if any(name in row for name in names)]
        for before, after in pairwise(rows):
            seconds = after["s"] - before["s"]
            moved = sum(after.get(name, 0.0) - before.get(name, 0.0) for name in names)
            if seconds <= 0 or moved < 0:
                continue
            found.append(
                BandwidthSample(
                    timestamp_ns=wall + started_ns + int(after["s"] * 1e9),
                    window_ns=int(seconds * 1e9),
                    device=engine,
                    model_required_gbps=moved / seconds / 1e9,
                    required_source=f"{engine}.mfu",
                    status="estimated",
                    reason="the endpoint's own estimate per GPU; its hardware counters are not visible from here",
                )
            )
    return found


def required_gbps(server: Mapping[str, Any], seconds: float) -> tuple[float, str] | None:
    """(mean GB/s per GPU over a load point, source) from the growth of the counters, or None."""
    for engine in ENGINES:
        values = [server.get(f"{engine}_estimated_{what}_bytes") for what in ("read", "write")]
        known = [float(value) for value in values if isinstance(value, (int, float))]
        if known and sum(known) > 0 and seconds > 0:
            return sum(known) / seconds / 1e9, f"{engine}.mfu"
    return None
