"""``sits bench``: measure a model on this machine, or any OpenAI-compatible endpoint."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import click

_EPILOG = """\b
Examples:
  sits bench --model smollm2-135m --quick
  sits bench --model smollm2-135m --concurrency 1,4,8 --input-len 128 --output-len 64
  sits bench --model synthetic:llama-3-8b --concurrency 1..64 --requests 128
  sits bench --model ./model.gguf --rate 2 --arrival poisson --slo ttft=500ms,itl=50ms
  sits bench --endpoint http://127.0.0.1:8000 --concurrency 16 --duration 60
  sits bench --endpoint http://127.0.0.1:8000 --rate max --slo ttft=500ms,itl=50ms    (search)
  sits bench --endpoint http://127.0.0.1:8000 -f chat       (scenario; --init chat prints it)
  sits bench --model scripted:ttft=20ms,itl=5ms --quick     (no model at all, to try the tool)

\b
Lengths: 128, 64..256 (uniform), normal:128:32, lognormal:128:0.5
Exit codes: 0 done; 1 failed; 2 wrong usage; 3 figures cannot be trusted (not converged,
no data); 4 the load generator was the bottleneck; 130 interrupted, partial result kept.
"""

EXIT_CODES = {"complete": 0, "partial": 130, "not_converged": 3, "no_data": 3, "invalid": 4}


def _use_scenario(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    """Load the scenario first: its settings become the defaults of the other flags."""
    if value is None:
        return None
    from sits.bench.scenario import load_scenario

    scenario = load_scenario(value)
    context.default_map = {**(context.default_map or {}), **scenario.flags()}
    return scenario


def _print_and_leave(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if not value or context.resilient_parsing:
        return
    from sits.bench.scenario import built_in_text, schema_text

    click.echo(schema_text() if value is True else built_in_text(value), nl=value is True)
    context.exit(0)


@click.command("bench", epilog=_EPILOG)
@click.option(
    "-f",
    "--scenario",
    metavar="FILE",
    is_eager=True,
    callback=_use_scenario,
    help="YAML scenario, or a built-in one.",
)
@click.option(
    "--init", metavar="NAME", is_eager=True, expose_value=False, callback=_print_and_leave, help="Print a scenario."
)
@click.option(
    "--schema", is_flag=True, is_eager=True, expose_value=False, callback=_print_and_leave, help="Print their schema."
)
@click.option("--model", help="Model name, folder, .gguf file, hub id or synthetic:PRESET; runs on this machine.")
@click.option("--endpoint", metavar="URL", help="Measure this OpenAI-compatible endpoint instead.")
@click.option(
    "--api", type=click.Choice(["chat", "completions", "responses"]), default="chat", help="API of the endpoint."
)
@click.option("--served-model", metavar="NAME", help="Model name to ask the endpoint for (default: its first).")
@click.option("--api-key-env", metavar="VAR", help="Environment variable that holds the endpoint's API key.")
@click.option("--header", multiple=True, metavar="K=V", help="Extra request header; may be repeated.")
@click.option("--concurrency", metavar="LIST", help="Closed loop: callers, such as 1,4,8, 1..64 or max. [default: 1]")
@click.option("--rate", metavar="LIST", help="Open loop: requests per second, such as 0.5,1,2 or max.")
@click.option("--arrival", metavar="PROCESS", help="With --rate: poisson, constant, burst[:SHAPE] or ramp.")
@click.option("--requests", type=int, metavar="N", help="Measure N requests at each load level.")
@click.option("--duration", type=float, metavar="S", help="Measure S seconds at each load level. [default: 30]")
@click.option("--input-len", metavar="LEN", help="Prompt tokens. [default: 128]")
@click.option("--output-len", metavar="LEN", help="Answer tokens. [default: 128]")
@click.option("--dataset", type=click.Path(path_type=Path), metavar="FILE", help="Prompts from .jsonl or .txt.")
@click.option("--slo", metavar="TEXT", help="Objectives for goodput: ttft=500ms,itl=50ms,tpot=40ms,e2e=10s.")
@click.option("--warmup", type=click.Choice(["article", "ladder", "none"]), default="ladder", help="Warm-up prompts.")
@click.option("--dtype", default="auto", help="With --model: auto, float32, bfloat16, float16.")
@click.option("--quantization", metavar="NAME", help="With --model: int4-g32, fp8 or a plan file.")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Result folder. [default: sits-results/TIME]"
)
@click.option("--json", "json_to", metavar="FILE", help="Also write the result here; - is standard output.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, help="Seed of prompts and arrivals.")
@click.option("--quick", is_flag=True, help="About a minute in all: fits lengths and time to this machine.")
@click.pass_context
def command(context: click.Context, /, **values: Any) -> int:
    """Measure TTFT, ITL, throughput, TLTB and goodput, with intervals and a convergence check.

    Prints a scorecard and writes result.json, the raw records and a self-contained report.html.
    """
    from sits.cli.bench_options import BenchOptions

    options = BenchOptions(command=_command_line(), **_without_overridden(context, values))
    options.check()
    if options.dataset is not None:
        from sits.bench.workload import read_dataset

        read_dataset(options.dataset)  # before a model is loaded for nothing
    return run_options(options)


def _without_overridden(context: click.Context, values: dict[str, Any]) -> dict[str, Any]:
    """Drop what a scenario set where a flag on the command line excludes it."""
    from click.core import ParameterSource

    def typed(name: str) -> bool:
        return context.get_parameter_source(name) is ParameterSource.COMMANDLINE

    groups = (("model", "endpoint"), ("concurrency", "rate"), ("requests", "duration"), ("input_len", "dataset"))
    for one, other in groups:
        for mine, rival in ((one, other), (other, one)):
            if typed(mine) and not typed(rival):
                values[rival] = None
    if typed("concurrency") and not typed("arrival"):
        values["arrival"] = None
    if values["model"] is not None and typed("model"):
        # What was typed stays, so that it is refused rather than ignored.
        defaults = {"served_model": None, "api_key_env": None, "header": (), "api": "chat"}
        values |= {name: default for name, default in defaults.items() if not typed(name)}
    return values


def run_options(options: Any) -> int:
    """Run checked options, print and write everything; returns the exit code."""
    from sits.bench.progress import make_progress
    from sits.cli.bench_assembly import execute
    from sits.report.console import print_scorecard
    from sits.spec.result import write_json_atomic

    directory = options.out or default_directory()
    made = prepare_directory(directory)
    try:
        result, written = run_loop(execute(options, directory, make_progress()))
    except BaseException:
        for folder in made:  # nothing was measured: leave no empty folders behind
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    # With the JSON on standard output nothing else may appear there.
    print_scorecard(result, sys.stderr if options.json_to == "-" else sys.stdout)
    text = result.model_dump_json(indent=1) + "\n"
    if options.json_to == "-":
        sys.stdout.write(text)
    elif options.json_to is not None:
        write_json_atomic(Path(options.json_to), text)
    for label, path in written.files.items():
        click.echo(f"{label + ':':<8} {path}", err=options.json_to == "-")
    for fault in written.faults:
        click.echo(f"error: {fault}", err=True)
    if written.faults:
        return 1
    if result.status == "partial" and not result.extra.get("interrupted"):
        return 3  # the target gave up, not the user
    return EXIT_CODES[result.status]


def default_directory() -> Path:
    """``sits-results/<UTC time>`` under the working directory; never one that exists."""
    from datetime import UTC, datetime

    base = Path("sits-results") / f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
    directory, count = base, 1
    while directory.exists():
        count += 1
        directory = base.with_name(f"{base.name}-{count}")
    return directory


def prepare_directory(directory: Path) -> list[Path]:
    """Create the output folder and see that it can be written, before any time is spent.

    Returns the folders that were not there before, the inmost first.
    """
    from sits.errors import InputError

    made = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / ".write-test"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"cannot write into {directory}: {error.strerror}", "Give another --out") from None
    return made


def run_loop(coroutine: Any) -> Any:
    """Run on uvloop where it is installed; asyncio's own loop serves as well, only slower."""
    import asyncio

    try:
        import uvloop
    except ImportError:
        return asyncio.run(coroutine)
    return uvloop.run(coroutine)


def _command_line() -> list[str]:
    # Keys come from the environment, but a header may carry a secret: its value stays out of the result.
    words, hide = ["sits"], False
    for word in sys.argv[1:]:
        if hide:
            word = word.partition("=")[0] + "=..."
        elif word.startswith("--header="):
            word = word.partition("=")[0] + "=" + word.partition("=")[2].partition("=")[0] + "=..."
        hide = word == "--header"
        words.append(word)
    return words
