"""What the rules look at: results with what lies beside them, baselines, and which load points a rule is about."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any

from sits.errors import InputError
from sits.report.loaded import LoadedResult
from sits.spec.columns import PointColumns
from sits.spec.result import Figure, LoadPoint, Result

if TYPE_CHECKING:
    from sits.validate.config import Config


@dataclass(slots=True)
class Context:
    """Everything one validation looks at."""

    config: Config
    results: list[LoadedResult]
    baselines: list[LoadedResult] = field(default_factory=list)
    today: date = field(default_factory=date.today)
    used_waivers: set[int] = field(default_factory=set)

    def scope(self, loaded: LoadedResult, point: LoadPoint | None = None) -> str:
        """Which result and load point a finding is about, in words; the file only when there are several."""
        parts = [loaded.shown] if len(self.results) > 1 else []
        if point is not None:
            parts.append(describe_point(point))
        return ", ".join(parts)

    def points(self, selector: dict[str, Any]) -> Iterator[tuple[LoadedResult, LoadPoint]]:
        """Load points the selector picks, of every result."""
        for loaded in self.results:
            for point in select_points(loaded.result, selector):
                yield loaded, point


def describe_point(point: LoadPoint) -> str:
    """``concurrency 8`` or ``4 req/s``."""
    if point.concurrency is not None and point.mode == "closed":
        return f"concurrency {point.concurrency:g}"
    if point.rate is not None:
        return f"{point.rate:g} req/s"
    return f"load point {point.index}"


def select_points(result: Result, selector: dict[str, Any]) -> list[LoadPoint]:
    """``{}`` picks all; ``concurrency``, ``rate``, ``index`` (a number or a list) narrow; ``which``: last or knee."""
    points = list(result.points)
    for name in ("concurrency", "rate", "index"):
        if name in selector:
            wanted = selector[name] if isinstance(selector[name], list) else [selector[name]]
            points = [p for p in points if getattr(p, name) in wanted]
    which = selector.get("which", "all")
    if which == "last":
        return points[-1:]
    if which == "knee":
        return [p for p in points if p.index == result.knee]
    return points


def figure_of(point: LoadPoint, key: str) -> tuple[Figure | None, str]:
    """A usable figure of a point, or ``None`` and why there is none. NaN, infinity and negatives are no figures."""
    figure = point.metrics.get(key)
    if figure is None:
        return None, f"the result has no figure '{key}'"
    if figure.value is None:
        return None, f"'{key}' is empty: {figure.reason or 'nothing was measured'}"
    if not math.isfinite(figure.value) or figure.value < 0:
        return None, f"'{key}' is {figure.value}, which no run can measure: the result is damaged"
    return figure, ""


def usable_bounds(figure: Figure) -> tuple[float, float] | None:
    """The 95% interval of a figure when it is one."""
    low, high, value = figure.ci_low, figure.ci_high, figure.value
    if low is None or high is None or value is None:
        return None
    if not (math.isfinite(low) and math.isfinite(high)) or not low <= value <= high:
        return None
    return low, high


def columns_or_reason(loaded: LoadedResult, point: LoadPoint) -> tuple[PointColumns | None, str]:
    """Columns of a point, or ``None`` and why there are none."""
    try:
        columns = loaded.point_columns(point)
    except InputError as error:
        return None, str(error)
    return columns, "" if columns is not None else "the run kept no per-request records"
