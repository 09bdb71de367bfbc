"""Records of a load point as arrays: token times, gaps, concurrency over time, the steady window.

Extracted once per load point; every metric then works on whole arrays. Times are seconds from ``origin_ns``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sits.spec.bootstrap import Series
from sits.spec.records import CANCELLED, OK, RequestRecord
from sits.spec.statistics import Array

Mask = npt.NDArray[np.bool_]
Index = npt.NDArray[np.int64]

STEADY_RATIO = 0.9
# A closed loop dips for the moment between a finish and the next send; shorter dips do not end a span.
BRIDGE_SHARE = 0.005
BRIDGE_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Window:
    """A span of time in seconds from the origin; ``steady`` says whether the load held its target in it."""

    start: float
    end: float
    steady: bool = True

    @property
    def seconds(self) -> float:
        return max(0.0, self.end - self.start)

    def holds(self, times: Array) -> Mask:
        """Which times lie inside; to the nanosecond, since sums of two stamps round."""
        return (times >= self.start - 1e-9) & (times <= self.end + 1e-9)


@dataclass(frozen=True, slots=True)
class Timeline:
    """Column form of the measured records of one load point (n requests, c chunks that carry tokens).

    ``chunk_*`` arrays belong to all requests, also failed ones; :meth:`gaps` and the metrics use only those with
    ``ok``. Offsets are seconds after ``t_due``.
    """

    origin_ns: int
    due: Array  # [n] seconds from the origin
    sent: Array  # [n]
    end: Array  # [n]
    ok: Mask  # [n]
    counted: Mask  # [n] false for requests the harness itself cancelled
    prompt_tokens: Array  # [n] 0 where unknown
    output_tokens: Array  # [n] tokens seen in chunks (of choice 0)
    choices: Array  # [n] answers per request; the chunks are those of the first
    first_token: Array  # [n] offset of the first token, NaN without
    first_visible: Array  # [n] offset of the first visible token, NaN where not reported
    first_chunk_tokens: Array  # [n]
    chunk_time: Array  # [c] offset of each chunk
    chunk_tokens: Index  # [c] >= 1
    chunk_owner: Index  # [c] ascending

    @property
    def requests(self) -> int:
        return len(self.due)

    @property
    def span(self) -> Window:
        """From the first due time to the last end: the measured window."""
        if self.requests == 0:
            return Window(0.0, 0.0, steady=False)
        return Window(float(self.due.min()), float(self.end.max()), steady=False)

    def gaps(self) -> Series:
        """Inter-token gaps in ms, pooled over successful requests: a chunk of m tokens is m gaps of 1/m.

        The tokens that arrive inside a first chunk have no gap: their spacing was never seen.
        """
        later = np.flatnonzero(self.chunk_owner[1:] == self.chunk_owner[:-1]) + 1
        later = later[self.ok[self.chunk_owner[later]]]
        tokens = self.chunk_tokens[later]
        each = (self.chunk_time[later] - self.chunk_time[later - 1]) / tokens * 1000.0
        return Series.pooled(np.repeat(each, tokens), np.repeat(self.chunk_owner[later], tokens), self.requests)

    def ttft_ms(self) -> Array:
        """TTFT of each successful request in ms, NaN without a token, ``[n]``."""
        return np.where(self.ok, self.first_token * 1000.0, np.nan)

    def tpot_ms(self) -> Array:
        """Mean gap of each successful request in ms; NaN where no token follows the first chunk, ``[n]``."""
        later = self.output_tokens - self.first_chunk_tokens
        with np.errstate(invalid="ignore", divide="ignore"):
            value = (self.last_token() - self.first_token) / later * 1000.0
        return np.where(self.ok & (later > 0), value, np.nan)

    def e2e_ms(self) -> Array:
        """End-to-end latency of each successful request in ms, NaN for failed ones, ``[n]``."""
        return np.where(self.ok, (self.end - self.due) * 1000.0, np.nan)

    def last_token(self) -> Array:
        """Offset of the last token of each request, NaN without, ``[n]``."""
        last = np.full(self.requests, np.nan)
        last[self.chunk_owner] = self.chunk_time  # ascending owners: the last write wins
        return last

    def tokens_within(self, window: Window) -> Array:
        """Output tokens of each successful request that arrived inside ``window``, ``[n]``."""
        at = self.due[self.chunk_owner] + self.chunk_time
        inside = window.holds(at) & self.ok[self.chunk_owner]
        counts = np.bincount(self.chunk_owner, weights=self.chunk_tokens * inside, minlength=self.requests)
        return counts * self.choices

    def residence_within(self, window: Window) -> Array:
        """Seconds each counted request was in flight inside ``window``, ``[n]``."""
        overlap = np.minimum(self.end, window.end) - np.maximum(self.sent, window.start)
        return np.where(self.counted, np.maximum(0.0, overlap), 0.0)

    def tokens_per_chunk(self) -> float:
        """Output tokens per chunk of successful requests, first chunks included; 1.0 without any."""
        mine = self.ok[self.chunk_owner]
        return float(self.chunk_tokens[mine].mean()) if mine.any() else 1.0


def chunk_token_counts(record: RequestRecord) -> list[int] | None:
    """Tokens of each chunk of a record; ``None`` when every chunk is one token.

    Where the server only told the total, tokens are spread evenly over the chunks. A difference of one is the
    invisible end-of-sequence token that many servers count, and is left alone.
    """
    chunks = len(record.chunk_times_ns)
    if record.chunk_tokens is not None and len(record.chunk_tokens) == chunks:
        return record.chunk_tokens
    total = record.output_tokens // max(1, record.choices)
    if chunks == 0 or total <= 0 or abs(total - chunks) <= max(1, 0.05 * chunks):
        return None
    return [(k + 1) * total // chunks - k * total // chunks for k in range(chunks)]


def build_timeline(records: Sequence[RequestRecord]) -> Timeline:
    """Columns of ``records`` (any order; give the measured ones of one load point)."""
    n = len(records)
    origin = min((record.t_due for record in records), default=0)
    due = np.fromiter((record.t_due - origin for record in records), dtype=np.float64, count=n) / 1e9
    sent = np.fromiter((record.t_sent - origin for record in records), dtype=np.float64, count=n) / 1e9
    end = np.fromiter(((record.t_end or record.t_sent) - origin for record in records), np.float64, count=n) / 1e9
    chunks = np.fromiter((len(record.chunk_times_ns) for record in records), dtype=np.int64, count=n)
    time = np.empty(int(chunks.sum()))
    tokens = np.ones(int(chunks.sum()), dtype=np.int64)
    at = 0
    for record in records:
        count = len(record.chunk_times_ns)
        if count:
            time[at : at + count] = record.chunk_times_ns
            per_chunk = chunk_token_counts(record)
            if per_chunk is not None:
                tokens[at : at + count] = per_chunk
            at += count
    owner = np.repeat(np.arange(n, dtype=np.int64), chunks)
    carrying = tokens > 0
    time, tokens, owner = time[carrying] / 1e9, tokens[carrying], owner[carrying]

    starts = np.flatnonzero(np.diff(owner, prepend=-1))
    first, first_tokens = np.full(n, np.nan), np.zeros(n)
    first[owner[starts]] = time[starts]
    first_tokens[owner[starts]] = tokens[starts]
    visible = np.array([np.nan if r.first_visible_ns is None else r.first_visible_ns / 1e9 for r in records])
    return Timeline(
        origin_ns=origin,
        due=due,
        sent=sent,
        end=end,
        ok=np.fromiter((record.status == OK for record in records), dtype=np.bool_, count=n),
        counted=np.fromiter((record.status != CANCELLED for record in records), dtype=np.bool_, count=n),
        prompt_tokens=np.fromiter((record.prompt_tokens or 0 for record in records), dtype=np.float64, count=n),
        output_tokens=np.bincount(owner, weights=tokens, minlength=n).astype(np.float64),
        choices=np.fromiter((record.choices for record in records), dtype=np.float64, count=n),
        first_token=first,
        first_visible=visible,
        first_chunk_tokens=first_tokens,
        chunk_time=time,
        chunk_tokens=tokens,
        chunk_owner=owner,
    )


def concurrency_steps(timeline: Timeline) -> tuple[Array, Array]:
    """In-flight requests over time: ``times[k]`` ascending and ``level[k]`` from ``times[k]`` on."""
    times = np.concatenate([timeline.sent, timeline.end])
    change = np.concatenate([np.ones(timeline.requests), -np.ones(timeline.requests)])
    # At equal times a start comes first, so that a hand-over is no dip.
    order = np.lexsort((-change, times))
    return times[order], np.cumsum(change[order])


def steady_window(timeline: Timeline, target: float | None, ratio: float = STEADY_RATIO) -> Window:
    """Longest span with at least ``ratio * target`` requests in flight; dips under 0.5% of the run are bridged.

    Without a target (open loop, trace replay) it is the span in which requests came due: the drain at the end is
    left out. Where no such span exists the whole measured window is returned with ``steady=False``.
    """
    whole = timeline.span
    if timeline.requests == 0 or whole.seconds <= 0:
        return whole
    if target is None:
        arrivals = Window(float(timeline.due.min()), float(timeline.due.max()))
        return arrivals if arrivals.seconds >= 0.2 * whole.seconds else whole
    times, level = concurrency_steps(timeline)
    high = level >= ratio * target - 1e-9
    starts = times[np.flatnonzero(high & ~np.concatenate(([False], high[:-1])))]
    ends = times[np.flatnonzero(~high & np.concatenate(([False], high[:-1])))]
    if len(starts) == 0:
        return whole
    ends = ends if len(ends) == len(starts) else np.append(ends, times[-1])
    bridge = min(BRIDGE_SECONDS, BRIDGE_SHARE * whole.seconds)
    new_span = np.concatenate(([True], starts[1:] - ends[:-1] > bridge))
    first = np.flatnonzero(new_span)
    starts, ends = starts[first], np.append(ends[first[1:] - 1], ends[-1])
    longest = int(np.argmax(ends - starts))
    found = Window(float(starts[longest]), float(ends[longest]))
    return found if found.seconds > 0 else whole
