"""Hardware counters around each load point, as an observer of the benchmark: MABU's three ratios and energy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from sits.bench.load import Load
from sits.errors import InputError
from sits.spec.records import RequestRecord
from sits.spec.result import Figure, LoadPoint
from sits.telemetry.session import TelemetrySession, timed_rows
from sits.traffic.explain_run import precision_of
from sits.traffic.model_shape import ModelShape
from sits.traffic.required import required_bytes

_MOST_ROWS = 2000


class TelemetryObserver:
    """Starts a telemetry session with each load point and puts its figures into the point.

    ``client`` is an opened embedded client: its engine counts the steps, its card has the shapes. Without it only
    observed figures are filled in.
    """

    def __init__(self, client: Any | None = None, session: TelemetrySession | None = None) -> None:
        self._client = client
        self._session = session or TelemetrySession()
        self._card: dict[str, Any] = dict(getattr(getattr(client, "llm", None), "card", None) or {})
        self._steps: float | None = None
        self._cpu_peak: float | None = None

    async def begin(self, load: Load) -> None:
        if self._cpu_peak is None and str(self._card.get("device", "")).startswith("cpu"):
            from sits.telemetry.cpu_peak import measure_read_peak

            self._cpu_peak = (await asyncio.to_thread(measure_read_peak, 128, 3))["best_gbps"]
        await asyncio.to_thread(self._session.start)
        self._steps = await self._count_steps()

    async def end(self, point: LoadPoint, records: Sequence[RequestRecord]) -> None:
        after = await self._count_steps()
        window = await asyncio.to_thread(self._session.stop)
        steps = after - self._steps if after is not None and self._steps is not None else None
        # The window also covers the ramp and the fillers: all tokens made in it share its bytes and its energy.
        tokens = sum(record.output_tokens for record in records)
        required = self._required(records, steps)
        for key, fields in window.figures(required, tokens, peak_gbps=self._cpu_peak).items():
            point.metrics[key] = Figure(**fields)
        rows = window.rows(required)
        point.bandwidth = timed_rows(rows[:: max(1, -(-len(rows) // _MOST_ROWS))], point.started_ns)
        point.notes += window.notes(required)
        if self._cpu_peak is not None:
            point.server["cpu_read_gbps"] = self._cpu_peak
        if self._cpu_peak is not None and required is not None:
            point.notes.append(f"MABU is against the measured read peak of this CPU, {self._cpu_peak:.1f} GB/s")
        if window.cpu_share is not None:
            point.server["telemetry_cpu_share"] = window.cpu_share

    def _required(self, records: Sequence[RequestRecord], steps: float | None) -> float | None:
        try:
            shape = ModelShape.from_card(self._card)
        except InputError:
            return None
        return required_bytes(shape, precision_of(self._card), records, steps)

    async def _count_steps(self) -> float | None:
        if self._client is None:
            return None
        return (await self._client.snapshot()).get("steps")
