"""``sits explain``: where the milliseconds of a token go, how far from the limit, which switch would help."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from sits.spec.result import LoadPoint, Result
    from sits.traffic.cards import HardwareCard
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
@click.option("--gpu", "card_name", help="Card of the table: H200, H100, A100, MI300X, L40S, RTX4090, 910B, CPU, ...")
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


def _predict(options: dict[str, Any]) -> Explanation:
    from sits.spec.slo import parse_slo
    from sits.traffic.cards import get_card
    from sits.traffic.explain_prediction import explain_prediction
    from sits.traffic.operators import Step
    from sits.traffic.precision import StepPrecision

    shape = _shape_of(options["model"])
    card = _with_bandwidth(get_card(options["card_name"] or "H200"), options["bandwidth"])
    precision = StepPrecision(options["weights"] or "bf16", options["kv"] or "bf16")
    step = Step.decode(options["batch"], options["context"], precision, options["devices"])
    prompt = options["prompt"] or min(options["context"], 512)
    return explain_prediction(shape, step, card, prompt, parse_slo(options["slo"]), not options["no_graphs"])


def _shape_of(name: str) -> Any:
    from sits.errors import InputError
    from sits.traffic.model_shape import ModelShape, get_shape

    folder = Path(name)
    config = folder / "config.json" if folder.is_dir() else folder
    if not config.is_file() or config.suffix != ".json":
        return get_shape(name)
    try:
        card = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {config}: {error}") from None
    if not isinstance(card, dict):
        raise InputError(f"{config} does not hold a JSON object")
    return ModelShape.from_card(card.get("text_config") or card, folder.name)


def _with_bandwidth(card: HardwareCard, gbps: float | None) -> HardwareCard:
    return card if gbps is None else replace(card, read_gbps=gbps, uncertain=None)


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
        changed, ratio = what_changed(context, second_context, step)
        compare_after(explanation, second, changed, ratio)
    return explanation


def _explain_one(
    result: Result, path: Path, options: dict[str, Any], index: int | None
) -> tuple[Explanation, RunContext]:
    from sits.errors import InputError
    from sits.spec.result import load_records
    from sits.traffic.explain_run import add_ratios, choose_point, explain_events, explain_records

    point = choose_point(result, index)
    context, notes = _context_of(result, options)
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
            explanation = explain_events(events, context, subject, _window(point), profile)
        except InputError as error:
            notes.append(f"the event log cannot be used ({error.message}): explained from the client's view")
    if explanation is None:
        explanation = explain_records(load_records(result, path), point, context, subject)
    explanation.notes = [*notes, *explanation.notes]
    add_ratios(explanation, point)
    return explanation, context


def _window(point: LoadPoint) -> tuple[int, int] | None:
    """Monotonic ns of the measured window, where the point has it."""
    if point.started_ns <= 0 or point.duration_s <= 0:
        return None
    return point.started_ns, point.started_ns + int(point.duration_s * 1e9)


def _context_of(result: Result, options: dict[str, Any]) -> tuple[RunContext, list[str]]:
    """Shapes, card and precision from the result, overridden by options; what is unknown stays None."""
    from sits.errors import InputError
    from sits.traffic.explain_run import RunContext, precision_of
    from sits.traffic.model_shape import ModelShape

    stored = result.target.card
    notes: list[str] = []
    shape = None
    if options["model"] is not None:
        shape = _shape_of(options["model"])
    else:
        try:
            shape = ModelShape.from_card(stored, result.target.name)
        except InputError as error:
            if stored.get("layers"):
                notes.append(error.message)
    precision = precision_of(stored)
    if options["weights"]:
        precision = replace(precision, weights=options["weights"])
    if options["kv"]:
        precision = replace(precision, kv=options["kv"])
    card, more = _card_of(result, options)
    found = stored.get("engine")
    engine: dict[str, Any] = found if isinstance(found, dict) else {}
    graphs = engine.get("cuda_graphs")
    if card is not None and card.vendor in ("cpu", "arm"):
        graphs = None  # there are none on a CPU: nothing to blame
    context = RunContext(
        shape, card, precision, devices=options["devices"],
        graphs=False if options["no_graphs"] else graphs if isinstance(graphs, bool) else None,
        chunk=engine.get("max_step_tokens"), kv_blocks=engine.get("kv_blocks"),
        vision_tokens=int(result.workload.get("vision_tokens") or 0),
    )  # fmt: skip
    return context, notes + more


def _card_of(result: Result, options: dict[str, Any]) -> tuple[HardwareCard | None, list[str]]:
    from sits.traffic.cards import find_card, get_card

    if options["card_name"] is not None:
        return _with_bandwidth(get_card(options["card_name"]), options["bandwidth"]), []
    device = str((result.target.card.get("engine") or {}).get("device") or result.target.card.get("device") or "")
    gpus = result.environment.hardware.get("gpus") or []
    if device.startswith("cuda") or (gpus and not device.startswith("cpu") and result.target.kind == "embedded"):
        card = find_card(str(gpus[0].get("name", ""))) if gpus and isinstance(gpus[0], dict) else None
        return (None if card is None else _with_bandwidth(card, options["bandwidth"])), []
    if not device.startswith("cpu"):
        return None, []
    return _this_cpu(result, options["bandwidth"])


def _this_cpu(result: Result, gbps: float | None) -> tuple[HardwareCard, list[str]]:
    """The CPU card with this machine's measured read bandwidth, when the result was made on such a machine."""
    from sits.traffic.cards import get_card

    card = get_card("CPU")
    if gbps is not None:
        return _with_bandwidth(card, gbps), []
    import hashlib
    import socket

    here = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:12]
    if result.environment.hostname_hash != here:
        return card, ["the run was made on another machine: its read bandwidth is unknown, give --bandwidth"]
    from sits.telemetry.cpu_peak import measure_read_peak

    best = measure_read_peak()["best_gbps"]
    text = f"read bandwidth of this CPU measured just now: {best:.1f} GB/s"
    return replace(card, read_gbps=best, uncertain=None), [text]
