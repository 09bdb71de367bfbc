"""A comparison for people: console table, HTML page with interval plots, and JSON."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from sits.report.comparing import Comparison, ErrorRow, Row
from sits.report.format import number, point_label
from sits.spec.result import LoadPoint

WORDS = {"better": "better", "worse": "worse", "same": "same", "too_noisy": "too noisy", "no data": "no data"}
_STYLES = {"better": "green", "worse": "bold red", "same": "dim", "too_noisy": "yellow", "no data": "dim"}


def change_text(ratio: float) -> str:
    """A ratio as a signed percentage; past a factor of two as a factor; ``?`` when the sample sets no bound."""
    if not math.isfinite(ratio):
        return "?"
    if ratio >= 2 or ratio <= 0.5:
        return f"x{ratio:.3g}"
    return f"{(ratio - 1) * 100:+.1f}%"


def settle_text(row: Row) -> str:
    """What would decide a figure that is too noisy; empty when it is decided."""
    judgement = row.judgement
    if row.verdict != "too_noisy" or row.ratio is None:
        return ""
    parts = []
    if judgement.requests_needed:
        parts.append(f"{judgement.requests_needed} requests a side (now {min(row.ratio.requests)})")
    if judgement.runs_needed:
        parts.append(f"{judgement.runs_needed} runs a side (now {row.ratio.runs[0]} and {row.ratio.runs[1]})")
    return "about " + " in ".join(parts) if parts else "more runs a side"


def summary(comparison: Comparison) -> str:
    """One line: how many figures are what."""
    verdicts = [row.verdict for row in comparison.rows] + [error.verdict for error in comparison.errors]
    counts = [f"{verdicts.count(name)} {WORDS[name]}" for name in WORDS if name in verdicts]
    text = ", ".join(counts) or "nothing to compare"
    if comparison.invalid:
        return f"NOT COMPARABLE: the two sides differ ({text} if one compares them all the same)"
    return text


def by_point(comparison: Comparison) -> Iterator[tuple[LoadPoint, list[Row]]]:
    """Rows grouped by load point, in order."""
    order: dict[int, list[Row]] = {}
    points: dict[int, LoadPoint] = {}
    for row in comparison.rows:
        points[row.point.index] = row.point
        order.setdefault(row.point.index, []).append(row)
    for error in comparison.errors:
        points.setdefault(error.point.index, error.point)
        order.setdefault(error.point.index, [])
    for index, rows in order.items():
        yield points[index], rows


def _runs(names: Sequence[Any]) -> str:
    return ", ".join(loaded.shown for loaded in names)


def _noise_text(comparison: Comparison) -> str:
    ratios = [row.ratio for row in comparison.rows if row.ratio is not None]
    confidence = f"{comparison.options.confidence:.0%}"
    tolerance, resolution = f"{comparison.options.tolerance:.3g}", f"{comparison.options.resolution:.3g}"
    text = f"{confidence} intervals; worse or better: all of it beyond {float(tolerance):.1%}; "
    text += f"same: a change of {float(resolution):.0%} is ruled out."
    if ratios and ratios[0].run_noise_assumed:
        text += f" One run a side: {comparison.options.run_to_run:.1%} noise between runs is assumed, not measured."
    return text


def print_comparison(comparison: Comparison, stream: TextIO) -> None:
    """The comparison as tables, one a load point; environment differences first."""
    from rich.table import Table
    from rich.text import Text

    from sits.report.console import make_console

    console = make_console(stream)
    console.print(f"baseline   {_runs(comparison.baseline)}", markup=False, highlight=False)
    console.print(f"candidate  {_runs(comparison.candidate)}", markup=False, highlight=False)
    if comparison.environment:
        console.print()
        table = Table(title="What differs around the runs", title_justify="left", box=None, pad_edge=False)
        for name in ("", "what", "baseline", "candidate"):
            table.add_column(name, overflow="fold")
        for difference in comparison.environment:
            sign = Text("!", style="bold red") if difference.breaks else Text("")
            cells = (difference.name, difference.baseline, difference.candidate)
            table.add_row(sign, *(Text(cell) for cell in cells))
        console.print(table)
        if comparison.invalid:
            console.print(Text("! makes the comparison invalid: the figures may differ because of it.", style="red"))
    for point, rows in by_point(comparison):
        console.print()
        table = Table(title=Text(f"At {point_label(point)}"), title_justify="left", box=None, pad_edge=False)
        for name in ("figure", "verdict", "change", "interval", "baseline", "candidate"):
            table.add_column(
                name,
                justify="left" if name in ("figure", "verdict") else "right",
                no_wrap=True,
                min_width=9 if name == "verdict" else None,
            )
        unsettled: dict[str, list[str]] = {}
        for row in rows:
            if row.ratio is None:
                continue
            verdict = Text(WORDS[row.verdict], style=_STYLES[row.verdict])
            unit = f" {row.unit}" if row.unit not in ("", "1") else ""
            span = f"{change_text(row.ratio.low)} to {change_text(row.ratio.high)}"
            values = (number(row.ratio.baseline), number(row.ratio.candidate) + unit)
            table.add_row(Text(row.metric), verdict, change_text(row.ratio.value), span, *values)
            if settle_text(row):
                unsettled.setdefault(settle_text(row), []).append(row.metric)
        for error in comparison.errors:
            if error.point.index == point.index:
                counts = [f"{failed}/{sent}" for failed, sent in (error.baseline, error.candidate)]
                span = f"{error.low * 100:+.2f} to {error.high * 100:+.2f}"
                verdict = Text(WORDS[error.verdict], style=_STYLES[error.verdict])
                table.add_row(Text("failed requests"), verdict, f"{error.difference * 100:+.2f} pt", span, *counts)
        console.print(table)
        for settle, names in unsettled.items():
            text = f"Too noisy: {', '.join(names)}; {settle} would tell."
            console.print(text, markup=False, highlight=False, style="yellow")
    for point in comparison.unmatched:
        console.print(f"\nNot every run has {point_label(point)}.", markup=False, highlight=False)
    console.print()
    console.print(_noise_text(comparison), markup=False, highlight=False, style="dim")
    style = "bold red" if comparison.invalid else "bold"
    console.print(Text(summary(comparison), style=style))


def comparison_json(comparison: Comparison) -> str:
    """The comparison as JSON; infinite bounds are null."""

    def finite(value: float) -> float | None:
        return value if math.isfinite(value) else None

    rows = []
    for row in comparison.rows:
        entry: dict[str, Any] = {
            "point": row.point.index, "load": point_label(row.point), "metric": row.metric, "unit": row.unit,
            "verdict": row.verdict, "reason": row.reason or None, "settle": settle_text(row) or None,
        }  # fmt: skip
        if row.ratio is not None:
            entry |= {
                "baseline": row.ratio.baseline, "candidate": row.ratio.candidate, "ratio": finite(row.ratio.value),
                "low": finite(row.ratio.low), "high": finite(row.ratio.high), "confidence": row.ratio.confidence,
                "runs": list(row.ratio.runs), "requests": list(row.ratio.requests),
            }  # fmt: skip
        rows.append(entry)
    data = {
        "sits_compare": "1.0",
        "baseline": [loaded.shown for loaded in comparison.baseline],
        "candidate": [loaded.shown for loaded in comparison.candidate],
        "comparable": not comparison.invalid,
        "summary": summary(comparison),
        "environment": [
            {"kind": d.kind, "name": d.name, "baseline": d.baseline, "candidate": d.candidate, "breaks": d.breaks}
            for d in comparison.environment
        ],
        "rows": rows,
        "errors": [
            {"point": e.point.index, "baseline": list(e.baseline), "candidate": list(e.candidate),
             "difference": e.difference, "low": e.low, "high": e.high, "verdict": e.verdict}
            for e in comparison.errors
        ],
    }  # fmt: skip
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


_CSS = """
:root{--ink:#1b1f24;--soft:#667;--line:#dde;--paper:#fff;--good:#0a7d38;--bad:#c0232c;--doubt:#a66a00;--band:#eef1f6}
@media(prefers-color-scheme:dark){:root{--ink:#e7e9ee;--soft:#99a;--line:#334;--paper:#14171c;--good:#4cc97d;
--bad:#ff6b6b;--doubt:#e7b04b;--band:#232833}}
*{box-sizing:border-box}body{margin:0 auto;max-width:62rem;padding:1rem;font:15px/1.45 system-ui,sans-serif;
color:var(--ink);background:var(--paper)}h1{font-size:1.3rem}h2{font-size:1.05rem;margin-top:2rem}
table{border-collapse:collapse;width:100%}
th,td{padding:.35rem .5rem;text-align:right;border-bottom:1px solid var(--line);
font-variant-numeric:tabular-nums}th:first-child,td:first-child,td.t,th.t{text-align:left}th{color:var(--soft);
font-weight:600;font-size:.85rem}.scroll{overflow-x:auto}.worse{color:var(--bad);font-weight:700}.better{color:var(--good);
font-weight:700}.too_noisy{color:var(--doubt)}.same{color:var(--soft)}.note{color:var(--soft);font-size:.9rem}
.stop{border-left:4px solid var(--bad);padding:.5rem .8rem;background:var(--band)}svg{display:block;width:100%;
min-width:8rem;height:22px}svg .band{fill:var(--band)}svg .zero{stroke:var(--soft)}svg .worse{stroke:var(--bad);
fill:var(--bad)}svg .better{stroke:var(--good);fill:var(--good)}svg .too_noisy{stroke:var(--doubt);fill:var(--doubt)}
svg .same{stroke:var(--soft);fill:var(--soft)}
@media(max-width:40rem){.wide{display:none}th,td{padding:.3rem .25rem;font-size:.85rem}}
"""


def render_comparison(comparison: Comparison) -> str:
    """One self-contained page: what differs around the runs, then every figure with its interval drawn."""
    escape = html.escape
    body = ["<h1>Comparison</h1>"]
    body.append(
        f"<p>Baseline: <b>{escape(_runs(comparison.baseline))}</b><br>Candidate: "
        f"<b>{escape(_runs(comparison.candidate))}</b></p><p><b>{escape(summary(comparison))}</b></p>"
    )
    if comparison.environment:
        body.append("<h2>What differs around the runs</h2>")
        if comparison.invalid:
            names = ", ".join(difference.name for difference in comparison.invalid)
            body.append(f"<p class=stop>Not comparable: {escape(names)}. The figures may differ because of it.</p>")
        body.append("<div class=scroll><table><tr><th class=t>What<th class=t>Baseline<th class=t>Candidate</tr>")
        for difference in comparison.environment:
            kind = " class=worse" if difference.breaks else ""
            cells = (difference.baseline, difference.candidate)
            columns = "".join(f"<td class=t>{escape(cell)}" for cell in cells)
            body.append(f"<tr><td{kind}>{escape(difference.name)}{columns}</tr>")
        body.append("</table></div>")
    for point, rows in by_point(comparison):
        body.append(f"<h2>At {escape(point_label(point))}</h2><div class=scroll><table><tr><th>Figure<th>Baseline"
                    "<th>Candidate<th>Change<th class=wide>Interval<th class=t>-20% &hellip; +20%<th "
                    "class=t>Verdict</tr>")  # fmt: skip
        body += [_html_row(row, comparison) for row in rows if row.ratio is not None]
        body += [_html_errors(error) for error in comparison.errors if error.point.index == point.index]
        body.append("</table></div>")
    for point in comparison.unmatched:
        body.append(f"<p class=note>Not every run has {escape(point_label(point))}.</p>")
    body.append(f"<p class=note>{escape(_noise_text(comparison))}</p>")
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width,"
        f"initial-scale=1'><title>SITS comparison</title><style>{_CSS}</style>" + "\n".join(body) + "</html>\n"
    )


def _html_errors(error: ErrorRow) -> str:
    counts = "".join(f"<td>{failed}/{sent}" for failed, sent in (error.baseline, error.candidate))
    return (
        f"<tr><td>failed requests{counts}<td>{error.difference * 100:+.2f} pt"
        f"<td class=wide>{error.low * 100:+.2f} to {error.high * 100:+.2f}"
        f"<td><td class='t {error.verdict}'>{WORDS[error.verdict]}</tr>"
    )


def _html_row(row: Row, comparison: Comparison) -> str:
    ratio = row.ratio
    assert ratio is not None
    settle = settle_text(row)
    note = f"<br><span class=note>{html.escape(settle)} would tell</span>" if settle else ""
    unit = f" <span class=note>{html.escape(row.unit)}</span>" if row.unit not in ("", "1") else ""
    return (
        f"<tr><td>{html.escape(row.metric)}{unit}<td>{number(ratio.baseline)}<td>{number(ratio.candidate)}"
        f"<td>{change_text(ratio.value)}<td class=wide>{change_text(ratio.low)} to {change_text(ratio.high)}"
        f"<td>{_plot(row, comparison.options.tolerance)}<td class='t {row.verdict}'>{WORDS[row.verdict]}{note}</tr>"
    )


def _plot(row: Row, tolerance: float) -> str:
    """The interval on a scale from -20% to +20%; the tolerance is the grey band."""
    ratio = row.ratio
    assert ratio is not None

    def x(value: float) -> float:
        return round(min(199.0, max(1.0, 100 + (value - 1) * 500)), 1)

    low, high, middle = x(ratio.low), x(min(ratio.high, 9.0)), x(min(ratio.value, 9.0))
    band = tolerance * 500
    label = f"{change_text(ratio.low)} to {change_text(ratio.high)}"
    return (
        f"<svg viewBox='0 0 200 22' preserveAspectRatio=none role=img aria-label='{label}'>"
        f"<rect class=band x={100 - band:.1f} y=0 width={2 * band:.1f} height=22 />"
        f"<line class=zero x1=100 x2=100 y1=0 y2=22 stroke-dasharray='2 2' />"
        f"<g class={row.verdict}><line x1={low} x2={high} y1=11 y2=11 stroke-width=2 />"
        f"<rect x={middle - 2:.1f} y=6 width=4 height=10 /></g></svg>"
    )
