"""placeholder"""

from __future__ import annotations

from collections.abc import Sequence

from sits.spec.records import RequestRecord
from sits.spec.result import Result


def render_report(runs: Sequence[tuple[Result, Sequence[RequestRecord]]]) -> str:
    """One self-contained HTML page for one or several results."""
    return f"<!doctype html><title>SITS</title><p>{len(runs)}"
