"""``sits kernels``: which implementation each operator gets on this machine, and re-tuning the measured table."""

from __future__ import annotations

import json
from typing import Any

import click

from sits.errors import InputError, MissingExtraError


@click.group("kernels")
def command() -> None:
    """List operator implementations; re-measure which one is fastest on this card."""


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise MissingExtraError("sits kernels", "engine") from None
    return torch


@command.command("list")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, or auto.")
def list_kernels(device: str) -> None:
    """Implementations of every operator, best first; the first that supports a model's shapes is used."""
    torch = _torch()
    from sits.kernels import registry, tuning

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    names = ("rms_norm", "add_rms_norm", "silu_mul", "rope_kv_write", "attention")
    for operator in (*names, "linear_dense", "linear_int4", "linear_fp8"):
        entries = registry.implementations(operator, device)
        click.echo(f"{operator:14s} {', '.join(entry.name for entry in entries if _fits(entry, device)) or '-'}")
    for module, reason in registry.import_failures().items():
        click.echo(f"not loaded: {module}: {reason}", err=True)
    if device == "cuda" and torch.cuda.is_available():
        card = torch.cuda.get_device_name()
        table = tuning.load_table(card)
        click.echo(f"measured table for {card}: {'none' if not table else ', '.join(table)}")
    click.echo('Force a choice with SITS_KERNELS, e.g. SITS_KERNELS="attention=reference,linear_int4=triton".')


def _fits(entry: Any, device: str) -> bool:
    return not entry.devices or device in entry.devices


@command.command("tune")
@click.option("--model", default="llama-3-8b", show_default=True, help="A synthetic preset whose linears are timed.")
@click.option("--batches", default="1,2,4,8,16,32,64,128,256,2048", show_default=True, help="Rows, comma separated.")
@click.option("--group-size", default=32, show_default=True, help="INT4 group size.")
@click.option("--dtype", default="bfloat16", show_default=True, type=click.Choice(["bfloat16", "float16"]))
def tune(model: str, batches: str, group_size: int, dtype: str) -> None:
    """Time every INT4 kernel on this card for a model's shapes and keep the winners for later runs."""
    torch = _torch()
    from sits.kernels import tuning
    from sits.models.presets import preset_config
    from sits.spec.result import write_json_atomic

    try:
        rows = sorted({int(part) for part in batches.split(",")})
        if rows[0] < 1:
            raise ValueError
    except (ValueError, IndexError):
        raise InputError(
            f"--batches {batches!r} is not a list of positive whole numbers", "Example: 1,16,64"
        ) from None
    config = preset_config(model, None)
    if not torch.cuda.is_available():
        raise InputError("sits kernels tune needs a CUDA device", "The CPU has one INT4 kernel: nothing to choose")

    from sits.kernels.tuning.measure import time_shape
    from sits.quant.int4 import Int4Codes

    def codes_of(out: int, columns: int, group: int) -> Int4Codes:
        q = torch.randint(0, 16, (out, columns), dtype=torch.uint8, device="cuda")
        scale = (torch.rand(out, -(-columns // group), device="cuda") * 0.01 + 1e-3).half().float()
        return Int4Codes(q, scale, scale * -8, group)

    card = torch.cuda.get_device_name()
    choices: dict[str, Any] = dict(tuning.load_table(card).get("linear_int4", {}))
    for shape in config.linear_shapes().values():
        times = time_shape(shape, rows, group_size, getattr(torch, dtype), codes_of, click.echo)
        choices[f"{shape[0]}x{shape[1]}"] = tuning.steps_from_times({k: v for k, v in times.items() if v})
    file = tuning.user_file(card)
    file.parent.mkdir(parents=True, exist_ok=True)
    measured = {"model": model, "group_size": group_size, "dtype": dtype, "torch": torch.__version__}
    table = {"card": card, "measured": measured, "choices": {"linear_int4": choices}}
    write_json_atomic(file, json.dumps(table, indent=1) + "\n")
    click.echo(f"written to {file}")
