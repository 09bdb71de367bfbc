"""Replay of recorded traffic: when each request came, how long its prompt and answer were.

Column names decide the format, in JSON lines or CSV:

=========  ===============================================  =====================================================
Mooncake   ``timestamp`` (ms), ``input_length``,            ``hash_ids``: blocks of 512 tokens; equal ids are equal
           ``output_length``, ``hash_ids``                  text, so prefix sharing is replayed too
Azure LLM  ``TIMESTAMP`` (date and time), ``ContextTokens``, ``GeneratedTokens``
generic    ``time_s`` or ``timestamp_ms``, ``input_tokens`` (or ``prompt``/``messages``), ``output_tokens``
=========  ===============================================  =====================================================
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from sits.bench.client import RequestSpec
from sits.bench.composed import PartMaker
from sits.errors import InputError
from sits.spec.records import RequestRecord

BLOCK_TOKENS = 512
_FIELDS = {
    "input": ("input_length", "contexttokens", "input_tokens", "prompt_tokens", "input_len", "prompt_len"),
    "output": ("output_length", "generatedtokens", "output_tokens", "completion_tokens", "output_len", "max_tokens"),
}
_TIMES = {"time_s": 1.0, "offset_s": 1.0, "arrival_s": 1.0, "timestamp_s": 1.0, "timestamp_ms": 1e-3, "time_ms": 1e-3}


@dataclass(slots=True)
class TraceRow:
    """One request of a trace; ``offset_s`` counts from the first."""

    offset_s: float
    output_tokens: int
    input_tokens: int | None = None
    hash_ids: list[int] | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None


def read_trace(
    path: Path, speed: float = 1.0, limit: int | None = None, seconds: float | None = None
) -> list[TraceRow]:
    """Rows in order of time, starting at 0; ``speed`` 2 replays twice as fast. ``limit`` and ``seconds`` (of the
    trace's own time) cut it. Raises ``InputError`` naming the line."""
    if not (math.isfinite(speed) and speed > 0):
        raise InputError(f"the replay speed must be above zero, not {speed}")
    rows = []
    for number, item in _items(path):
        rows.append(_row(path, number, item))
        if limit is not None and seconds is None and len(rows) >= 4 * limit + 100_000:
            break  # a huge file of which little is wanted; sorted below within what was read
    if not rows:
        raise InputError(f"trace {path} holds no request")
    rows.sort(key=lambda row: row.offset_s)
    first = rows[0].offset_s
    if seconds is not None:
        rows = [row for row in rows if row.offset_s - first <= seconds]
    rows = rows[:limit]
    for row in rows:
        row.offset_s = (row.offset_s - first) / speed
    return rows


class TraceWorkload:
    """The requests of a trace in order, with prompts of the recorded length."""

    def __init__(self, rows: list[TraceRow], maker: PartMaker, name: str, max_context: int | None = None):
        self.rows, self.maker, self.name = rows, maker, name
        self.max_context = max_context
        self.clipped = 0

    @property
    def offsets(self) -> list[float]:
        """When each request is due, seconds after the start."""
        return [row.offset_s for row in self.rows]

    def request(self, index: int, phase: str = "measure") -> RequestSpec:
        """Request ``index``; warm-up requests have the lengths of the trace but other text."""
        row = self.rows[index % len(self.rows)]
        spec = RequestSpec(f"{phase}-{index}", row.output_tokens, seed=self.maker.seed)
        if phase == "measure" and (row.prompt is not None or row.messages is not None):
            spec.prompt, spec.messages = row.prompt, row.messages
            spec.ignore_eos = False
            return spec
        tokens = row.input_tokens or max(1, len(row.prompt or "") // 4)
        if self.max_context is not None and tokens + spec.max_tokens > self.max_context:
            self.clipped += 1
            spec.max_tokens = min(spec.max_tokens, max(1, self.max_context - 1))
            tokens = max(1, self.max_context - spec.max_tokens)
        if phase != "measure":
            return self.maker.fill(spec, [(tokens, (index << 8) | 0xB7)])
        return self.maker.fill(spec, _parts(row.hash_ids, tokens, index))

    def follow_up(self, request: RequestSpec, record: RequestRecord) -> tuple[float, RequestSpec] | None:
        """A trace knows no turns: what came when is in it."""
        return None

    def describe(self) -> dict[str, Any]:
        """For the result."""
        inputs = [row.input_tokens for row in self.rows if row.input_tokens]
        span = self.rows[-1].offset_s
        return {
            "kind": "trace",
            "file": self.name,
            "requests": len(self.rows),
            "seconds": round(span, 3),
            "mean_rate": round(len(self.rows) / span, 4) if span else None,
            "input_len_mean": round(sum(inputs) / len(inputs), 1) if inputs else None,
            "output_len_mean": round(sum(row.output_tokens for row in self.rows) / len(self.rows), 1),
            "prefix_sharing": any(row.hash_ids for row in self.rows),
            "clipped": self.clipped,
        }


def _parts(hash_ids: list[int] | None, tokens: int, index: int) -> list[tuple[int, int]]:
    if not hash_ids:
        return [(tokens, (index << 8) | 0xA5)]
    parts = []
    for hash_id in hash_ids:
        take = min(BLOCK_TOKENS, tokens)
        if take <= 0:
            break
        parts.append((take, (hash_id << 8) | 0xC3))
        tokens -= take
    if tokens > 0:
        parts.append((tokens, (index << 8) | 0xA5))
    return parts


def _items(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, object) of a JSON lines or CSV file."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            if path.suffix.lower() == ".csv":
                for number, row in enumerate(csv.DictReader(file), start=2):
                    yield number, {key: value for key, value in row.items() if key is not None}
                return
            for number, line in enumerate(file, start=1):
                if line.strip():
                    try:
                        item = json.loads(line)
                    except (json.JSONDecodeError, RecursionError) as error:
                        raise InputError(f"trace {path}, line {number}: not valid JSON: {error}") from None
                    if not isinstance(item, dict):
                        raise InputError(f"trace {path}, line {number}: expected an object")
                    yield number, item
    except OSError as error:
        raise InputError(f"cannot read trace {path}: {error.strerror}", "Give a .jsonl or .csv file") from None
    except UnicodeDecodeError:
        raise InputError(f"trace {path} is not UTF-8 text", "Give a .jsonl or .csv file") from None
    except csv.Error as error:
        raise InputError(f"trace {path} is not valid CSV: {error}") from None


def _row(path: Path, number: int, item: dict[str, Any]) -> TraceRow:
    where = f"trace {path}, line {number}"
    lowered = {key.strip().lower(): value for key, value in item.items()}
    row = TraceRow(_time(where, lowered), _count(where, lowered, "output"))
    row.messages, row.prompt = lowered.get("messages"), lowered.get("prompt")
    if row.messages is None and row.prompt is None:
        row.input_tokens = _count(where, lowered, "input")
    elif row.prompt is not None and not isinstance(row.prompt, str):
        raise InputError(f"{where}: prompt must be text")
    ids = lowered.get("hash_ids")
    if ids is not None:
        if not isinstance(ids, list) or not all(isinstance(one, int) and one >= 0 for one in ids):
            raise InputError(f"{where}: hash_ids must be a list of whole numbers")
        row.hash_ids = ids
    return row


def _time(where: str, item: dict[str, Any]) -> float:
    for name, unit in _TIMES.items():
        if name in item:
            return _number(where, name, item[name]) * unit
    value = item.get("timestamp")
    if value is None:
        raise InputError(f"{where}: no time", f"Give timestamp, {', '.join(_TIMES)}")
    try:
        # Mooncake counts in ms; a bare number beside other columns is taken for the same unit only there.
        return float(value) * (1e-3 if "input_length" in item else 1.0)
    except (TypeError, ValueError):
        pass
    text = str(value).strip()
    head, dot, fraction = text.partition(".")
    digits = fraction[:6] if fraction[:6].isdigit() else ""
    try:
        # Azure writes seven digits of a second, one more than datetime reads.
        return datetime.fromisoformat(head + (dot + digits.ljust(6, "0") if digits else "")).timestamp()
    except ValueError:
        raise InputError(f"{where}: cannot read the time {text!r}") from None


def _count(where: str, item: dict[str, Any], kind: str) -> int:
    for name in _FIELDS[kind]:
        if item.get(name) not in (None, ""):
            value = _number(where, name, item[name])
            if value != int(value) or value < 0:
                raise InputError(f"{where}: {name} must be a whole number, not {item[name]}")
            return max(1, int(value))
    raise InputError(f"{where}: no {kind} length", f"Give one of {', '.join(_FIELDS[kind])}")


def _number(where: str, name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError(f"{where}: {name} must be a number, not {value!r}") from None
    if not math.isfinite(number) or isinstance(value, bool):
        raise InputError(f"{where}: {name} must be a number, not {value!r}")
    return number
