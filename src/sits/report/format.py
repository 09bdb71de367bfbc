"""Numbers as people read them: three significant digits, an interval in the same digits, units that fit."""

from __future__ import annotations

import math

from sits.spec.result import Figure, LoadPoint, Result

NOTHING = "–"

# key -> (label, one-line meaning): the order of every table.
ROWS: dict[str, tuple[str, str]] = {
    "throughput.output": ("Output tok/s", "tokens per second in the steady window"),
    "throughput.requests": ("Requests/s", "answers per second in the steady window"),
    "ttft.p50": ("TTFT p50", "time to first token, median"),
    "ttft.p99": ("TTFT p99", "time to first token, 99th percentile"),
    "ttft_visible.p50": ("TTFT visible p50", "time to the first token a reader sees, after any reasoning"),
    "itl.p50": ("ITL p50", "time between tokens, median"),
    "itl.p99": ("ITL p99", "time between tokens, 99th percentile"),
    "tpot.p50": ("TPOT p50", "mean time per token of a request, median"),
    "e2e.p50": ("E2E p50", "whole request, median"),
    "e2e.p99": ("E2E p99", "whole request, 99th percentile"),
    "tltb": ("TLTB", "ITL p99 x tok/s / 1000: tokens in flight at the tail"),
    "tail_inflation": ("Tail inflation", "TLTB / concurrency: 1 is perfect"),
    "goodput": ("Goodput", "requests per second that meet every objective"),
    "attainment": ("SLO attainment", "share of requests that meet every objective"),
    "error_rate": ("Errors", "share of requests that failed"),
    "mabu.required": ("MABU required", "bytes the model must move / peak bandwidth"),
    "mabu.observed": ("MABU observed", "bytes the hardware moved / peak bandwidth"),
    "traffic_efficiency": ("Traffic efficiency", "required / observed bytes"),
    "energy_per_token": ("Energy", "joules per output token"),
}
CHUNKED = 1.05  # tokens a chunk from which gaps inside chunks are only shares of a chunk's time


def row_label(key: str, points: list[LoadPoint]) -> str:
    """The label of a row; gaps between chunks of several tokens are not called gaps between tokens."""
    label = ROWS[key][0]
    per_chunk = key.startswith("itl.") and any(point.tokens_per_chunk > CHUNKED for point in points)
    return f"{label} (per chunk)" if per_chunk else label


_PERCENT = {"error_rate", "attainment", "mabu.required", "mabu.observed"}


