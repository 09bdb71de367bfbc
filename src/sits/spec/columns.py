"""The records of a run as compact columns, read as a stream: 50,000 requests of 128 tokens need about 80 MB.

:mod:`sits.spec.timeline` holds one load point with everything a metric may ask. The gate and the comparison need
less and must stay small, so this module keeps float32 samples only. Both give the same series (a test says so).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sits.errors import InputError
from sits.spec.records import CANCELLED, RequestRecord
from sits.spec.timeline import chunk_token_counts

Floats = npt.NDArray[np.float32]
Counts = npt.NDArray[np.int64]

_BLOCK = 2000  # requests turned into arrays at a time
_LARGEST_NS = 1 << 53  # a hundred days; more is no measurement


@dataclass(frozen=True, slots=True)
class Samples:
    """One series in the order of its requests: request i owns the next ``counts[i]`` of ``values``."""

    values: Floats
    counts: Counts

    @classmethod
    def per_request(cls, values: npt.ArrayLike) -> Samples:
        """One value a request; NaN where it has none."""
        raw = np.asarray(values, dtype=np.float32)
        present = ~np.isnan(raw)
        return cls(raw[present], present.astype(np.int64))

    @property
    def requests(self) -> int:
        return len(self.counts)

    def __len__(self) -> int:
        return len(self.values)

    def sums(self, terms: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        """``terms[len(values)]`` added up for each request that owns a value, ``[owners]``."""
        owners = self.counts[self.counts > 0]
        if len(owners) == 0:
            return np.zeros(0)
        starts = np.concatenate(([0], np.cumsum(owners)[:-1]))
        return np.add.reduceat(terms.astype(np.float64), starts)


@dataclass(slots=True)
class PointColumns:
    """Measured requests of one load point, in the order they were due. Latencies in ms."""

    ttft: Samples
    ttft_visible: Samples
    itl: Samples
    tpot: Samples
    e2e: Samples
    sent: int  # requests that count (all but those the harness cancelled)
    failed: int
    prompt_tokens: Counts  # [n] 0 where unknown
    cached_tokens: Counts  # [n]
    output_tokens: Counts  # [n]
    requested_tokens: Counts  # [n] 0 where not told
    attained: dict[str, int] = field(default_factory=dict)

    def series(self, name: str) -> Samples:
        return getattr(self, name)


class _Collector:
    """Gathers the records of one load point and turns every block of them into arrays."""

    def __init__(self) -> None:
        self.pending: list[RequestRecord] = []
        self.blocks: list[tuple[np.ndarray, Floats, Counts]] = []

    def add(self, record: RequestRecord) -> None:
        self.pending.append(record)
        if len(self.pending) >= _BLOCK:
            self.flush()

    def flush(self) -> None:
        if self.pending:
            self.blocks.append(_block(self.pending))
            self.pending = []

    def finish(self) -> PointColumns:
        self.flush()
        rows = np.concatenate([rows for rows, _, _ in self.blocks])
        gaps = np.concatenate([gaps for _, gaps, _ in self.blocks])
        counts = np.concatenate([counts for _, _, counts in self.blocks])
        self.blocks = []
        order = np.argsort(rows["due"], kind="stable")
        if np.any(np.diff(order) < 0):
            starts = np.concatenate(([0], np.cumsum(counts)[:-1]))[order]
            lengths = counts[order]
            shift = np.repeat(starts - np.concatenate(([0], np.cumsum(lengths)[:-1])), lengths)
            gaps = gaps[np.arange(len(gaps)) + shift]
            rows, counts = rows[order], lengths
        return PointColumns(
            ttft=Samples.per_request(rows["ttft"]),
            ttft_visible=Samples.per_request(rows["visible"]),
            itl=Samples(gaps, counts),
            tpot=Samples.per_request(rows["tpot"]),
            e2e=Samples.per_request(rows["e2e"]),
            sent=int(np.count_nonzero(rows["counted"])),
            failed=int(np.count_nonzero(rows["counted"] & ~rows["ok"])),
            prompt_tokens=rows["prompt"],
            cached_tokens=rows["cached"],
            output_tokens=rows["output"],
            requested_tokens=rows["requested"],
        )


_ROW = np.dtype(
    [("due", "i8"), ("ok", "?"), ("counted", "?"), ("ttft", "f4"), ("visible", "f4"), ("tpot", "f4"), ("e2e", "f4"),
     ("prompt", "i8"), ("cached", "i8"), ("output", "i8"), ("requested", "i8")]
)  # fmt: skip


def _block(records: list[RequestRecord]) -> tuple[np.ndarray, Floats, Counts]:
    """Rows, pooled gaps (ms) and gaps per request of some records."""
    n = len(records)
    rows = np.zeros(n, dtype=_ROW)
    rows[["ttft", "visible", "tpot", "e2e"]] = np.nan
    # Column by column: writing fields of single rows costs more than decoding the record.
    rows["due"] = [record.t_due for record in records]
    rows["ok"] = [record.ok for record in records]
    rows["counted"] = [record.status != CANCELLED for record in records]
    rows["prompt"] = [record.prompt_tokens or 0 for record in records]
    rows["cached"] = [record.cached_tokens or 0 for record in records]
    rows["requested"] = [record.requested_output_tokens or 0 for record in records]
    rows["e2e"] = [((r.t_end or r.t_sent) - r.t_due) / 1e6 if r.ok else np.nan for r in records]
    rows["visible"] = [
        np.nan if r.first_visible_ns is None or not r.ok else r.first_visible_ns / 1e6 for r in records
    ]
    chunks = np.fromiter((len(record.chunk_times_ns) for record in records), dtype=np.int64, count=n)
    times = np.empty(int(chunks.sum()), dtype=np.int64)
    tokens: np.ndarray | None = None
    at = 0
    for index, record in enumerate(records):
        count = int(chunks[index])
        if count:
            times[at : at + count] = record.chunk_times_ns
            per_chunk = chunk_token_counts(record)
            if per_chunk is not None:
                if tokens is None:
                    tokens = np.ones(len(times), dtype=np.int64)
                tokens[at : at + count] = per_chunk
        at += count
    if len(times) and (times.min() < -_LARGEST_NS or times.max() > _LARGEST_NS):
        raise InputError("a chunk time of the records is no time a run could have", "The records file is damaged")
    owner = np.repeat(np.arange(n), chunks)
    weights = np.ones(len(times), dtype=np.int64) if tokens is None else tokens
    if np.any(weights < 0) or int(weights.sum()) > 200_000_000:
        raise InputError("the token counts of a chunk cannot be right", "The records file is damaged")
    carrying = weights > 0
    if not carrying.all():
        times, owner, weights = times[carrying], owner[carrying], weights[carrying]
    rows["output"] = np.bincount(owner, weights=weights, minlength=n)
    ok = rows["ok"]
    first = np.flatnonzero(np.diff(owner, prepend=-1))
    last = np.append(first[1:] - 1, len(owner) - 1) if len(first) else first
    who = owner[first]
    start = times[first] / 1e6
    later = rows["output"][who] - weights[first]
    with np.errstate(invalid="ignore", divide="ignore"):
        tpot = (times[last] / 1e6 - start) / later
    rows["ttft"][who] = np.where(ok[who], start, np.nan)
    rows["tpot"][who] = np.where(ok[who] & (later > 0), tpot, np.nan)
    inner = np.flatnonzero((owner[1:] == owner[:-1]) & ok[owner[1:]]) + 1
    gaps = ((times[inner] - times[inner - 1]) / 1e6).astype(np.float32)
    per_gap = weights[inner]
    counts = np.bincount(owner[inner], weights=per_gap, minlength=n).astype(np.int64)
    if tokens is not None:
        gaps = np.repeat(gaps / per_gap.astype(np.float32), per_gap)
    return rows, gaps, counts


def read_columns(records: Iterable[RequestRecord]) -> dict[int, PointColumns]:
    """Columns of every load point, from a stream of records (:func:`sits.spec.records.iter_records`).

    Warm-up requests are left out. Raises ``InputError`` for times or counts that no run could have produced.
    """
    collectors: dict[int, _Collector] = {}
    try:
        for record in records:
            if record.phase == "measure":
                collectors.setdefault(record.point, _Collector()).add(record)
        return {point: collector.finish() for point, collector in sorted(collectors.items())}
    except OverflowError:
        raise InputError("a number in the records is too large", "The records file is damaged") from None
