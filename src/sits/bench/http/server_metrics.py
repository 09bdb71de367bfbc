"""The server's own view: gauges and counters from /metrics under one set of names.

Known pages: vLLM, SGLang, TGI and our server. Anything else gives an empty snapshot, never an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sits.bench.http.address import Endpoint
from sits.bench.http.connection import Failure
from sits.telemetry import engine_counters

if TYPE_CHECKING:
    from sits.bench.http.transport import Transport

# our name -> the metric names it may have; the first one present counts. *_total are counters.
NAMES: dict[str, tuple[str, ...]] = {
    "running": (
        "vllm:num_requests_running",
        "sglang:num_running_reqs",
        "tgi_batch_current_size",
        "sits_requests_running",
    ),
    "queue": ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "tgi_queue_size", "sits_requests_waiting"),
    "kv_use": (
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "sglang:token_usage",
        "sits_kv_cache_usage_ratio",
    ),
    "prefix_queries_total": (
        "vllm:prefix_cache_queries",
        "vllm:gpu_prefix_cache_queries",
        "sits_prefix_query_tokens",
    ),
    "prefix_hits_total": ("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits", "sits_prefix_hit_tokens"),
    "prefix_hit_rate": ("sglang:cache_hit_rate",),
    "preemptions_total": ("vllm:num_preemptions", "sglang:num_retracted_requests", "sits_preemptions"),
    "prompt_tokens_total": ("vllm:prompt_tokens", "sglang:prompt_tokens", "sits_prompt_tokens"),
    "output_tokens_total": ("vllm:generation_tokens", "sglang:generation_tokens", "sits_output_tokens"),
    "requests_total": ("vllm:request_success", "sglang:num_requests", "tgi_request_count", "sits_requests"),
    **engine_counters.METRICS,  # the engine's own estimate of the bytes it had to move
}
_FRACTIONS = {"kv_use", "prefix_hit_rate"}
_LINE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{[^}]*\})?\s+(\S+)", re.MULTILINE)


def parse_metrics(page: str) -> dict[str, float]:
    """Our names and values from a Prometheus text page. Several label sets are summed, shares are averaged."""
    sums: dict[str, float] = {}
    rows: dict[str, int] = {}
    for name, text in _LINE.findall(page):
        try:
            value = float(text)
        except ValueError:
            continue
        if math.isfinite(value):
            name = name.removesuffix("_total")
            sums[name] = sums.get(name, 0.0) + value
            rows[name] = rows.get(name, 0) + 1
    found: dict[str, float] = {}
    for ours, theirs in NAMES.items():
        for name in theirs:
            if name in sums:
                found[ours] = sums[name] / rows[name] if ours in _FRACTIONS else sums[name]
                break
    return found


def summarise(samples: Sequence[tuple[float, Mapping[str, float]]]) -> dict[str, float]:
    """One load point from its ``(seconds, snapshot)`` samples: mean and max of gauges, growth of counters.

    The prefix hit rate comes from the counters' growth where the server has them, so that earlier traffic
    does not enter. A counter that went back (the server restarted) is left out.
    """
    result: dict[str, float] = {}
    for name in {key for _, sample in samples for key in sample}:
        series = [sample[name] for _, sample in samples if name in sample]
        if name.endswith("_total"):
            if len(series) > 1 and series[-1] >= series[0]:
                result[name.removesuffix("_total")] = series[-1] - series[0]
        else:
            result[f"{name}_mean"] = sum(series) / len(series)
            result[f"{name}_max"] = max(series)
    if result.get("prefix_queries"):
        result["prefix_hit_rate"] = result.get("prefix_hits", 0.0) / result["prefix_queries"]
    elif "prefix_hit_rate_mean" in result:
        result["prefix_hit_rate"] = result["prefix_hit_rate_mean"]
    return dict(sorted(result.items()))


class MetricsScraper:
    """Reads /metrics beside the run; stops asking after the first refusal."""

    def __init__(self, transport: Transport, endpoint: Endpoint):
        self._transport = transport
        self._url = endpoint.root("/metrics")
        self._absent = False

    async def read(self) -> dict[str, float]:
        """The page under our names, or empty."""
        if self._absent:
            return {}
        try:
            answer = await self._transport.exchange("GET", self._url, b"", "raw")
        except Failure as failure:
            self._absent = failure.kind != "closed_midstream"
            return {}
        if answer.status != 200:
            self._absent = True
            return {}
        found = parse_metrics(answer.document.decode("utf-8", "replace"))
        self._absent = not found
        return found
