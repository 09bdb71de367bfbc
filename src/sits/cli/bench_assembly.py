"""Puts a benchmark together from its options: target, workload, load levels, observers, output files."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from sits.bench import quick
from sits.bench.benchmark import BenchPlan, Observer, run_benchmark, stop_on_signals
from sits.bench.client import Client, TargetInfo
from sits.bench.lengths import Lengths
from sits.bench.load import Load, RunOptions
from sits.bench.progress import Progress
from sits.bench.scenario import SearchSettings
from sits.bench.scripted import PREFIX, ScriptedClient
from sits.bench.search import Search
from sits.bench.trace import TraceWorkload
from sits.bench.workload import DatasetWorkload, SyntheticWorkload, Workload
from sits.cli.bench_explain import add_explanation
from sits.cli.bench_options import BenchOptions
from sits.cli.bench_output import Written, write_outputs
from sits.errors import InputError, MissingExtraError
from sits.spec.result import Result

QUICK_TOLERANCE = 0.15


async def execute(options: BenchOptions, directory: Path, progress: Progress) -> tuple[Result, Written]:
    """Run the benchmark and write everything into ``directory``. Returns the result and what became of its files."""
    stop = asyncio.Event()
    client = make_client(options)
    with stop_on_signals(stop):
        try:
            progress.say(f"opening {options.model or options.endpoint}")
            started = time.monotonic()
            info = await client.open()
            calibration = await _prepare_endpoint(options, client, info, progress)
            plan = await make_plan(options, client, info, started)
            outcome = await run_benchmark(
                client,
                info,
                plan,
                progress=progress,
                observers=make_observers(options, client, calibration),
                stop=stop,
                url=options.endpoint,
                api=options.api if options.endpoint else None,
            )
            if options.endpoint is not None:
                from sits.bench.http.observers import ENDPOINT_DEFINITIONS

                outcome.result.definitions |= ENDPOINT_DEFINITIONS
            await asyncio.to_thread(add_explanation, outcome.result, client, outcome.records)
            written = await asyncio.to_thread(write_outputs, outcome, client, directory)
        finally:
            progress.close()
            await client.close()
    return outcome.result, written


def make_client(options: BenchOptions) -> Client:
    """The client for the target that was named; not opened yet."""
    if options.endpoint is not None:
        from sits.cli.bench_endpoint import make_endpoint_client

        return make_endpoint_client(options)
    assert options.model is not None
    if options.model.startswith(PREFIX):
        return ScriptedClient(options.model, seed=options.seed)
    try:
        from sits.engine.bench_client import EmbeddedClient
        from sits.engine.options import EngineOptions
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "sits":
            raise
        raise MissingExtraError("Running a model on this machine", "engine") from None
    callers = 0 if options.rate is not None else int(max(options.levels()))
    return EmbeddedClient(
        options.model,
        EngineOptions(
            dtype=options.dtype,
            quantization=options.quantization,
            max_running=callers if callers > 16 else None,
            seed=options.seed,
        ),
    )


async def make_plan(options: BenchOptions, client: Client, info: TargetInfo, started: float) -> BenchPlan:
    """Workload and load levels for an opened target."""
    input_len, output_len = options.lengths()
    plan = BenchPlan(
        loads=[],
        workload=make_workload(options, client, info, input_len, output_len),
        warmup=options.warmup,
        slo=options.objectives(),
        seed=options.seed,
        # An endpoint may be shared or paid for: nothing is sent to it that does not count.
        options=RunOptions(fill=options.endpoint is None),
        command=options.command,
    )
    source = make_synthetic(options, client, info, input_len, output_len)
    search = options.search_settings()
    if options.quick:
        await _plan_quick(options, client, info, plan, source, started)
    elif search is not None:
        plan.search = await make_search(search, options, client, plan.workload)
    elif isinstance(plan.workload, TraceWorkload):
        offsets = plan.workload.offsets[: options.requests]
        plan.loads = [Load("trace", offsets=offsets, duration_s=options.duration)]
    else:
        plan.loads = options.loads()
    plan.warmup_source = source
    if options.endpoint is not None and isinstance(plan.workload, SyntheticWorkload):
        # Prompts far longer than any of the run would only cost time, or money.
        plan.warmup_longest = plan.warmup_longest or round(2 * plan.workload.input_len.mean)
    return plan


def make_workload(
    options: BenchOptions, client: Client, info: TargetInfo, input_len: Lengths, output_len: Lengths
) -> Workload:
    """The measured workload: a data set, what the scenario describes, or synthetic prompts."""
    if options.dataset is not None:
        return DatasetWorkload(options.dataset, output_len, seed=options.seed)
    if options.scenario is not None:
        from sits.cli.bench_workloads import scenario_workload

        _check_context(info, input_len, output_len)
        text = _text_of(options, client)
        keep = options.scenario.target.keep_text
        settings = options.scenario.workload
        return scenario_workload(settings, info, text, options.seed, input_len, output_len, keep)
    return make_synthetic(options, client, info, input_len, output_len)


def make_synthetic(
    options: BenchOptions, client: Client, info: TargetInfo, input_len: Lengths, output_len: Lengths
) -> SyntheticWorkload:
    """Synthetic prompts; refuses lengths that cannot fit the target's context."""
    _check_context(info, input_len, output_len)
    return SyntheticWorkload(
        input_len,
        output_len,
        vocab_size=info.vocab_size,
        text=_text_of(options, client),
        max_context=info.max_context,
        seed=options.seed,
    )


