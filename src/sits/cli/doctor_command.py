"""``sits doctor``: what is found on this machine, what is missing, and the fix. Imports nothing heavy."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import click

# subcommand -> module under sits.cli
_PARTS = {"telemetry": "doctor_telemetry"}

# what an extra needs -> (extra, what for)
_EXTRAS = {
    "torch": ("engine", "the embedded engine"),
    "tokenizers": ("engine", "the embedded engine"),
    "humming": ("nvidia", "the fastest INT4 matrix multiply on NVIDIA cards"),
}


class _LazyParts(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_PARTS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _PARTS:
            return None
        command = importlib.import_module(f"sits.cli.{_PARTS[cmd_name]}").command
        assert isinstance(command, click.Command)
        return command


@click.group("doctor", cls=_LazyParts, invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Check this machine: hardware, packages, model cache. `sits doctor telemetry` checks the hardware counters."""
    if ctx.invoked_subcommand is None:
        for state, what, fix in findings():
            click.echo(f"{state:<8} {what}" + (f"\n           fix: {fix}" if fix else ""))
        click.echo("hardware counters: sits doctor telemetry")


def findings() -> list[tuple[str, str, str | None]]:
    """(ok | missing | note, what, fix) lines; never raises for something that is not there."""
    from sits.bench.environment import collect_environment

    environment = collect_environment()
    hardware = environment.hardware
    found: list[tuple[str, str, str | None]] = [
        (
            "ok",
            f"sits {environment.software.get('sits', '?')} on Python {environment.software.get('python', '?')}",
            None,
        ),
        ("ok", f"{hardware.get('cpu')}, {hardware.get('usable_cores')} cores, {hardware.get('memory_gb')} GiB", None),
    ]
    gpus = hardware.get("gpus") or []
    found += [("ok", f"GPU {gpu.get('name')}, driver {gpu.get('driver')}", None) for gpu in gpus]
    if not gpus:
        found.append(("note", "no NVIDIA GPU answers nvidia-smi: the engine runs on the CPU", None))
    for module, (extra, purpose) in _EXTRAS.items():
        if extra == "nvidia" and not gpus:
            continue
        if importlib.util.find_spec(module) is None:
            found.append(("missing", f"{module}: {purpose}", f"pip install 'sits-llm[{extra}]'"))
        else:
            found.append(("ok", f"{module}: {purpose}", None))
    found.append(_cache())
    return found


def _cache() -> tuple[str, str, str | None]:
    import os

    root = Path(os.environ.get("SITS_CACHE") or Path.home() / ".cache" / "sits")
    models = sorted(path.name for path in (root / "models").glob("*") if path.is_dir())
    if models:
        return "ok", f"model cache {root}: {', '.join(models)}", None
    return "missing", f"model cache {root} holds no model", "sits models fetch smollm2-135m"
