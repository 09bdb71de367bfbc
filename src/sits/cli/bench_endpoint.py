"""``sits bench --endpoint``: client, self-calibration and observers of an endpoint run, from options and scenario."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sits.bench.benchmark import Observer
from sits.bench.client import Client, TargetInfo
from sits.bench.http.client import HttpClient
from sits.bench.http.health import HealthObserver
from sits.bench.http.options import EndpointOptions
from sits.bench.http.pool import PoolOptions
from sits.bench.http.workers import WorkerClient
from sits.bench.scenario import TargetSettings

if TYPE_CHECKING:
    from sits.cli.bench_options import BenchOptions

CALIBRATION_S = 2.5
SHORT_CALIBRATION_S = 0.7
_MANY_CALLERS = 512
_SMALL_RUN = 200  # requests; a longer self-calibration would take longer than the run


def make_endpoint_client(options: BenchOptions) -> Client:
    """The client for ``options.endpoint``; not opened yet."""
    assert options.endpoint is not None
    target = settings(options)
    timeouts = target.timeouts
    endpoint = EndpointOptions(
        url=options.endpoint,
        api=options.api,
        model=options.served_model,
        api_key=options.api_key(),
        headers=options.headers(),
        pool=PoolOptions(
            connect_timeout_s=timeouts.connect_s,
            verify_tls=target.verify_tls,
            ca_file=target.ca_file,
            proxy=target.proxy,
            keep_alive=target.keep_alive,
        ),
        request_timeout_s=timeouts.request_s,
        first_token_timeout_s=timeouts.first_token_s,
        idle_timeout_s=timeouts.idle_s,
        retries=target.retries,
        compression=target.compression,
        # A conversation repeats the answers; the cross-check reads them.
        keep_text=target.keep_text or options.needs_text() or target.tokenizer is not None,
        extra_body=target.extra_body,
        chunk_usage=target.chunk_usage,
    )
    workers = worker_count(target, options)
    return WorkerClient(endpoint, workers) if workers > 1 else HttpClient(endpoint)


def settings(options: BenchOptions) -> TargetSettings:
    """The scenario's target section, or its defaults."""
    return options.scenario.target if options.scenario is not None else TargetSettings()


def worker_count(target: TargetSettings, options: BenchOptions) -> int:
    """Client processes: as set; by itself more than one only for very many callers, with cores to spare."""
    if target.workers != "auto":
        return target.workers
    callers = 0 if options.open_loop() else max(options.levels())
    spare = max(1, len(os.sched_getaffinity(0)) - 1) if hasattr(os, "sched_getaffinity") else 1
    return min(spare, 8, int(callers // _MANY_CALLERS) + 1)


async def calibrate_client(options: BenchOptions) -> dict[str, float]:
    """The self-calibration, as long as the run deserves; empty when switched off."""
    from sits.bench.http.calibration import calibrate

    seconds = options.scenario.calibration_s if options.scenario is not None else None
    if seconds is None:
        small = options.requests is not None and options.requests * len(options.levels()) <= _SMALL_RUN
        seconds = SHORT_CALIBRATION_S if options.quick or small else CALIBRATION_S
    if seconds <= 0:
        return {}
    callers = 16 if options.open_loop() else int(max(options.levels()))
    return await calibrate(seconds, callers, options.api)


def endpoint_observers(options: BenchOptions, client: Client, calibration: dict[str, float]) -> list[Observer]:
    """Who watches the load levels. The health verdict comes last, so that it has the last word on the status."""
    from sits.bench.http.observers import AnswersObserver, MetricsObserver, MixObserver, TokenizerObserver

    target, slo = settings(options), options.objectives()
    observers: list[Observer] = [AnswersObserver(), MixObserver(slo)]
    if target.scrape_metrics:
        observers.append(MetricsObserver(client.snapshot))
    if target.tokenizer is not None:
        observers.append(TokenizerObserver(Path(target.tokenizer)))
    workers = client.load_of_workers if isinstance(client, WorkerClient) else None
    observers.append(HealthObserver(calibration, slo, workers, os.cpu_count() or 1))
    return observers


def text_maker(client: Any) -> Any:
    """The prompt maker the probe calibrated."""
    inner = client.inner if isinstance(client, WorkerClient) else client
    return inner.text


def describe_target(client: Any, info: TargetInfo) -> None:
    """Prompt calibration into the model card of the result."""
    text = text_maker(client)
    if text.calibrated:
        info.card["prompt_overhead_tokens"] = round(text.overhead, 2)
        info.card["tokens_per_word"] = round(text.per_word, 4)
