"""Builds runs as ``sits bench`` leaves them: result.json, its records, and an event log on demand."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sits.spec.events import Event, EventKind
from sits.spec.metrics import point_metrics
from sits.spec.records import RequestRecord, write_records
from sits.spec.result import Environment, LoadPoint, Result, Target, save_result

K = EventKind


def make_records(
    requests: int = 480, *, ttft: float = 100.0, itl: float = 10.0, tokens: int = 12, seed: int = 0, failed: int = 0,
    point: int = 0, concurrency: int = 8, shift: float = 1.0, sigma: float = 0.1,
) -> list[RequestRecord]:  # fmt: skip
    """Requests of one load point; times in ms, lognormal."""
    rng = np.random.default_rng([seed, point])
    found, lanes = [], [0.0] * concurrency
    for index in range(requests):
        lane = int(np.argmin(lanes))
        due = lanes[lane]
        first = ttft * shift * np.exp(rng.normal(0, sigma))
        gaps = itl * shift * np.exp(rng.normal(0, sigma, tokens - 1))
        times = np.concatenate(([first], first + np.cumsum(gaps)))
        lanes[lane] = due + float(times[-1])
        start = int(due * 1e6) + 1_000_000_000
        bad = index < failed
        found.append(
            RequestRecord(
                request_id=f"r{point}-{index}",
                t_due=start,
                t_sent=start,
                t_end=start + int(times[-1] * 1e6),
                status="error" if bad else "ok",
                error_kind="http_500" if bad else None,
                point=point,
                chunk_times_ns=[] if bad else [int(t * 1e6) for t in times],
                prompt_tokens=64,
                cached_tokens=32,
                output_tokens=0 if bad else tokens,
                requested_output_tokens=tokens,
            )
        )
    return found


def make_point(records: list[RequestRecord], index: int = 0, concurrency: int = 8, **changes: Any) -> LoadPoint:
    """The load point ``sits bench`` would have written for these records."""
    mine = [record for record in records if record.point == index]
    failed = sum(not record.ok for record in mine)
    fields: dict[str, Any] = {
        "index": index,
        "mode": "closed",
        "concurrency": concurrency,
        "duration_s": (max(r.t_end for r in mine) - min(r.t_due for r in mine)) / 1e9 if mine else 0.0,
        "requests": {"sent": len(mine), "ok": len(mine) - failed, "error": failed, "timeout": 0, "warmup": 10},
        "tokens": {"prompt": 64 * len(mine), "output": 12 * len(mine), "cached": 32 * len(mine)},
        "metrics": point_metrics(
            mine, concurrency=concurrency, slo={"ttft_ms": 300.0, "itl_ms": 50.0}, resamples=200
        ),
        "convergence": [{"metric": "throughput.output", "status": "converged", "detail": "moved 1%"}],
        "client": {"verdict": "ok", "slip_p99_ms": 0.1},
    }  # fmt: skip
    return LoadPoint.model_validate({**fields, **changes})


def make_events(requests: int = 3, blocks: int = 2) -> list[Event]:
    """A sound log: requests arrive, get blocks, are stepped, answer, end; blocks are freed."""
    events: list[Event] = []
    clock = 1_000_000

    def add(kind: EventKind, entity: str, cause: int = -1, value: int = 0, detail: str = "") -> int:
        nonlocal clock
        clock += 20_000
        events.append(Event(len(events), clock, kind, entity, cause, value, detail))
        return len(events) - 1

    last: dict[str, int] = {}
    for index in range(requests):
        name = f"r{index}"
        last[name] = add(K.PERCEIVED, name, add(K.ARRIVAL, name))
        for block in range(blocks):
            add(K.BLOCK_ALLOCATED, f"block-{index * blocks + block}", last[name])
        last[name] = add(K.ADMITTED, name, last[name])
    for step in range(4):
        for name in last:
            last[name] = add(K.SCHEDULED, name, last[name], 1, f"step-{step}")
        begin = add(K.STEP_BEGIN, f"step-{step}", -1, requests)
        end = add(K.STEP_END, f"step-{step}", begin, requests)
        for name in last:
            last[name] = add(K.TOKEN, name, end, step)
        add(K.PERCEIVED, f"step-{step}", end)
    for index in range(requests):
        name = f"r{index}"
        last[name] = add(K.FINISHED, name, last[name], 4, "length")
        for block in range(blocks):
            add(K.BLOCK_FREED, f"block-{index * blocks + block}", last[name])
    return events


def write_events(path: Path, events: list[Event], **header: Any) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write(json.dumps({"sits_events": 1, **header}) + "\n")
        for event in events:
            file.write(json.dumps([*event]) + "\n")


@dataclass
class Workshop:
    """Everything a gate test needs to make files."""

    folder: Path

    records = staticmethod(make_records)
    point = staticmethod(make_point)
    events = staticmethod(make_events)
    write_events = staticmethod(write_events)

    def run(
        self,
        name: str = "run",
        *,
        records: list[RequestRecord] | None = None,
        keep_records: bool = True,
        events: list[Event] | None = None,
        events_header: dict[str, Any] | None = None,
        point: dict[str, Any] | None = None,
        change: Callable[[Result], object] | None = None,
        **made: Any,
    ) -> Path:
        """A folder with a result; ``point`` overrides fields of its load point, ``change`` edits the result."""
        records = make_records(**made) if records is None else records
        levels = sorted({record.point for record in records})
        result = Result(
            run_id=name,
            created="2026-11-30T12:00:00+00:00",
            status="complete",
            environment=Environment(hardware={"cpu": "test", "cores": 2}, software={"sits": "0.1.0"}, os="Linux"),
            target=Target(kind="embedded", name="smollm2-135m", card={"sha256": "ab" * 32, "dtype": "fp32"}),
            workload={"input_len": 64, "output_len": 12},
            warmup={"preset": "ladder"},
            slo={"ttft_ms": 300.0, "itl_ms": 50.0},
            points=[make_point(records, level, **(point or {})) for level in levels],
            records_file="records.jsonl.gz" if keep_records else None,
            events_file="events.jsonl.gz" if events is not None else None,
        )
        if change is not None:
            change(result)
        folder = self.folder / name
        save_result(result, folder)
        if keep_records:
            write_records(folder / "records.jsonl.gz", records)
        if events is not None:
            write_events(folder / "events.jsonl.gz", events, **(events_header or {}))
        return folder

    def config(self, text: str, name: str = "config.yaml") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SITS_PROFILE", raising=False)
    return Workshop(tmp_path)
