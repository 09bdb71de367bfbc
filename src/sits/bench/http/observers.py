"""What is watched beside a load level on an endpoint: the server's metrics page, oddities of the answers, a second
opinion on token counts, and the parts of a request mix."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sits.bench.http.server_metrics import summarise
from sits.bench.mix import groups
from sits.errors import InputError, MissingExtraError
from sits.spec.metrics import DEFINITIONS, latency_series
from sits.spec.records import RequestRecord
from sits.spec.result import LoadPoint
from sits.spec.slo import requests_meeting
from sits.spec.timeline import build_timeline
from sits.telemetry.engine_counters import required_samples
from sits.telemetry.session import timed_rows

GRID_S = 0.5
_MOST_ROWS = 2000
_CROSS_CHECKED = 200
_COUNT_TOLERANCE = 0.02


class MetricsObserver:
    """Reads the server's own figures on a fixed time grid and joins them to the load level.

    ``point.server`` gets means, maxima and growth over the measured window, and ``timeline``: rows of
    ``seconds since the first due time`` and the snapshot.
    """

    def __init__(self, snapshot: Callable[[], Awaitable[dict[str, float]]], period_s: float = GRID_S):
        self._snapshot, self._period = snapshot, period_s
        self._samples: list[tuple[int, dict[str, float]]] = []
        self._task: asyncio.Task[None] | None = None

    async def begin(self, load: Any) -> None:
        """Start sampling."""
        self._samples = []
        await self._sample()
        self._task = asyncio.create_task(self._run())

    async def end(self, point: LoadPoint, records: Sequence[RequestRecord]) -> None:
        """Stop and join."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._samples:
            await self._sample()
        start, end = point.started_ns, point.started_ns + round(point.duration_s * 1e9)
        # The window, and the nearest sample on either side: growth of counters needs both ends.
        before = max((at for at, _ in self._samples if at <= start), default=start)
        after = min((at for at, _ in self._samples if at >= end), default=end)
        inside = [row for row in self._samples if before <= row[0] <= after]
        point.server.clear()
        if inside:
            rows = [(round((at - start) / 1e9, 3), sample) for at, sample in inside]
            point.server.update(summarise(rows))
            step = max(1, len(rows) // _MOST_ROWS)
            point.server["timeline"] = [{"s": seconds, **sample} for seconds, sample in rows[::step]]
            samples = required_samples(point.server["timeline"], start)
            point.bandwidth = timed_rows([sample.to_dict() for sample in samples], start)

    async def _run(self) -> None:
        while self._samples:  # without a page we know nothing is asked again
            await asyncio.sleep(self._period)
            await self._sample()

    async def _sample(self) -> None:
        sample = await self._snapshot()
        if sample:
            self._samples.append((time.monotonic_ns(), sample))


class AnswersObserver:
    """Notes what the answers showed that a reader of the figures must know."""

    async def begin(self, load: Any) -> None:
        """Nothing to prepare."""

    async def end(self, point: LoadPoint, records: Sequence[RequestRecord]) -> None:
        """Add notes."""
        measured = [record for record in records if record.phase == "measure"]
        answered = [record for record in measured if record.ok]
        longer = sum(1 for r in answered if r.output_tokens > r.choices * (r.requested_output_tokens or 1 << 60))
        if longer:
            point.notes.append(
                f"{longer} of {len(answered)} answers were longer than asked for: max_tokens is ignored"
            )
        retried = sum(1 for record in measured if record.retries)
        if retried:
            point.notes.append(f"{retried} requests were sent again after 429/503; the wait is part of their latency")
        counted = sum(1 for record in answered if record.token_source == "chunks")
        if counted:
            point.notes.append(f"{counted} answers came without usage: their tokens are counted as chunks")
        whole = sum(1 for r in answered if len(r.chunk_times_ns) == 1 and r.output_tokens > 8)
        if whole and whole > 0.5 * len(answered):
            point.notes.append(
                "answers came in one piece (no streaming, or a proxy that buffers): TTFT is not meaningful"
            )
        if any(record.choices > 1 for record in answered):
            point.notes.append("several choices a request: gaps and TPOT are those of the first, tokens count all")


class MixObserver:
    """Figures of each part of a request mix, in ``point.parts``."""

    def __init__(self, slo: Mapping[str, float]):
        self._slo = slo

    async def begin(self, load: Any) -> None:
        """Nothing to prepare."""

    async def end(self, point: LoadPoint, records: Sequence[RequestRecord]) -> None:
        """Add the breakdown."""
        found = groups(records)
        if found:
            point.parts = {name: _part(rows, self._slo) for name, rows in found.items()}  # type: ignore[attr-defined]


def _part(records: Sequence[RequestRecord], slo: Mapping[str, float]) -> dict[str, Any]:
    row: dict[str, Any] = {"requests": len(records), "ok": sum(record.ok for record in records)}
    for name, series in latency_series(records).items():
        for q in (50, 99):
            row[f"{name}.p{q}"] = round(series.percentile(q), 4) if len(series) else None
    if slo:
        row["attainment"] = round(float(requests_meeting(build_timeline(records), slo).mean()), 4)
    return row


class TokenizerObserver:
    """Counts some answers again with a ``tokenizer.json``; a disagreement is a warning, never a silent switch."""

    def __init__(self, path: Path):
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise MissingExtraError("Cross-checking token counts", "engine") from None
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:
            raise InputError(f"cannot read tokenizer {file}: {error}", "Give the model's tokenizer.json") from None

    async def begin(self, load: Any) -> None:
        """Nothing to prepare."""

    async def end(self, point: LoadPoint, records: Sequence[RequestRecord]) -> None:
        """Compare and note."""
        rows = [r for r in records if r.phase == "measure" and r.ok and r.text and r.choices == 1][:_CROSS_CHECKED]
        if not rows:
            return
        counted = await asyncio.to_thread(lambda: [len(self._tokenizer.encode(r.text).ids) for r in rows])
        stated = np.array([r.output_tokens for r in rows], dtype=np.float64)
        ratio = float(np.sum(counted) / np.sum(stated)) if stated.sum() else 0.0
        # The end-of-sequence token is counted by servers and is in no text.
        if abs(ratio - 1) > _COUNT_TOLERANCE + 1.0 / float(stated.mean()):
            point.notes.append(
                f"the tokenizer counts {ratio:.3f} x the tokens the server states ({len(rows)} answers): "
                "is it this model's? The server's counts are used"
            )


ENDPOINT_DEFINITIONS = {
    "ttft": DEFINITIONS["ttft"] + "; the first text, reasoning or tool-call token; a role-only chunk is none",
    "chunk": "what one read from the connection delivered: events that arrive together are one chunk",
    "t_sent": "when the client began to act on the request; opening a connection is part of the latency",
    "retries": "a request refused with 429/503 and Retry-After is sent again; latency counts from its first due time",
    "server": "from the server's /metrics page over the measured window: mean, max, and growth of counters",
}
