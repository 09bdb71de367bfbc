"""Load levels of a sweep: parsing them, the latency-throughput frontier, and its knee."""

from __future__ import annotations

from collections.abc import Sequence

from sits.errors import InputError
from sits.spec.result import LoadPoint

MOST_POINTS = 64


def parse_levels(text: str, what: str) -> list[float]:
    """``"1,4,8"`` or ``"1..64"`` (doubling) -> ascending levels without repeats. Raises ``InputError``."""
    hint = f"Write for example --{what} 1,4,8 or --{what} 1..64"
    levels: set[float] = set()
    for part in text.split(","):
        try:
            first, dots, last = part.strip().partition("..")
            low = float(first)
            high = float(last) if dots else low
        except ValueError:
            raise InputError(f"cannot read {what} {part.strip()!r}", hint) from None
        if not 0 < low <= high < float("inf"):
            raise InputError(f"{what} must be above zero and ranges must rise, not {part.strip()}", hint)
        while low < high:
            levels.add(low)
            low *= 2
        levels.add(high)
    if len(levels) > MOST_POINTS:
        raise InputError(f"{len(levels)} load levels are more than {MOST_POINTS}", hint)
    return sorted(levels)


def parse_concurrency(text: str) -> list[int]:
    """Levels of a closed loop; whole numbers >= 1."""
    levels = parse_levels(text, "concurrency")
    if any(level != int(level) or level < 1 for level in levels):
        raise InputError(f"concurrency must be whole numbers of at least 1, not {text}")
    return [int(level) for level in levels]


def knee(points: Sequence[LoadPoint]) -> int | None:
    """Index of the point with the most throughput per unit of latency (Kleinrock's power), from three points on.

    Before it more load buys throughput nearly for free; beyond it mostly waiting. Latency is the mean end-to-end
    time of a request, so that time spent in the queue counts. Points without figures are passed over.
    """
    power = {
        point.index: rate / latency
        for point in points
        if (rate := _value(point, "throughput.output")) and (latency := _value(point, "e2e.mean"))
    }
    return max(power, key=lambda index: power[index]) if len(power) >= 3 else None


def frontier(points: Sequence[LoadPoint], latency: str = "itl.p99") -> list[int]:
    """Indices of the points no other point beats in both output throughput and ``latency``, by throughput."""
    rows = [
        (rate, time, point.index)
        for point in points
        if (rate := _value(point, "throughput.output")) is not None and (time := _value(point, latency)) is not None
    ]
    best: list[tuple[float, float, int]] = []
    for row in sorted(rows, key=lambda row: (-row[0], row[1])):
        if not best or row[1] < best[-1][1]:
            best.append(row)
    return [index for _, _, index in reversed(best)]


def _value(point: LoadPoint, key: str) -> float | None:
    figure = point.metrics.get(key)
    return figure.value if figure is not None else None
