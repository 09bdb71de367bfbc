"""``sits compare A... --with B...``: two sides, each one or several results."""

from __future__ import annotations

import sys
from pathlib import Path

import click

_EPILOG = """\b
Several results on a side are repeated runs of one thing; they are pooled, and the noise between them measured.
Examples:
  sits compare old new
  sits compare main-1 main-2 main-3 --with branch-1 branch-2 branch-3 --html comparison.html
Exit code: 0 compared, 2 wrong input, 3 compared, but the two sides differ in something that makes it invalid.
"""


class _Command(click.Command):
    """``--with`` takes all names up to the next option, as the shell expands a pattern after it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        spread: list[str] = []
        inside = False
        for argument in args:
            if argument == "--with":
                inside = True
            elif argument.startswith("-") and argument != "-":
                inside = False
                spread.append(argument)
            elif inside:
                spread += ["--with", argument]
            else:
                spread.append(argument)
        if args and args[-1] == "--with":
            raise click.UsageError("--with needs at least one result", ctx)
        return super().parse_args(ctx, spread)


def _share(_: click.Context, parameter: click.Parameter, value: str) -> float:
    text = value.strip()
    try:
        number = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a share; write 3% or 0.03", param=parameter) from None
    if not 0 <= number < 1:
        raise click.BadParameter(f"{value!r} is not between 0 and 1; write 3% or 0.03", param=parameter)
    return number


@click.command("compare", cls=_Command, epilog=_EPILOG)
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="A...")
@click.option("--with", "candidates", multiple=True, type=click.Path(path_type=Path), metavar="B...",
              help="The other side. Without it two results are compared with each other.")  # fmt: skip
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write a page here.")
@click.option("--json", "json_to", metavar="FILE", help="Write JSON here; - is standard output.")
@click.option(
    "--tolerance", default="3%", show_default=True, callback=_share, help="A change this small is accepted."
)
@click.option("--resolution", default="10%", show_default=True, callback=_share,
              help="A change this large must be ruled out to call it same.")  # fmt: skip
@click.option(
    "--allow-drift", multiple=True, metavar="KIND", help="A kind of difference that is meant, such as dtype."
)
@click.option(
    "--metric", "metrics", multiple=True, metavar="NAME", help="Only this figure, such as itl.p99. Repeatable."
)
def command(
    results: tuple[Path, ...], candidates: tuple[Path, ...], html: Path | None, json_to: str | None, tolerance: float,
    resolution: float, allow_drift: tuple[str, ...], metrics: tuple[str, ...],
) -> int:  # fmt: skip
    """Compare results of `sits bench`: ratio, interval and verdict of every figure, environment differences first."""
    from sits.errors import InputError
    from sits.report.compare import comparison_json, print_comparison, render_comparison
    from sits.report.comparing import ALL_METRICS, Options, compare_runs
    from sits.report.loaded import LoadedResult
    from sits.report.pairing import KINDS
    from sits.spec.result import write_json_atomic

    if not candidates:
        if len(results) != 2:
            raise click.UsageError("give two results, or two sides: A... --with B...")
        results, candidates = results[:1], results[1:]
    for kind in allow_drift:
        if kind not in KINDS:
            raise InputError(f"there is no kind of difference {kind!r}", f"Kinds: {', '.join(KINDS)}")
    sides = [[LoadedResult(path) for path in side] for side in (results, candidates)]
    for loaded in sides[0] + sides[1]:
        if not loaded.result.points:
            raise InputError(f"{loaded.shown} measured nothing", "Run the benchmark again")
    options = Options(tolerance=tolerance, resolution=max(resolution, tolerance))
    names = check_metrics(metrics) or ALL_METRICS
    comparison = compare_runs(sides[0], sides[1], names, options, allow_drift)
    if not comparison.rows and not comparison.errors:
        raise InputError("the two sides have no load point in common", "Measure both at the same concurrency or rate")
    try:
        if html is not None:
            write_json_atomic(html, render_comparison(comparison))
        if json_to not in (None, "-"):
            write_json_atomic(Path(str(json_to)), comparison_json(comparison))
    except OSError as error:
        raise InputError(f"cannot write the comparison: {error.strerror}", "Choose another place") from None
    if json_to == "-":
        click.echo(comparison_json(comparison), nl=False)
    else:
        print_comparison(comparison, sys.stdout)
        if html is not None:
            click.echo(f"Page: {html}")
    return 3 if comparison.invalid else 0


def check_metrics(names: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse a figure no result can have. Raises ``InputError``."""
    import re

    from sits.errors import InputError
    from sits.report.comparing import METRIC_PATTERN

    for name in names:
        if not re.match(METRIC_PATTERN, name):
            raise InputError(f"there is no figure {name!r}", "For example ttft.typical, itl.p99 or throughput.output")
    return names