def _text_of(options: BenchOptions, client: Client) -> Any:
    """The prompt maker of an endpoint, None where token ids are sent."""
    if options.endpoint is None:
        return None
    from sits.cli.bench_endpoint import text_maker

    return text_maker(client)


def _check_context(info: TargetInfo, input_len: Lengths, output_len: Lengths) -> None:
    least = (input_len.largest or 1) + (output_len.largest or 1)
    if info.max_context is not None and input_len.kind == output_len.kind == "fixed" and least > info.max_context:
        raise InputError(
            f"{input_len} prompt and {output_len} answer tokens exceed the context of {info.max_context}",
            "Lower --input-len or --output-len",
        )


async def _plan_quick(
    options: BenchOptions,
    client: Client,
    info: TargetInfo,
    plan: BenchPlan,
    source: SyntheticWorkload,
    started: float,
) -> None:
    levels = options.levels(",".join(map(str, quick.CONCURRENCY)))
    given_in = Lengths.parse(options.input_len) if options.input_len else None
    given_out = Lengths.parse(options.output_len) if options.output_len else None
    probe_len = min(quick.INPUT_LEN, (info.max_context or 1 << 30) // 2)
    per_prompt, per_output = await quick.probe_speed(client, source, probe_len)
    chosen = quick.plan_quick(
        per_prompt,
        per_output,
        len(levels),
        input_len=given_in,
        output_len=given_out,
        spent_s=time.monotonic() - started,
    )
    plan.loads = options.loads(chosen.seconds_per_point, ",".join(map(str, quick.CONCURRENCY)))
    plan.workload = make_workload(options, client, info, chosen.input_len, chosen.output_len)
    plan.warmup_budget_s = chosen.warmup_s
    plan.warmup_longest = round(4 * (chosen.input_len.mean + chosen.output_len.mean))
    plan.notes += chosen.notes
    plan.options = replace(plan.options, tolerance=QUICK_TOLERANCE, max_rounds=plan.options.rounds + 1)


async def _prepare_endpoint(
    options: BenchOptions, client: Client, info: TargetInfo, progress: Progress
) -> dict[str, float]:
    """Self-calibration of the client before an endpoint is measured; empty for embedded targets."""
    if options.endpoint is None:
        return {}
    from sits.cli.bench_endpoint import calibrate_client, describe_target

    describe_target(client, info)
    progress.say("calibrating the load generator against its own loopback server")
    return await calibrate_client(options)


async def make_search(settings: SearchSettings, options: BenchOptions, client: Client, workload: Workload) -> Search:
    """The search for the highest load within the objectives; where it starts, two lone requests tell."""
    start = settings.start
    if start is None and settings.over == "rate":
        for index in range(2):  # the first one pays for what is lazy
            record = await client.send(workload.request(index, "probe"), time.monotonic_ns())
        seconds = max(1e-3, (record.t_end - record.t_due) / 1e9)
        start = min(settings.limit, float(f"{1 / seconds:.2g}"))
    return Search(
        settings.over,
        options.objectives(),
        start=start or 1.0,
        limit=settings.limit,
        precision=settings.precision,
        attainment=settings.attainment,
        arrival=options.arrival or "poisson",
        requests=options.requests,
        duration_s=options.seconds(),
    )


def make_observers(options: BenchOptions, client: Client, calibration: dict[str, float]) -> list[Observer]:
    """Telemetry beside an embedded engine; client health and the server's own metrics beside an endpoint."""
    if options.endpoint is not None:
        from sits.cli.bench_endpoint import endpoint_observers

        return endpoint_observers(options, client, calibration)
    if isinstance(client, ScriptedClient):
        return []
    from sits.cli.bench_telemetry import TelemetryObserver

    return [TelemetryObserver(client)]
