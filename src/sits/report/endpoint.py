"""Report sections of endpoint runs: the server's own figures over time, the search, the parts of a request mix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from sits.report.format import number, percent, point_label
from sits.report.svg import Chart, both_sizes
from sits.spec.result import LoadPoint, Result

# What is drawn, where the server reports it: (key of a timeline row, title, colour of the style sheet).
_CURVES = (("running", "running", "s0"), ("queue", "queued", "s1"), ("kv_use", "KV cache use", "s2"))
_OUTCOMES = {
    "found": "the bracket is as narrow as asked for",
    "never_failed": "the objectives were met up to the limit of the search",
    "never_passed": "no level meets the objectives",
    "client_bound": "ended early: the load generator was the bottleneck",
    "too_many_steps": "ended early: too many steps",
    "stopped": "interrupted",
}


def server_timelines(result: Result) -> str:
    """Curves of the server's gauges over each load level, from its /metrics page."""
    blocks = []
    for point in result.points:
        rows = point.server.get("timeline")
        if isinstance(rows, list) and len(rows) > 2:
            curves = [_curve(rows, key, title, kind) for key, title, kind in _CURVES]
            if any(curves):
                label = escape(point_label(point))
                blocks.append(
                    f"<details open><summary>{label}: the server's /metrics</summary>{''.join(curves)}</details>"
                )
    return f'<div class="card">{"".join(blocks)}</div>' if blocks else ""


def _curve(rows: Sequence[Mapping[str, Any]], key: str, title: str, kind: str) -> str:
    points = [(float(row["s"]), float(row[key])) for row in rows if key in row and "s" in row]
    if len(points) < 3 or points[-1][0] <= points[0][0]:
        return ""

    def draw(width: int, height: int) -> Chart:
        chart = Chart(width, height, f"{title} over time", top=24, bottom=26)
        x = chart.x_scale(points[0][0], points[-1][0])
        y = chart.y_scale(0.0, max(value for _, value in points) * 1.1 or 1.0)
        chart.y_axis(y, percent if key == "kv_use" else number, title, 3)
        chart.line([(x(at), y(value)) for at, value in points], f"curve {kind}")
        chart.x_axis(x, x.ticks(6), lambda v: f"{v:g} s", "")
        return chart

    return both_sizes(draw, 130)


def search_lines(result: Result) -> list[str]:
    """The outcome of a search in words; empty when there was none."""
    search = result.search
    if not search:
        return []
    unit = "req/s" if search.get("over") == "rate" else "callers"
    objectives = ", ".join(f"{key.removesuffix('_ms')} {value:g} ms" for key, value in search["objectives"].items())
    passing, failing = search.get("highest_passing"), search.get("lowest_failing")
    share = percent(search["attainment"])
    if passing is None:
        answer = f"No load was found at which {share} of the requests meet {objectives}"
    else:
        answer = f"Highest load at which {share} of the requests meet {objectives}: {number(passing)} {unit}"
    if failing is not None:
        answer += f"; {number(failing)} {unit} fails"
    return [answer + f" ({_OUTCOMES.get(search.get('outcome', ''), search.get('outcome', ''))})"]


def search_section(result: Result) -> str:
    """The search with its steps."""
    lines = search_lines(result)
    if not lines or result.search is None:
        return ""
    rows = []
    for step in result.search.get("steps", []):
        low, high = step.get("ci_low"), step.get("ci_high")
        interval = f"[{percent(low)}, {percent(high)}]" if low is not None and high is not None else ""
        value = percent(step["attainment"]) if step.get("attainment") is not None else "no data"
        verdict = escape(str(step.get("verdict")))
        rows.append(
            f"<tr><th scope='row'>{number(step['level'])}</th><td>{value} {interval}</td><td>{verdict}</td></tr>"
        )
    head = "<thead><tr><th>Level</th><th>Meet the objectives</th><th>Verdict</th></tr></thead>"
    table = f'<div class="card scroll"><table>{head}<tbody>{"".join(rows)}</tbody></table></div>'
    return f"<h2>Search</h2><p><strong>{escape(lines[0])}</strong></p>{table}"


def parts_section(result: Result) -> str:
    """Figures of each part of a request mix."""
    blocks = [_parts(point) for point in result.points]
    return f"<h2>Parts of the mix</h2>{''.join(blocks)}" if any(blocks) else ""


def _parts(point: LoadPoint) -> str:
    parts = (point.model_extra or {}).get("parts")
    if not isinstance(parts, dict) or not parts:
        return ""
    keys = list(dict.fromkeys(key for row in parts.values() for key in row))
    head = "".join(f"<th>{escape(key)}</th>" for key in keys)
    rows = "".join(
        f"<tr><th scope='row'>{escape(name)}</th>{''.join(f'<td>{number(row.get(key))}</td>' for key in keys)}</tr>"
        for name, row in parts.items()
    )
    table = f"<table><thead><tr><th>{escape(point_label(point))}</th>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<div class="card scroll">{table}<p class="note">Times in ms.</p></div>'