def number(value: float | None, digits: int = 3) -> str:
    """``1234.5`` -> ``1,234``; ``0.01234`` -> ``0.0123``; ``None`` -> a dash."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0"
    if not 1e-6 <= abs(value) < 1e15:
        return f"{value:.{digits}g}"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, places)
    return f"{rounded:,.{max(0, places)}f}"


def duration(ms: float | None) -> str:
    """Milliseconds in the unit that reads best: ``850 us``, ``12.3 ms``, ``1.84 s``."""
    if ms is None or not math.isfinite(ms):
        return NOTHING
    if abs(ms) >= 1000:
        return f"{number(ms / 1000)} s"
    return f"{number(ms)} ms" if abs(ms) >= 1 or ms == 0 else f"{number(ms * 1000)} us"


def tick(value: float) -> str:
    """A number on an axis: as short as it goes."""
    return f"{value:,.10g}"


def duration_tick(ms: float) -> str:
    """Milliseconds on an axis."""
    if abs(ms) >= 1000:
        return f"{tick(round(ms / 1000, 6))} s"
    return f"{tick(round(ms, 6))} ms" if abs(ms) >= 1 or ms == 0 else f"{tick(round(ms * 1000, 6))} us"


def figure_text(key: str, figure: Figure | None) -> str:
    """The value with its unit."""
    if figure is None or figure.value is None:
        return NOTHING
    if figure.unit == "ms":
        return duration(figure.value)
    if key in _PERCENT:
        return percent(figure.value)
    return number(figure.value) + (" J" if figure.unit == "J/token" else "")


def percent(share: float) -> str:
    """A share as a percentage."""
    return f"{share * 100:.3g}%"


def interval_text(key: str, figure: Figure | None) -> str:
    """``[40.1, 43.0]`` in the unit of :func:`figure_text`; empty without an interval or where it is a point."""
    if figure is None or figure.value is None or figure.ci_low is None or figure.ci_high is None:
        return ""
    scale, show = 1.0, number
    if figure.unit == "ms":
        scale = 1e-3 if abs(figure.value) >= 1000 else (1.0 if abs(figure.value) >= 1 or figure.value == 0 else 1e3)
    elif key in _PERCENT:
        scale = 100.0
    low, high = show(figure.ci_low * scale), show(figure.ci_high * scale)
    return "" if low == high else f"[{low}, {high}]"


def spread_text(key: str, figure: Figure | None) -> str:
    """The interval as ``±1.2%`` of the value (its wider side); in brackets where that says little."""
    text = interval_text(key, figure)
    if not text or figure is None or not figure.value or key in _PERCENT:
        return text
    assert figure.ci_low is not None
    assert figure.ci_high is not None
    side = max(figure.ci_high - figure.value, figure.value - figure.ci_low) / abs(figure.value)
    return f"±{side * 100:.2g}%" if side < 1 else text


def shown_rows(points: list[LoadPoint]) -> list[str]:
    """Keys of :data:`ROWS` with something to show in at least one point; errors only when there are any."""
    keys = []
    for key in ROWS:
        figures = [point.metrics.get(key) for point in points]
        values = [figure.value for figure in figures if figure is not None]
        if not values or (key not in _ALWAYS and all(value is None for value in values)):
            continue
        if key == "error_rate" and not any(values):
            continue
        if key == "ttft_visible.p50" and not any(_later(point) for point in points):
            continue
        keys.append(key)
    return keys


def _later(point: LoadPoint) -> bool:
    """Does the first visible token come clearly after the first of any kind?"""
    visible, first = point.metrics.get("ttft_visible.p50"), point.metrics.get("ttft.p50")
    if visible is None or first is None or visible.value is None or first.value is None:
        return False
    return visible.value > 1.01 * first.value


_ALWAYS = {"throughput.output", "ttft.p50", "ttft.p99", "itl.p50", "itl.p99", "tltb", "tail_inflation"}


def point_label(point: LoadPoint) -> str:
    """What distinguishes a load level."""
    if point.mode == "closed":
        return f"concurrency {point.concurrency:g}"
    if point.mode == "open":
        return f"{point.rate:g} req/s {point.arrival or ''}".strip()
    return "trace"


def status_text(result: Result) -> tuple[str, str]:
    """(short, explanation) of a result's status."""
    return {
        "complete": ("complete", "all load levels measured, figures settled"),
        "partial": ("partial", "interrupted: only what was measured until then"),
        "not_converged": ("not converged", "figures kept moving between rounds: do not trust them yet"),
        "no_data": ("no data", "nothing could be measured"),
        "invalid": ("invalid", "the load generator was the bottleneck"),
    }[result.status]


def target_text(result: Result) -> str:
    """One line on what was measured."""
    card, target = result.target.card, result.target
    parts = [target.name]
    parameters = card.get("parameters")
    if isinstance(parameters, (int, float)) and parameters > 0:
        parts.append(
            f"{parameters / 1e9:.2f}B parameters" if parameters >= 1e9 else f"{parameters / 1e6:.0f}M parameters"
        )
    parts += [str(card[key]) for key in ("dtype", "quantization") if card.get(key)]
    if card.get("cut_layers"):
        parts.append("CUT MODEL: fewer layers than the real one")
    return ", ".join(parts) + (f" at {target.url}" if target.url else "")


def hardware_text(result: Result) -> str:
    """One line on where it ran."""
    hardware = result.environment.hardware
    gpus = hardware.get("gpus") or []
    parts = [f"{len(gpus)} x {gpus[0].get('name')}" if len(gpus) > 1 else str(gpus[0].get("name"))] if gpus else []
    cores = hardware.get("usable_cores") or hardware.get("cores")
    cpu = str(hardware.get("cpu") or "")
    if cpu:
        parts.append(f"{cpu}, {cores:g} cores" if isinstance(cores, (int, float)) else cpu)
    return "; ".join(parts) or "unknown"
