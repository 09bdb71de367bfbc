"""The HTML report: one file, no network, plots that need no scripts. One result, or several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files

import numpy as np

from sits.report import endpoint, facts, plots
from sits.report.explain_bandwidth import bandwidth_plot
from sits.report.explain_html import render_fragment
from sits.report.format import (
    ROWS,
    figure_text,
    hardware_text,
    interval_text,
    number,
    point_label,
    row_label,
    shown_rows,
    status_text,
    target_text,
)
from sits.spec.records import RequestRecord
from sits.spec.result import LoadPoint, Result
from sits.spec.statistics import Array
from sits.spec.timeline import Timeline, build_timeline

Run = tuple[Result, Sequence[RequestRecord]]

_KPIS = ("throughput.output", "ttft.p50", "ttft.p99", "itl.p50", "itl.p99", "tltb", "tail_inflation", "goodput")


def render_report(runs: Sequence[Run]) -> str:
    """One self-contained HTML page. Records may be empty: plots that need them are left out."""
    body = _one(*runs[0]) if len(runs) == 1 else _several(runs)
    title = runs[0][0].target.name if len(runs) == 1 else f"{len(runs)} results"
    assets = files("sits.report") / "assets"
    style, script = ((assets / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>SITS: {escape(title)}</title><style>{style}</style></head><body><main>{body}"
        "<footer>Made by <code>sits report</code>. This file needs no network.</footer></main>"
        f"<script>{script}</script></body></html>\n"
    )


def _one(result: Result, records: Sequence[RequestRecord]) -> str:
    parts = [_header(result)]
    head = headline(result)
    if head is not None:
        parts.append(_kpis(head, len(result.points) > 1))
    parts.append(facts.alerts(result))
    parts.append(_body(result, records))
    return "".join(parts)


def _several(runs: Sequence[Run]) -> str:
    names = run_names([result for result, _ in runs])
    parts = [
        '<header class="top"><p class="brand">SITS benchmark report</p>',
        f"<h1>{len(runs)} results</h1></header>",
    ]
    curves = [plots.Curve(name, result.points, result.knee) for name, (result, _) in zip(names, runs)]
    if plot := plots.frontier_plot(curves):
        parts.append(f'<h2>Latency against throughput</h2><div class="card">{plot}</div>')
    columns = [(name, point, result) for name, (result, _) in zip(names, runs) for point in result.points]
    parts.append(f'<h2>Load levels</h2><div class="card scroll">{_table(columns)}</div>')
    for name, (result, records) in zip(names, runs):
        parts.append(f'<details class="card"><summary>{escape(name)}</summary>{_header(result, "h2")}')
        parts.append(facts.alerts(result) + _body(result, records, table=False) + "</details>")
    return "".join(parts)


def run_names(results: Sequence[Result]) -> list[str]:
    """Short names that tell results apart: the target, and the run id where targets are the same."""
    names = [result.target.name for result in results]
    return [n if names.count(n) == 1 else f"{n} ({result.run_id})" for n, result in zip(names, results)]


def headline(result: Result) -> LoadPoint | None:
    """The load level whose figures stand at the top: the knee, or the last one."""
    if not result.points:
        return None
    return next((point for point in result.points if point.index == result.knee), result.points[-1])


def _header(result: Result, tag: str = "h1") -> str:
    short, meaning = status_text(result)
    return (
        '<header class="top"><p class="brand">SITS benchmark report</p>'
        f"<{tag}>{escape(target_text(result))}</{tag}>"
        f'<p class="sub">{escape(hardware_text(result))} · {escape(facts.workload_text(result))}</p>'
        f'<p><span class="pill {result.status}">{short}</span> <span class="sub">{escape(meaning)} · '
        f"{escape(result.created.replace('T', ' ').replace('+00:00', ' UTC'))}</span></p></header>"
    )


def _kpis(point: LoadPoint, several: bool) -> str:
    cards = []
    for key in _KPIS:
        figure = point.metrics.get(key)
        if figure is None or (figure.value is None and key == "goodput"):
            continue
        interval = interval_text(key, figure)
        small = f"95%: {interval}" if interval else (figure.reason or "")
        cards.append(
            f'<div class="kpi"><dt>{row_label(key, [point])}</dt><dd>{figure_text(key, figure)}'
            f"<small>{escape(small)}</small></dd></div>"
        )
    where = f'<p class="sub">At {escape(point_label(point))}, the knee of the sweep:</p>' if several else ""
    return f'{where}<dl class="kpis">{"".join(cards)}</dl>'


def _body(result: Result, records: Sequence[RequestRecord], table: bool = True) -> str:
    parts = []
    if table and result.points:
        columns = [("", point, result) for point in result.points]
        parts.append(f'<h2>Load levels</h2><div class="card scroll">{_table(columns)}</div>')
        parts.append(facts.interval_note())
    parts += [endpoint.search_section(result), endpoint.parts_section(result)]
    if len(result.points) > 1:
        curve = plots.Curve(result.target.name, result.points, result.knee)
        parts.append(f'<h2>Latency against throughput</h2><div class="card">{plots.frontier_plot([curve])}')
        parts.append(plots.caption("Numbers at the points are the load level; bars are 95% intervals.") + "</div>")
    timelines = {
        point.index: build_timeline([r for r in records if r.point == point.index and r.phase == "measure"])
        for point in result.points
    }
    parts.append(_distributions(result, timelines))
    parts.append(_timelines(result, records))
    explanation = result.extra.get("explanation")
    if isinstance(explanation, dict) and explanation.get("explanation") == 1:
        parts.append(f'<div class="card scroll">{render_fragment(explanation)}</div>')
    parts.append(facts.trust(result))
    parts.append(facts.server_and_hardware(result))
    parts.append(endpoint.server_timelines(result))
    parts.append(facts.environment(result))
    parts.append(facts.definitions(result))
    return "".join(parts)


def _table(columns: Sequence[tuple[str, LoadPoint, Result]]) -> str:
    heads = []
    for name, point, result in columns:
        knee = point.index == result.knee and len(result.points) > 1
        label = escape(point_label(point)) + (' <span class="knee">knee</span>' if knee else "")
        heads.append(f'<th scope="col">{escape(name) + "<br>" if name else ""}{label}</th>')
    rows = []
    for key in shown_rows([point for _, point, _ in columns]):
        label, meaning = row_label(key, [point for _, point, _ in columns]), ROWS[key][1]
        cells = []
        for _, point, _ in columns:
            figure = point.metrics.get(key)
            small = interval_text(key, figure)
            cells.append(f"<td>{figure_text(key, figure)}{f'<small>{escape(small)}</small>' if small else ''}</td>")
        rows.append(f'<tr><th scope="row"><abbr title="{escape(meaning)}">{label}</abbr></th>{"".join(cells)}</tr>')
    counts = "".join(f"<td>{_counts(point)}</td>" for _, point, _ in columns)
    seconds = "".join(f"<td>{number(point.duration_s)} s</td>" for _, point, _ in columns)
    rows.append(f'<tr><th scope="row">Requests</th>{counts}</tr><tr><th scope="row">Measured</th>{seconds}</tr>')
    return f"<table><thead><tr><th></th>{''.join(heads)}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _counts(point: LoadPoint) -> str:
    failed = point.requests.get("error", 0) + point.requests.get("timeout", 0)
    return f"{point.requests.get('ok', 0):,}" + (f"<small>{failed:,} failed</small>" if failed else "")


def _distributions(result: Result, timelines: dict[int, Timeline]) -> str:
    gaps = [(point_label(point), timelines[point.index].gaps().values) for point in result.points]
    firsts = []
    for point in result.points:
        firsts.append((point_label(point), _present(timelines[point.index].ttft_ms())))
    chunked = any(point.tokens_per_chunk > 1.05 for point in result.points)
    cards = []
    for title, series in (("TTFT", firsts), ("ITL", gaps)):
        if plot := plots.spectrum_plot(title, series):
            note = "gaps inside a chunk are its time shared evenly" if chunked and title == "ITL" else ""
            cards.append(f'<div class="card"><h3>{title} by percentile</h3>{plot}{plots.caption(note)}</div>')
    if not cards:
        return ""
    note = plots.caption("Each step to the right is ten times rarer. A line ends at its largest sample.")
    return f'<h2>Distributions</h2><div class="grid2">{"".join(cards)}</div>{note}'


def _present(values: Array) -> Array:
    return np.sort(values[~np.isnan(values)])


def _timelines(result: Result, records: Sequence[RequestRecord]) -> str:
    head = headline(result)
    parts = []
    for point in result.points:
        mine = [record for record in records if record.point == point.index]
        measured = np.array([record.phase == "measure" for record in mine], dtype=np.bool_)
        if not measured.any():
            continue
        timeline = build_timeline(mine)
        start, end = float(timeline.due[measured].min()), float(timeline.end[measured].max())
        steady = None
        if point.steady_start_s is not None and point.steady_end_s is not None:
            steady = (start + point.steady_start_s, start + point.steady_end_s)
        lanes, note = plots.lanes_plot(timeline, measured, start, end)
        inner = lanes + plots.caption(f"Shown: {note}." if note else "")
        inner += plots.load_plot(timeline, start, end, steady)
        inner += bandwidth_plot(point.bandwidth)
        opened = " open" if point is head else ""
        parts.append(
            f'<details class="card"{opened}><summary>{escape(point_label(point))}</summary>{inner}</details>'
        )
    return f"<h2>Timeline</h2>{''.join(parts)}" if parts else ""
