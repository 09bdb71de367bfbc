"""Hardware counters around each load point, as an observer of the benchmark."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sits.bench.load import Load
from sits.spec.records import RequestRecord
from sits.spec.result import Figure, LoadPoint
from sits.telemetry.session import TelemetrySession

_MOST_ROWS = 2000


class TelemetryObserver:
    """Starts a telemetry session with each load point and puts its figures into the point."""

    def __init__(self) -> None:
        self._session = TelemetrySession()

    async def begin(self, load: Load) -> None:
        await asyncio.to_thread(self._session.start)

    async def end(self, point: LoadPoint, records: Sequence[RequestRecord]) -> None:
        window = await asyncio.to_thread(self._session.stop)
        # The window also covers the ramp and the fillers, so energy is shared among all tokens made in it.
        tokens = sum(record.output_tokens for record in records)
        for key, fields in window.figures(None, tokens).items():
            if key.startswith("mabu.required") or key == "traffic_efficiency":
                continue  # the model's traffic is the business of `sits explain`
            point.metrics[key] = Figure(**fields)
        point.bandwidth = window.rows()[:_MOST_ROWS]
        point.notes += window.notes(None)
