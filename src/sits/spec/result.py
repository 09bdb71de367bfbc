"""The versioned result of ``sits bench``: what ``result.json`` holds.

Every figure carries its unit, sample count and interval. An empty series is ``None``, never 0. Unknown fields
are kept on reading (a newer minor version may add some); another major version is refused.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sits.errors import InputError
from sits.spec.records import RequestRecord, read_records

SCHEMA_VERSION = "1.0"
RECORDS_FILE = "records.jsonl.gz"
EVENTS_FILE = "events.jsonl.gz"

Status = Literal["complete", "partial", "not_converged", "no_data", "invalid"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="allow", protected_namespaces=())


class Figure(_Model):
    """One number with what is needed to trust it. ``value`` is null when there was nothing to measure."""

    value: float | None
    unit: str
    n: int = 0  # samples behind it (requests or gaps)
    ci_low: float | None = None  # 95% bootstrap interval, resampled by request
    ci_high: float | None = None
    upper_bound: float | None = None  # MLPerf early-stopping bound (99% confidence); null below the floor
    reason: str | None = None  # why value is null


class Convergence(_Model):
    """Did the rounds settle? ``rounds`` holds the watched value of each round."""

    metric: str
    status: Literal["converged", "not_converged", "not_checked"]
    tolerance_relative: float | None = None
    tolerance_absolute: float | None = None
    rounds: list[float] = []
    detail: str = ""


class ClientHealth(_Model):
    """Could the load generator keep up? Times in ms, CPU as a share of one core."""

    verdict: Literal["ok", "client_bound", "unknown"] = "unknown"
    slip_p99_ms: float | None = None  # t_sent - t_due
    loop_lag_p99_ms: float | None = None
    cpu_share: float | None = None
    calibration: dict[str, float] = {}
    advice: str | None = None


class ArrivalCheck(_Model):
    """Was the arrival process what was asked for?"""

    process: str
    target_rate: float | None = None
    achieved_rate: float | None = None
    ks_p_value: float | None = None
    ok: bool | None = None
    detail: str = ""


class LoadPoint(_Model):
    """One load level of a run.

    ``metrics`` is keyed ``name.statistic``: ``ttft.p50``, ``ttft.p99``, ``ttft.mean``, ``itl.p99``, ``tpot.mean``,
    ``e2e.p99``, ``ttft_visible.p50``; single figures have no statistic: ``throughput.output``,
    ``throughput.total``, ``throughput.requests``, ``tltb``, ``tail_inflation``, ``goodput``, ``error_rate``,
    ``mabu.required``, ``mabu.observed``, ``traffic_efficiency``, ``energy_per_token``.
    """

    index: int
    mode: Literal["closed", "open", "trace"]
    concurrency: float | None = None
    rate: float | None = None
    arrival: str | None = None
    started_ns: int = 0
    duration_s: float = 0.0  # the measured window
    steady_start_s: float | None = None  # inside the window
    steady_end_s: float | None = None
    requests: dict[str, int] = {}  # sent, ok, error, timeout, cancelled, warmup
    errors: dict[str, int] = {}  # by kind
    tokens: dict[str, int] = {}  # prompt, output, cached
    tokens_per_chunk: float = 1.0
    metrics: dict[str, Figure] = {}
    convergence: list[Convergence] = []
    client: ClientHealth = ClientHealth()
    arrivals: ArrivalCheck | None = None
    server: dict[str, Any] = {}  # queue, kv_use, prefix_hit_rate, preemptions, ...
    bandwidth: list[dict[str, Any]] = []  # BandwidthSample rows
    status: Status = "complete"
    notes: list[str] = []


class Environment(_Model):
    """Where it ran; a comparison refuses to call two different environments equal."""

    hardware: dict[str, Any] = {}  # cpu, cores, memory_gb, gpus: [{name, memory_gb, driver}]
    software: dict[str, str] = {}  # python, sits, torch, cuda, triton, ...
    os: str = ""
    git_revision: str | None = None
    hostname_hash: str | None = None
    container: bool | None = None


class Target(_Model):
    """What was measured."""

    kind: Literal["embedded", "endpoint"]
    name: str
    url: str | None = None
    api: str | None = None
    card: dict[str, Any] = {}  # model card: architecture, parameters, dtype, sha256, shapes, cut_layers


class Result(_Model):
    """A whole run. ``points`` are its load levels, in the order measured."""

    schema_version: str = SCHEMA_VERSION
    run_id: str
    created: str  # ISO 8601, UTC
    status: Status
    command: list[str] = []
    seed: int | None = None
    environment: Environment = Environment()
    target: Target
    workload: dict[str, Any] = {}
    warmup: dict[str, Any] = {}
    slo: dict[str, float] = {}  # ttft_ms, itl_ms, tpot_ms, e2e_ms
    points: list[LoadPoint] = []
    knee: int | None = None  # index of the point at the knee of the frontier
    search: dict[str, Any] | None = None  # highest load that meets the SLO, with its interval
    warnings: list[str] = []
    definitions: dict[str, str] = {}
    records_file: str | None = RECORDS_FILE
    events_file: str | None = None
    extra: dict[str, Any] = Field(default_factory=dict)


def write_json_atomic(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    temporary = path.with_name(path.name + ".partial")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def save_result(result: Result, directory: Path) -> Path:
    """Write ``result.json`` into ``directory`` and return its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "result.json"
    write_json_atomic(path, result.model_dump_json(indent=1) + "\n")
    return path


def load_result(path: Path) -> Result:
    """Read a result file or the folder that holds one. Raises ``InputError`` with the reason."""
    file = path / "result.json" if path.is_dir() else path
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read result {file}: {error.strerror}", "Give a result.json or its folder") from None
    except UnicodeDecodeError:
        raise InputError(f"{file} is not a text file", "Give the result.json that sits bench wrote") from None
    try:
        data = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{file} is not valid JSON: {error}", "Run the benchmark again") from None
    if not isinstance(data, dict) or "schema_version" not in data:
        raise InputError(f"{file} is not a SITS result", "Give the result.json that sits bench wrote")
    major = str(data["schema_version"]).split(".")[0]
    if major != SCHEMA_VERSION.split(".")[0]:
        raise InputError(
            f"{file} has schema version {data['schema_version']}, this SITS reads {SCHEMA_VERSION}",
            "Use the SITS version that wrote it",
        )
    try:
        return Result.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{file} does not fit the result schema at {where}: {first['msg']}") from None


def load_records(result: Result, path: Path) -> list[RequestRecord]:
    """The per-request records of a loaded result; ``path`` is where the result was read from."""
    if result.records_file is None:
        raise InputError(f"{path} names no records file")
    folder = path if path.is_dir() else path.parent
    return read_records(folder / Path(result.records_file).name)
