"""``sits report``: show results again, on the console or as one HTML file."""

from __future__ import annotations

import sys
from pathlib import Path

import click

_EPILOG = """\b
Examples:
  sits report sits-results/20260101-120000
  sits report run-a run-b --html both.html
"""


@click.command("report", epilog=_EPILOG)
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write HTML here.")
def command(results: tuple[Path, ...], html: Path | None) -> int:
    """Show one or several RESULTs of `sits bench` (result.json files or their folders)."""
    from sits.report.console import print_scorecard
    from sits.spec.result import load_records, load_result, write_json_atomic

    loaded = [(load_result(path), path) for path in results]
    if html is None:
        for result, _ in loaded:
            print_scorecard(result, sys.stdout)
        return 0
    from sits.errors import InputError
    from sits.report.html import render_report

    runs = []
    for result, path in loaded:
        try:
            records = load_records(result, path)
        except InputError as error:
            click.echo(f"warning: {error}; plots that need records are left out", err=True)
            records = []
        runs.append((result, records))
    try:
        write_json_atomic(html, render_report(runs))
    except OSError as error:
        raise InputError(f"cannot write {html}: {error.strerror}") from None
    click.echo(f"Report: {html}")
    return 0
