"""The plots of a report: frontier, percentile spectrum, swim lanes of requests, load over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from sits.report.format import duration, duration_tick, number, point_label, tick
from sits.report.svg import HALF_WIDTH, Chart, both_sizes, legend, linear_ticks
from sits.spec.result import LoadPoint
from sits.spec.statistics import Array, rank
from sits.spec.timeline import Mask, Timeline, concurrency_steps

SERIES = 6  # colours in the style sheet: s0..s5
MOST_LANES = 40
MOST_BARS = 900
_MOST_PLACED = 4000
_HAND_OVER_S = 0.001
_BINS = 120
_SPECTRUM_POINTS = 160


@dataclass(frozen=True, slots=True)
class Curve:
    """A named frontier: its points and the index of its knee."""

    name: str
    points: Sequence[LoadPoint]
    knee: int | None


def frontier_plot(curves: Sequence[Curve], latency: str = "itl.p99") -> str:
    """Output throughput against tail latency, an interval at each point, the knee marked. Empty without points."""
    rows = [
        (c, point, point.metrics["throughput.output"], point.metrics[latency])
        for c, curve in enumerate(curves)
        for point in curve.points
        if point.metrics.get("throughput.output") is not None
        and point.metrics["throughput.output"].value is not None
        and point.metrics.get(latency) is not None
        and point.metrics[latency].value is not None
    ]
    if not rows:
        return ""
    xs = [v for _, _, x, _ in rows for v in (x.value, x.ci_low, x.ci_high) if v is not None]
    ys = [v for _, _, _, y in rows for v in (y.value, y.ci_low, y.ci_high) if v is not None]

    def draw(width: int, height: int) -> Chart:
        chart = Chart(
            width, height, f"Output tokens per second against {latency} for each load level", top=26, left=64
        )
        log = max(xs) > 20 * max(1e-9, min(xs))
        x = chart.x_scale(min(xs) / 1.2 if log else 0.0, max(xs) * (1.2 if log else 1.1), log)
        y = chart.y_scale(0.0, max(ys) * 1.12)
        chart.y_axis(y, duration_tick, "ITL p99")
        chart.x_axis(x, x.ticks(6), tick, "output tokens per second")
        for c, curve in enumerate(curves):
            mine = [row for row in rows if row[0] == c]
            kind = f"s{c % SERIES}"
            chart.line([(x(r[2].value or 0), y(r[3].value or 0)) for r in mine], f"curve {kind}")
            for _, point, rate, gap in mine:
                px, py = x(rate.value or 0), y(gap.value or 0)
                for figure, along in ((rate, "x"), (gap, "y")):
                    if figure.ci_low is None or figure.ci_high is None:
                        continue
                    ends = (
                        [(x(figure.ci_low), py), (x(figure.ci_high), py)]
                        if along == "x"
                        else [(px, y(figure.ci_low)), (px, y(figure.ci_high))]
                    )
                    chart.line(ends, f"whisker {kind}")
                at_knee = point.index == curve.knee and len(mine) > 1
                if at_knee:
                    chart.dot(px, py, 10, f"ring {kind}")
                tip = f"{point_label(point)}: {number(rate.value)} tok/s, ITL p99 {duration(gap.value)}"
                chart.dot(px, py, 5, f"dot {kind}", f"{curve.name}: {tip}" if len(curves) > 1 else tip)
                short = f"{point.concurrency:g}" if point.mode == "closed" else f"{point.rate or 0:g}/s"
                chart.text(px, py - 14, short + (" knee" if at_knee else ""), "middle", "mark")
        return chart

    names = legend([(f"s{c % SERIES}", curve.name) for c, curve in enumerate(curves)]) if len(curves) > 1 else ""
    return names + both_sizes(draw, 320)


def spectrum_plot(title: str, series: Sequence[tuple[str, Array]]) -> str:
    """Latency by percentile, the tail stretched: equal steps for 50%, 90%, 99%, 99.9%. ``series``: ascending ms.

    A line ends where its samples do: a percentile beyond 1 - 1/n has never been measured.
    """
    shown = [(name, values) for name, values in series if len(values)]
    if not shown:
        return ""
    low = min(float(values[rank(len(values), 5)]) for _, values in shown)
    high = max(float(values[-1]) for _, values in shown)
    most = max(len(values) for _, values in shown)
    nines = max(1.0, math.log10(most))
    log = low > 0 and high > 8 * low

    def draw(width: int, height: int) -> Chart:
        chart = Chart(width, height, f"{title} by percentile for each load level", top=26, left=64)
        bottom = low / 1.15 if log else 0.0
        y = chart.y_scale(bottom, high * (1.15 if log else 1.05) or 1.0, log)
        x = chart.x_scale(0.0, nines)
        chart.y_axis(y, duration_tick, title)
        marks = [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999]
        positions = [_nines(q) for q in marks if _nines(q) <= nines + 1e-9]
        chart.x_axis(x, positions, lambda v: f"p{(1 - 10**-v) * 100:.6g}" if v > 0 else "min", "percentile")
        for index, (name, values) in enumerate(shown):
            kind = f"s{index % SERIES}"
            count = len(values)
            steps = np.linspace(0.0, math.log10(count), min(_SPECTRUM_POINTS, max(2, count)))
            at = [float(values[rank(count, 100 * (1 - 10.0**-v)) if v > 0 else 0]) for v in steps]
            # A few gaps near zero would stretch the scale over the part that matters.
            chart.line([(x(v), y(max(bottom, value))) for v, value in zip(steps, at)], f"curve {kind}")
            for q in (50, 90, 99):
                if count * (1 - q / 100) >= 1:
                    value = float(values[rank(count, q)])
                    tip = f"{name}: {title} p{q} {duration(value)} (n = {count:,})"
                    chart.dot(x(_nines(q / 100)), y(value), 4, f"dot {kind}", tip)
        return chart

    return legend([(f"s{i % SERIES}", name) for i, (name, _) in enumerate(shown)]) + both_sizes(draw, wide=HALF_WIDTH)


def _nines(share: float) -> float:
    return -math.log10(1 - share)


def lanes_plot(timeline: Timeline, measured: Mask, start: float, end: float) -> tuple[str, str]:
    """Requests as bars in swim lanes, waiting and decoding told apart: ``(svg, what is shown)``.

    A lane is a slot: a request takes the first free one, so the number of lanes is the concurrency. Requests that
    are not ``measured`` (the ramp before, the fillers after) are pale.
    """
    order = np.lexsort((timeline.sent, timeline.due))
    inside = [int(i) for i in order if timeline.end[i] > start and timeline.due[i] < end]
    if not inside:
        return "", ""
    note, whole = "", end - start
    if len(inside) > _MOST_PLACED:
        end = float(timeline.due[inside[_MOST_PLACED]])
        inside = inside[:_MOST_PLACED]
    free: list[float] = []  # when each lane is free again
    placed: list[tuple[int, int]] = []
    for i in inside:
        due = timeline.due[i] + _HAND_OVER_S
        # The lane that was freed last: a caller's next request follows its previous one.
        lane = max((k for k, until in enumerate(free) if until <= due), key=free.__getitem__, default=len(free))
        if lane == len(free):
            free.append(0.0)
        free[lane] = float(timeline.end[i])
        placed.append((lane, i))
    lanes = len(free)
    if lanes > MOST_LANES:
        note = f"{MOST_LANES} of {lanes} lanes"
        placed = [(lane, i) for lane, i in placed if lane < MOST_LANES]
        lanes = MOST_LANES
    if len(placed) > MOST_BARS:
        # A shorter span rather than thinner bars: what happens to neighbours at one time is the point.
        cut = sorted(timeline.due[i] for _, i in placed)[MOST_BARS]
        placed = [(lane, i) for lane, i in placed if timeline.due[i] < cut]
        end = float(cut)
    if end - start < 0.999 * whole:
        note = f"{note + ', ' if note else ''}the first {end - start:.3g} s of {whole:.3g} s"

    def draw(width: int, height: int) -> Chart:
        chart = Chart(width, height, "Requests over time: waiting and decoding", left=34, top=8)
        x, pitch = chart.x_scale(start, end), (chart.plot_bottom - chart.top) / lanes
        chart.x_axis(lambda v: x(v + start), linear_ticks(0.0, end - start, 6), lambda v: f"{v:g} s", "")
        thick = max(1.0, min(14.0, pitch * 0.72))
        for lane, i in placed:
            y = chart.top + lane * pitch + (pitch - thick) / 2
            first = timeline.due[i] + (timeline.first_token[i] if timeline.output_tokens[i] else 0.0)
            left, middle, right = (x(min(max(t, start), end)) for t in (timeline.due[i], first, timeline.end[i]))
            tip = (
                f"TTFT {duration(timeline.first_token[i] * 1e3)}, {timeline.output_tokens[i]:.0f} tokens, "
                f"{duration((timeline.end[i] - timeline.due[i]) * 1e3)} in all"
            )
            pale = "" if measured[i] else " pale"
            if not timeline.ok[i]:
                kind = "failed" if timeline.counted[i] else "decode pale"
                chart.rect(left, y, max(1.5, right - left), thick, kind, tip)
                continue
            chart.rect(left, y, max(0.5, middle - left), thick, "wait" + pale, tip)
            chart.rect(middle, y, max(0.5, right - middle - 0.6), thick, "decode" + pale, tip)
        return chart

    height = 46 + round(min(20, max(7, 260 / lanes)) * lanes)
    kinds = [("wait", "waiting and prefill"), ("decode", "decode")]
    kinds += [("decode pale", "not measured: keeps the load up")] if not measured.all() else []
    kinds += [("failed", "failed")] if (~timeline.ok & timeline.counted).any() else []
    return legend(kinds) + both_sizes(draw, height), note


def load_plot(timeline: Timeline, start: float, end: float, steady: tuple[float, float] | None) -> str:
    """Requests in flight and output tokens per second between ``start`` and ``end``, the steady part shaded."""
    if timeline.requests == 0 or end <= start:
        return ""
    edges = np.linspace(start, end, _BINS + 1)
    width_s = edges[1] - edges[0]
    at = timeline.due[timeline.chunk_owner] + timeline.chunk_time
    tokens, _ = np.histogram(at, edges, weights=timeline.chunk_tokens.astype(np.float64))
    # Mean level of each bin: the integral of the steps, read at the edges.
    times, level = concurrency_steps(timeline)
    integral = np.concatenate(([0.0], np.cumsum(level[:-1] * np.diff(times))))
    mean_level = np.diff(np.interp(edges, times, integral)) / width_s
    middles = (edges[1:] + edges[:-1]) / 2 - start

    def one(values: Array, title: str, kind: str) -> str:
        def draw(width: int, height: int) -> Chart:
            chart = Chart(width, height, f"{title} over time", top=24, bottom=26)
            x, y = chart.x_scale(0.0, end - start), chart.y_scale(0.0, float(values.max()) * 1.1 or 1.0)
            if steady is not None:
                left, right = x(max(0.0, steady[0] - start)), x(min(end, steady[1]) - start)
                chart.rect(left, chart.top, right - left, chart.plot_bottom - chart.top, "steady")
            chart.y_axis(y, tick, title, 3)
            points = [(x(float(t)), y(float(v))) for t, v in zip(middles, values)]
            chart.area(points, f"fill {kind}")
            chart.line(points, f"curve {kind}")
            chart.x_axis(x, x.ticks(6), lambda v: f"{v:g} s", "")
            return chart

        return both_sizes(draw, 150)

    shaded = legend([("steady", "steady window, which throughput is taken from")]) if steady else ""
    return (
        shaded + one(mean_level, "requests in flight", "s0") + one(tokens / width_s, "output tokens per second", "s2")
    )


def rounds_plot(values: Sequence[float], tolerance: float | None, last: int = 3) -> str:
    """The watched value of each round as a small plot; the band is the tolerance around the last ones."""
    if len(values) < 2:
        return ""
    chart = Chart(220, 54, "Watched value of each round", left=4, right=4, top=8, bottom=8)
    recent = values[-last:]
    low, high = min(values), max(values)
    margin = max(0.15 * (high - low), 0.02 * abs(high), 1e-9)
    y = chart.y_scale(low - margin, high + margin)
    x = chart.x_scale(0, len(values) - 1)
    if tolerance is not None:
        bottom = min(recent)
        top_y, bottom_y = y(min(high + margin, bottom * (1 + tolerance))), y(bottom)
        chart.rect(x(max(0, len(values) - last)) - 4, top_y, 220, max(1.0, bottom_y - top_y), "steady")
    chart.line([(x(i), y(v)) for i, v in enumerate(values)], "curve s0")
    for i, value in enumerate(values):
        chart.dot(x(i), y(value), 3.5, "dot s0", f"round {i + 1}: {number(value, 4)}")
    return chart.render("spark")


def caption(text: str) -> str:
    """A line under a plot."""
    return f'<p class="note">{escape(text)}</p>' if text else ""
