"""The scorecard on a console: readable at 80 columns, on a pipe as well."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from sits.report.endpoint import search_lines
from sits.report.format import (
    duration,
    figure_text,
    hardware_text,
    number,
    percent,
    point_label,
    row_label,
    shown_rows,
    spread_text,
    status_text,
    target_text,
)
from sits.spec.result import LoadPoint, Result

if TYPE_CHECKING:
    from rich.console import Console

_LABEL_WIDTH, _CELL_WIDTH = 16, 20
_STYLE = {"complete": "green", "partial": "yellow", "not_converged": "yellow", "no_data": "red", "invalid": "red"}
_MOST_WARNINGS = 8


def make_console(stream: TextIO) -> Console:
    """A console for ``stream``: its own width on a terminal, 80 columns on a pipe."""
    from rich.console import Console

    return Console(file=stream, width=None if stream.isatty() else 80, highlight=False)


def print_scorecard(result: Result, stream: TextIO) -> None:
    """Print the whole scorecard of one result."""
    console = make_console(stream)
    short, meaning = status_text(result)
    console.print()
    console.print(f"[bold]{_safe(target_text(result))}[/]")
    console.print(f"[dim]{_safe(hardware_text(result))}; {_safe(_workload(result))}[/]")
    if result.points:
        for chunk in _chunks(result.points, max(1, (console.width - _LABEL_WIDTH) // _CELL_WIDTH)):
            console.print(_table(result, chunk))
        console.print("[dim]± and brackets: 95% interval, bootstrap over requests[/]")
    if result.knee is not None and len(result.points) > 1:
        at = next((point for point in result.points if point.index == result.knee), None)
        if at is not None:
            console.print(f"Knee: {point_label(at)} gives the most throughput per unit of latency.")
    for line in [*search_lines(result), *_client_line(result)]:
        console.print(_safe(line))
    console.print(f"Status: [{_STYLE[result.status]}]{short}[/] ({meaning})")
    _print_warnings(console, result)


def _table(result: Result, points: Sequence[LoadPoint]) -> object:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("")
    for point in points:
        mark = " *knee*" if point.index == result.knee and len(result.points) > 1 else ""
        table.add_column(_safe(point_label(point)) + mark, justify="right")
    for key in shown_rows(list(points)):
        cells = []
        for point in points:
            figure = point.metrics.get(key)
            spread = spread_text(key, figure)
            cells.append(figure_text(key, figure) + (f" [dim]{_safe(spread)}[/]" if spread else ""))
        table.add_row(row_label(key, list(points)), *cells)
    table.add_row("Requests", *(_requests(point) for point in points))
    table.add_row("Measured", *(f"{number(point.duration_s)} s" for point in points))
    return table


def _requests(point: LoadPoint) -> str:
    counts = point.requests
    failed = counts.get("error", 0) + counts.get("timeout", 0)
    return f"{counts.get('ok', 0)} ok" + (f", [red]{failed} failed[/]" if failed else "")


def _client_line(result: Result) -> list[str]:
    """How much of the figures is the load generator itself; only where that was measured."""
    health = [point.client for point in result.points if point.client.cpu_share is not None]
    if not health:
        return []
    words = [f"{percent(max(one.cpu_share or 0.0 for one in health))} of a core"]
    lag = max((one.loop_lag_p99_ms or 0.0 for one in health), default=0.0)
    slip = max((one.slip_p99_ms or 0.0 for one in health), default=0.0)
    words += [f"loop lag p99 {duration(lag)}", f"late by {duration(max(0.0, slip))} (p99)"]
    overhead = health[0].calibration.get("overhead_p50_ms")
    if overhead is not None:
        words.append(f"adds about {duration(overhead)} to a TTFT")
    return ["Load generator: " + ", ".join(words)]


def _workload(result: Result) -> str:
    load = result.workload
    if load.get("kind") == "synthetic":
        return f"prompts of {load.get('input_len')}, answers of {load.get('output_len')} tokens"
    return str(load.get("file") or load.get("name") or load.get("kind") or "")


def _print_warnings(console: Console, result: Result) -> None:
    for warning in result.warnings[:_MOST_WARNINGS]:
        console.print(f"[yellow]![/] {_safe(warning)}")
    if len(result.warnings) > _MOST_WARNINGS:
        console.print(f"[dim]and {len(result.warnings) - _MOST_WARNINGS} more in the result[/]")


def _chunks(points: Sequence[LoadPoint], size: int) -> Iterator[Sequence[LoadPoint]]:
    for start in range(0, len(points), size):
        yield points[start : start + size]


def _safe(text: str) -> str:
    """Text of a result may hold anything; it must not be read as markup."""
    from rich.markup import escape

    return escape(text)
