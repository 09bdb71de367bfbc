"""``sits explain``: where the milliseconds of a token go, how far from the limit, which switch would help."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from sits.spec.result import LoadPoint, Result
    from sits.traffic.explain_run import RunContext
    from sits.traffic.explanation import Explanation

_EPILOG = """\b
Examples:
  sits explain sits-results/20260101-120000
  sits explain before/ --after after/ --html explain.html
  sits explain --model llama-3-70b --gpu H200 --weights int4-g32 --batch 16 --context 4096
  sits explain --model llama-3-70b --gpu L40S --slo ttft=2s,itl=40ms --prompt 2000
"""


@click.command("explain", epilog=_EPILOG)
@click.argument("result", required=False, type=click.Path(path_type=Path))
@click.option("--point", type=int, help="Load point of the result to explain (default: the knee, else the largest).")
@click.option(
    "--after",
    type=click.Path(path_type=Path),
    help="A second result, made with a switch on: predicted beside achieved.",
)
@click.option(
    "--trace", type=click.Path(path_type=Path), help="Profiler trace (Chrome JSON) of decode steps of this run."
)
@click.option("--model", help="Model shapes: a preset name, or a folder with config.json.")
@click.option("--gpu", "card_name", help="Card: H200 (default), H100, A100, MI300X, L40S, RTX4090, 910B, CPU, ...")
@click.option(
    "--bandwidth", type=click.FloatRange(min=0.1), help="Read bandwidth of the device in GB/s, where known better."
)
@click.option("--batch", type=click.IntRange(1, 4096), default=1, show_default=True)
@click.option(
    "--context", type=click.IntRange(1, 10_000_000), default=1024, show_default=True, help="Tokens per sequence."
)
@click.option("--prompt", type=click.IntRange(1, 10_000_000), help="Prompt tokens for the time to first token.")
@click.option("--weights", help="bf16, fp8, int8, int4-g32, ... (default: bf16, or what the result says)")
@click.option("--kv", help="bf16, fp8 or int8 KV cache.")
@click.option("--devices", type=click.IntRange(1, 64), default=1, show_default=True, help="Tensor-parallel size.")
@click.option("--no-graphs", is_flag=True, help="Predict without CUDA graphs.")
@click.option("--slo", help="For example ttft=500ms,itl=50ms: which precision and how many GPUs meet it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--html", "html_file", type=click.Path(path_type=Path, dir_okay=False), help="Also write an HTML page.")
def command(result: Path | None, html_file: Path | None, as_json: bool, **options: Any) -> int:
    """Explain a RESULT of `sits bench`, or predict a model on a card with --model and --gpu."""
    from sits.errors import InputError

    if result is None and options["model"] is None:
        raise InputError("nothing to explain", "Give a RESULT of sits bench, or --model and --gpu for a prediction")
    explanation = _predict(options) if result is None else _explain(result, options)
    document = explanation.to_dict()
    if html_file is not None:
        from sits.report.explain_html import render_page
        from sits.spec.result import write_json_atomic

        try:
            write_json_atomic(html_file, render_page(document))
        except OSError as error:
            raise InputError(f"cannot write {html_file}: {error.strerror}") from None
    if as_json:
        click.echo(json.dumps(document, indent=1))
    else:
        from sits.report.explain_text import render_text

        click.echo(render_text(document))
    return 0


def _measured(result: Result, path: Path, point: LoadPoint) -> set[str] | None:
    """Names of the load point's measured requests; None without records."""
    from sits.errors import InputError
    from sits.spec.result import load_records

    try:
        records = load_records(result, path)
    except InputError:
        return None
    return {record.request_id for record in records if record.phase == "measure" and record.point == point.index}


def _predict(options: dict[str, Any]) -> Explanation:
    from sits.cli.explain_context import shape_of, with_bandwidth
    from sits.spec.slo import parse_slo
    from sits.traffic.cards import get_card
    from sits.traffic.explain_prediction import explain_prediction
    from sits.traffic.operators import Step
    from sits.traffic.precision import StepPrecision

    shape = shape_of(options["model"])
    card = with_bandwidth(get_card(options["card_name"] or "H200"), options["bandwidth"])
    precision = StepPrecision(options["weights"] or "bf16", options["kv"] or "bf16")
    step = Step.decode(options["batch"], options["context"], precision, options["devices"])
    prompt = options["prompt"] or min(options["context"], 512)
    return explain_prediction(shape, step, card, prompt, parse_slo(options["slo"]), not options["no_graphs"])


def _explain(path: Path, options: dict[str, Any]) -> Explanation:
    from sits.spec.result import load_result
    from sits.traffic.explain_run import compare_after, what_changed
    from sits.traffic.operators import Step

    loaded = load_result(path)
    explanation, context = _explain_one(loaded, path, options, options["point"])
    if options["after"] is not None:
        second, second_context = _explain_one(load_result(options["after"]), options["after"], options, None)
        step = None
        if explanation.step and context.precision is not None:
            shown = explanation.step
            step = Step.decode(int(shown["batch"]), int(shown["context"]), context.precision, context.devices)
        changed, predicted = what_changed(context, second_context, step)
        compare_after(explanation, second, changed, predicted)
    return explanation


def _explain_one(
    result: Result, path: Path, options: dict[str, Any], index: int | None
) -> tuple[Explanation, RunContext]:
    from sits.cli.explain_context import Overrides, context_of, window_of
    from sits.errors import InputError
    from sits.spec.result import load_records
    from sits.telemetry.engine_counters import required_gbps
    from sits.traffic.explain_records import explain_records
    from sits.traffic.explain_run import (
        add_engine_estimate,
        add_ratios,
        choose_point,
        explain_events,
    )

    point = choose_point(result, index)
    overrides = Overrides(
        options["model"], options["card_name"], options["bandwidth"], options["weights"], options["kv"],
        options["devices"], options["no_graphs"],
    )  # fmt: skip
    context, notes = context_of(result, overrides)
    folder = path if path.is_dir() else path.parent
    subject = f"{result.target.name}, load point {point.index}"
    profile = None
    if options["trace"] is not None:
        from sits.traffic.profile_trace import read_trace

        profile = read_trace(options["trace"])
    explanation = None
    if result.events_file is not None:
        from sits.engine.event_log import read_events

        try:
            events = read_events(folder / Path(result.events_file).name)
            explanation = explain_events(
                events, context, subject, window_of(point), profile, only=_measured(result, path, point)
            )
        except InputError as error:
            notes.append(f"the event log cannot be used ({error.message}): explained from the client's view")
    if explanation is None:
        explanation = explain_records(load_records(result, path), point, context, subject)
    explanation.notes = [*notes, *explanation.notes]
    add_ratios(explanation, point)
    estimate = required_gbps(point.server, point.duration_s)
    if estimate is not None:
        add_engine_estimate(explanation, *estimate, context.card)
    return explanation, context
