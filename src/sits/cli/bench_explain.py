"""Puts the explanation of a run into its own result, so that the report shows where the time went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sits.cli.explain_context import context_of, window_of
from sits.spec.records import RequestRecord
from sits.spec.result import Result
from sits.traffic.explain_run import add_ratios, choose_point, explain_events

_MOST_EVENTS = 400_000  # an explanation must not keep the user waiting at the end of a run


def add_explanation(result: Result, client: Any, records: Sequence[RequestRecord]) -> None:
    """Explain the headline load point from the embedded engine's event log into ``result.extra["explanation"]``.

    Does nothing for an endpoint, and says why in a note when the log cannot be explained.
    """
    log = getattr(getattr(getattr(client, "_llm", None), "core", None), "log", None)
    if log is None or not result.points:
        return
    try:
        point = choose_point(result, None)
        events = log.events()
        if not events or len(events) > _MOST_EVENTS:
            return
        context, notes = context_of(result)
        subject = f"{result.target.name}, load point {point.index}"
        only = {record.request_id for record in records if record.phase == "measure" and record.point == point.index}
        explanation = explain_events(events, context, subject, window_of(point), only=only)
        explanation.notes = [*notes, *explanation.notes]
        add_ratios(explanation, point)
        result.extra["explanation"] = explanation.to_dict()
    except Exception as error:  # whatever goes wrong here must not cost the user the measurement
        result.extra["explanation_missing"] = str(error)
