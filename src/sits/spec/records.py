"""The raw record of one request, and the compressed side file that holds all of a run.

All times are nanoseconds of one monotonic clock (``time.monotonic_ns``). The four stamps of SPEC section 2:
``t_due`` (when it should have been sent), ``t_sent`` (when it was), the time of each chunk, and the end.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from sits.errors import InputError

OK = "ok"
ERROR = "error"
TIMEOUT = "timeout"
CANCELLED = "cancelled"


class RequestRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One request as the client saw it.

    ``chunk_times_ns`` are offsets from ``t_due``; ``chunk_tokens`` is the number of tokens in each chunk, or
    ``None`` when every chunk carried exactly one. Failed requests keep whatever arrived before the failure.
    """

    request_id: str
    t_due: int
    t_sent: int
    t_end: int = 0
    status: str = OK  # ok | error | timeout | cancelled
    phase: str = "measure"  # warmup | measure
    point: int = 0  # index of the load point (sweep step) it belongs to
    chunk_times_ns: list[int] = []
    chunk_tokens: list[int] | None = None
    first_visible_ns: int | None = None  # offset from t_due of the first token a reader sees (not reasoning)
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int = 0
    token_source: str = "engine"  # engine | usage | tokenizer | chunks
    requested_output_tokens: int | None = None
    choices: int = 1  # n; the chunks are those of choice 0, output_tokens counts all
    finish_reason: str | None = None
    error: str | None = None
    error_kind: str | None = None  # http_500, connect, timeout_idle, stream_error, ...
    http_status: int | None = None
    retries: int = 0
    worker: int = 0
    session: str | None = None  # conversation id of a multi-turn workload
    turn: int = 0
    engine_times_ns: dict[str, int] | None = None  # embedded engine: admitted, first_scheduled, preempted_total
    text: str | None = None  # only with --keep-text

    @property
    def ok(self) -> bool:
        return self.status == OK


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(RequestRecord)


def write_records(path: Path, records: Iterable[RequestRecord], meta: dict[str, Any] | None = None) -> int:
    """Write records as gzip-compressed JSON lines, atomically. Returns how many were written.

    Line 1 is a header ``{"sits_records": 1, ...meta}``; each further line is one record.
    """
    temporary = path.with_name(path.name + ".partial")
    count = 0
    try:
        with gzip.open(temporary, "wb", compresslevel=3) as file:
            file.write(_encoder.encode({"sits_records": 1, **(meta or {})}) + b"\n")
            for record in records:
                file.write(_encoder.encode(record) + b"\n")
                count += 1
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return count


def iter_records(path: Path) -> Iterator[RequestRecord]:
    """Yield the records of a side file. Raises ``InputError`` on a missing, truncated or foreign file."""
    try:
        with gzip.open(path, "rb") as file:
            header = msgspec.json.decode(file.readline() or b"null")
            if not isinstance(header, dict) or "sits_records" not in header:
                raise InputError(f"{path} is not a SITS records file", "Expected records.jsonl.gz beside result.json")
            for line in file:
                yield _decoder.decode(line)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist", "It is written beside result.json by sits bench") from None
    except (OSError, EOFError, zlib.error, msgspec.DecodeError) as error:
        raise InputError(f"{path} is damaged: {error}", "Run the benchmark again") from None


def read_records(path: Path) -> list[RequestRecord]:
    """All records of a side file as a list; see :func:`iter_records`."""
    return list(iter_records(path))
