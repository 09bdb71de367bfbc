"""``sits-validate --run``: the benchmark a configuration describes, by the same command as ``sits bench``.

The room ``validate`` knows results only; putting the benchmark and the gate together is the command line's job.
"""

from __future__ import annotations

import contextlib
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sits.errors import InputError

if TYPE_CHECKING:
    from sits.validate.config import Config

# A result is worth judging when the run itself says it cannot be trusted: the rules then say why.
_JUDGEABLE = (0, 3, 4)


def arguments(bench: dict[str, Any], command: click.Command, config: Config) -> list[str]:
    """The arguments of ``sits bench`` for a ``bench:`` section. Raises ``ConfigError`` for an unknown option."""
    from sits.validate.schema_check import suggestion
    from sits.validate.source import ConfigError, Problem

    flags: dict[str, bool] = {}
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            for name in parameter.opts:
                if name.startswith("--"):
                    flags[name.removeprefix("--")] = parameter.is_flag
    found: list[str] = []
    problems: list[Problem] = []
    mark = config.bench_mark or config.mark
    for key, value in bench.items():
        name = key.replace("_", "-")
        if name not in flags or name in ("json", "help"):
            problems.append(Problem(f"sits bench has no option '{key}'", mark, suggestion(name, list(flags))))
        elif flags[name]:
            if not isinstance(value, bool):
                problems.append(Problem(f"'bench.{key}' must be true or false", mark))
            elif value:
                found.append(f"--{name}")
        elif isinstance(value, bool):
            problems.append(Problem(f"'bench.{key}' needs a value", mark))
        elif isinstance(value, list) and name != "header":
            found.append(f"--{name}={','.join(_text(item) for item in value)}")
        else:
            found += [f"--{name}={_text(item)}" for item in (value if isinstance(value, list) else [value])]
    if problems:
        raise ConfigError(problems)
    return found


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def run_benchmark(config: Config) -> Path:
    """Run ``sits bench`` and return the folder of its result. Everything it prints goes to standard error.

    Raises ``InputError`` when there is nothing to run or it leaves no result.
    """
    from sits.cli.bench_command import command
    from sits.cli.main import run

    if not config.bench:
        hint = "Add it: the options of sits bench, such as 'bench: {model: smollm2-135m, requests: 100}'"
        raise InputError(f"{config.path} has no 'bench:' section, so --run has nothing to run", hint)
    bench = dict(config.bench)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    out = Path(str(bench.pop("out", ""))) if bench.get("out") else config.base / "sits-results" / f"gate-{stamp}"
    if not out.is_absolute() and "out" in config.bench:
        out = config.base / out
    before = _stamp(out)
    with contextlib.redirect_stdout(sys.stderr):
        code = run(command, "sits bench", [*arguments(bench, command, config), f"--out={out}"])
    if code == 130:
        raise InputError("the benchmark was interrupted", "A partial result is no base for a verdict")
    if code not in _JUDGEABLE or _stamp(out) in (None, before):
        raise InputError(f"the benchmark failed (exit {code}) and left no result", "Its messages are above")
    return out


def _stamp(out: Path) -> int | None:
    """When the result in a folder was written; ``None`` without one."""
    try:
        return (out / "result.json").stat().st_mtime_ns
    except OSError:
        return None
