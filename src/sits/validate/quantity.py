"""Quantities as people write them in a configuration: ``500 ms``, ``1.5 s``, ``3%``, ``12 GB``, or a bare number."""

from __future__ import annotations

import re
from typing import Any

_NUMBER = r"[0-9]+(\.[0-9]+)?"
# Each kind: canonical unit of a bare number, and factors of the units a string may carry.
KINDS: dict[str, tuple[str, dict[str, float]]] = {
    "latency": ("ms", {"us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3, "min": 6e4}),
    "duration": ("s", {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}),
    "share": ("", {"%": 0.01}),
    "memory": ("GB", {"MB": 1e-3, "GB": 1.0, "MiB": 1.048576e-3, "GiB": 1.073741824}),
    "energy": ("J/token", {"mJ": 1e-3, "J": 1.0}),
    "rate": ("", {}),
    "count": ("", {}),
}


def schema(kind: str, description: str, **extra: Any) -> dict[str, Any]:
    """The JSON Schema of a quantity of this kind."""
    unit, units = KINDS[kind]
    shown = f"{description}. A bare number is in {unit}" if unit else description
    number: dict[str, Any] = {"minimum": 0}
    if kind == "share":
        number["maximum"] = 1
    if kind == "count":
        return {"description": shown, "type": "integer", "minimum": 0, **extra}
    if not units:
        return {"description": shown, "type": "number", **number, **extra}
    names = "|".join(re.escape(name) for name in units)
    pattern = f"^{_NUMBER} ?({names})$"
    return {"description": shown, "type": ["number", "string"], "pattern": pattern, **number, **extra}


def parse(kind: str, value: Any) -> float:
    """The number in the canonical unit. The value has passed :func:`schema` already; else ``ValueError``."""
    if isinstance(value, bool):
        raise ValueError(f"{value} is not a quantity")
    if isinstance(value, (int, float)):
        return float(value)
    match = re.fullmatch(rf"({_NUMBER}) ?(\S+)", str(value))
    units = KINDS[kind][1]
    if not match or match.group(3) not in units:
        raise ValueError(f"{value!r} is not a {kind}")
    return float(match.group(1)) * units[match.group(3)]


def show(value: float | None, unit: str) -> str:
    """A figure for people: four significant digits, shares as percent."""
    if value is None:
        return "none"
    if unit in ("share", "fraction"):
        return f"{value * 100:.3g}%"
    if abs(value) >= 1000:
        text = f"{value:.0f}"
    else:
        text = f"{value:.4g}"
    return f"{text} {unit}".rstrip()
