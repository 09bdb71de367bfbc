"""Memory traffic of a load point over time: observed, required and peak, as one small chart.

Knows only the rows of ``LoadPoint.bandwidth``; draws nothing when there are none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sits.report.svg import Chart, both_sizes, legend


def bandwidth_plot(rows: Sequence[Mapping[str, Any]]) -> str:
    """GB/s against seconds since the first due time. Devices that moved data at one time are added up."""
    timed = [row for row in rows if isinstance(row.get("s"), (int, float))]
    observed = _series(timed, "observed_gbps")
    required = _series(timed, "model_required_gbps")
    if not observed and not required:
        return ""
    peaks = {row["device"]: row["peak_gbps"] for row in timed if row.get("peak_gbps")}
    peak = sum(peaks.values()) if observed and peaks else 0.0
    points = [*observed, *required]
    start, end = min(x for x, _ in points), max(x for x, _ in points)

    def draw(width: int, height: int) -> Chart:
        chart = Chart(width, height, "memory traffic over time", top=24, bottom=26)
        x = chart.x_scale(start, end if end > start else start + 1.0)
        y = chart.y_scale(0.0, max(peak, *(value for _, value in points)) * 1.1 or 1.0)
        chart.y_axis(y, lambda value: f"{value:g}", "GB/s", 3)
        for series, kind in ((observed, "s0"), (required, "s2")):
            if series:
                chart.line([(x(at), y(value)) for at, value in series], f"curve {kind}")
        if peak:
            chart.line([(x(start), y(peak)), (x(end), y(peak))], "curve s1")
        chart.x_axis(x, x.ticks(6), lambda value: f"{value:g} s", "")
        return chart

    names = [("s0", "observed")] if observed else []
    names += [("s2", "required by the model's shapes")] if required else []
    names += [("s1", "theoretical peak")] if peak else []
    return legend(names) + both_sizes(draw, 150)


def _series(rows: Sequence[Mapping[str, Any]], key: str) -> list[tuple[float, float]]:
    """(seconds, GB/s), devices of one tick added up; ticks closer than 50 ms are one."""
    found: list[tuple[float, float]] = []
    seen: set[str] = set()
    for row in sorted((row for row in rows if row.get(key) is not None), key=lambda row: row["s"]):
        if found and row["s"] - found[-1][0] < 0.05 and row["device"] not in seen:
            found[-1] = (found[-1][0], found[-1][1] + float(row[key]))
            seen.add(row["device"])
        else:
            found.append((float(row["s"]), float(row[key])))
            seen = {row["device"]}
    return found
