"""``sits quantize``: write a quantised checkpoint."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from sits.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from sits.models.quantize import QuantizationReport
    from sits.quant.plan import PrecisionPlan

TARGETS = ("int4-g32", "int4-g64", "int4-g128", "fp8")
EPILOG = """\b
Examples:
  sits quantize smollm2-135m --to int4-g32 --out smollm2-int4
  sits quantize meta-llama/Meta-Llama-3-8B --to int4-g128 --asymmetric --out llama3-8b-int4
  sits quantize ./model --plan plan.yaml --out ./model-mixed
  sits quantize ./gptq-model --to int4-g128 --out ./converted      (keeps the GPTQ codes)

\b
The folder is a compressed-tensors checkpoint: SITS, transformers and vLLM load it. Embeddings, norms and lm_head
stay in 16 bits. A plan is a YAML file; every run writes the one it applied as sits_plan.yaml:
  version: 1
  default: int4-g32
  method: hqq
  layers:
    "model.layers.*.mlp.down_proj": fp8
    model.layers.0.self_attn.o_proj: dense
"""


@click.command("quantize", epilog=EPILOG)
@click.argument("model")
@click.option("--to", "target", type=click.Choice(TARGETS), help="Precision of every linear.  [default: int4-g32]")
@click.option(
    "--symmetric/--asymmetric",
    default=None,
    help="INT4 without or with a zero point per group. Symmetric loads everywhere; asymmetric is more accurate.",
)
@click.option(
    "--method",
    type=click.Choice(("rtn", "hqq")),
    help="rtn rounds to nearest; hqq refines each group's grid: slower, less weight error, not always a better model "
    "(see docs/quantization.md).  [default: rtn]",
)
@click.option(
    "--plan", "plan_path", type=click.Path(dir_okay=False), help="YAML file with a precision for each layer."
)
@click.option(
    "--dtype",
    type=click.Choice(("auto", "float16", "bfloat16")),
    default="auto",
    show_default=True,
    help="Of the tensors left dense and of the scales; auto keeps the model's own 16-bit dtype.",
)
@click.option("--device", default="auto", show_default=True, help="Where the arithmetic runs: auto, cpu or cuda.")
@click.option("--out", required=True, type=click.Path(), help="Folder to write; must not exist.")
@click.option("--quiet", is_flag=True, help="No progress, no summary.")
def command(
    model: str,
    target: str | None,
    symmetric: bool | None,
    method: str | None,
    plan_path: str | None,
    dtype: str,
    device: str,
    out: str,
    quiet: bool,
) -> None:
    """Write MODEL (a name, folder, .gguf file or Hub id) as a quantised checkpoint."""
    try:
        from sits.models.quantize import quantize_model
    except ImportError as error:
        raise MissingExtraError("sits quantize", "engine") from error

    plan = _plan(target, symmetric, method, plan_path)
    if quiet or not sys.stderr.isatty():
        report = quantize_model(model, plan, out, dtype, device=device)
        if not quiet:
            _summary(report, out)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("quantizing"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("", total=None)

        def show(done: int, total: int, name: str) -> None:
            bars.update(task, completed=done, total=total, description=name)

        report = quantize_model(model, plan, out, dtype, show, device)
    _summary(report, out)


def _plan(target: str | None, symmetric: bool | None, method: str | None, path: str | None) -> PrecisionPlan:
    from sits.quant.plan import PrecisionPlan, read_plan
    from sits.quant.precision import parse_precision

    if path is not None:
        if target is not None or symmetric is not None or method is not None:
            raise InputError(
                "--plan says precision and method itself", "Leave out --to, --symmetric, --asymmetric and --method"
            )
        return read_plan(path)
    target = target or "int4-g32"
    if target == "fp8" and (symmetric is not None or method == "hqq"):
        raise InputError("--symmetric, --asymmetric and --method hqq are for INT4", "Leave them out with --to fp8")
    suffix = "-asym" if symmetric is False else ""
    return PrecisionPlan(parse_precision(target + suffix), method=method or "rtn")


def _summary(report: QuantizationReport, out: str) -> None:
    share = report.quantized_weights / max(report.all_weights, 1)
    click.echo(
        f"{report.model}: {len(report.layers)} linears ({share:.1%} of the weights), "
        f"{report.bytes_before / 1e6:.1f} MB in {report.dtype} -> {report.bytes_after / 1e6:.1f} MB"
    )
    worst = max(report.layers, key=lambda layer: layer.relative_error)
    click.echo(
        f"weight error {report.mean_error():.3%} on average, {worst.relative_error:.3%} at most ({worst.name}); "
        f"method {report.method}"
    )
    click.echo(f"written: {out}  (per layer: {out}/sits_quantization.json)")
