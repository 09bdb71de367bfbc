"""Service-level objectives: the text form ``ttft=500ms,itl=50ms`` and which requests meet them (goodput)."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from sits.errors import InputError
from sits.spec.timeline import Mask, Timeline

OBJECTIVES = ("ttft", "itl", "tpot", "e2e")
_UNITS_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
_TERM = re.compile(r"^\s*([a-z0-9_]+)\s*(?:=|<=|<)\s*([0-9]*\.?[0-9]+)\s*(us|ms|s)?\s*$", re.IGNORECASE)
_EXAMPLE = "Write for example ttft=500ms,itl=50ms"


def parse_slo(text: str | None) -> dict[str, float]:
    """``"ttft=500ms,itl=50ms"`` -> ``{"ttft_ms": 500.0, "itl_ms": 50.0}``; a bare number is milliseconds.

    Raises ``InputError`` on an unknown objective, a repeated one, or a bound that is not positive.
    """
    slo: dict[str, float] = {}
    for term in (text or "").split(","):
        if not term.strip():
            continue
        match = _TERM.match(term)
        if match is None:
            raise InputError(f"cannot read the objective {term.strip()!r}", _EXAMPLE)
        name, bound = match[1].lower(), float(match[2]) * _UNITS_MS[(match[3] or "ms").lower()]
        if name not in OBJECTIVES:
            raise InputError(f"unknown objective {name!r}", f"Objectives are {', '.join(OBJECTIVES)}. {_EXAMPLE}")
        if bound <= 0:
            raise InputError(f"the bound of {name} must be above zero", _EXAMPLE)
        if f"{name}_ms" in slo:
            raise InputError(f"{name} is given twice", _EXAMPLE)
        slo[f"{name}_ms"] = bound
    return slo


def requests_meeting(timeline: Timeline, slo: Mapping[str, float]) -> Mask:
    """Which requests succeeded and met every objective, ``[n]``.

    ``ttft`` and ``e2e`` bound the request's own times, ``tpot`` its mean gap, ``itl`` the 99th percentile of its
    own gaps (nearest rank: the largest gap below 100 tokens). A request without a gap meets ``itl`` and ``tpot``.
    """
    with np.errstate(invalid="ignore"):
        met = timeline.ok & (timeline.output_tokens > 0)
        if "ttft_ms" in slo:
            met &= timeline.first_token * 1000.0 <= slo["ttft_ms"]
        if "e2e_ms" in slo:
            met &= timeline.e2e_ms() <= slo["e2e_ms"]
        if "tpot_ms" in slo:
            met &= ~(timeline.tpot_ms() > slo["tpot_ms"])
    if "itl_ms" in slo:
        gaps = timeline.gaps()
        count = gaps.counts()
        within = gaps.counts_up_to(slo["itl_ms"])
        # Nearest rank: p99 <= bound exactly when at least ceil(0.99 n) gaps do not exceed it.
        met &= within >= np.ceil(0.99 * count - 1e-9)
    return met
