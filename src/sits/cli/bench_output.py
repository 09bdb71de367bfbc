"""Writes what a benchmark measured. A full disk costs as little as possible: the figures come before everything else.

In the wanted folder: records, events, report, then ``result.json`` (last, so that it never names a missing file).
What cannot be written is left out and named; if not even the result fits, a temporary folder takes it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sits.bench.benchmark import BenchOutcome
from sits.spec.records import write_records
from sits.spec.result import EVENTS_FILE, RECORDS_FILE, Result, save_result, write_json_atomic


@dataclass(slots=True)
class Written:
    """What is where, and what could not be written."""

    files: dict[str, Path] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def write_outputs(outcome: BenchOutcome, client: Any, directory: Path) -> Written:
    """Write everything that can be written; never raises for a full or vanished disk."""
    written = Written()
    if not _write_into(directory, outcome, client, written):
        fallback = Path(tempfile.mkdtemp(prefix="sits-")) if _can_make_folder() else None
        if fallback is None or not _write_into(fallback, outcome, client, written):
            written.faults.append("no result file could be written: only the scorecard above is left")
        else:
            written.faults.append(f"the result is in {fallback} instead")
    return written


def _write_into(directory: Path, outcome: BenchOutcome, client: Any, written: Written) -> bool:
    result = outcome.result
    write_events = getattr(client, "write_events", None)

    def attempt(what: str, work: Callable[[], object]) -> bool:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            work()
        except OSError as error:
            written.faults.append(f"cannot write {what} into {directory}: {error.strerror or error}")
            return False
        return True

    records = directory / RECORDS_FILE
    kept = attempt("the records", lambda: write_records(records, outcome.records, {"run_id": result.run_id}))
    result.records_file = RECORDS_FILE if kept else None
    if write_events is not None and attempt("the events", lambda: write_events(directory / EVENTS_FILE)):
        result.events_file = EVENTS_FILE
    report = directory / "report.html"
    reported = attempt("the report", lambda: write_report(result, outcome.records, report))
    if not attempt("the result", lambda: save_result(result, directory)):
        return False
    written.files["Result"] = directory / "result.json"
    if reported:
        written.files["Report"] = report
    return True


def _can_make_folder() -> bool:
    try:
        Path(tempfile.mkdtemp(prefix="sits-")).rmdir()
    except OSError:
        return False
    return True


def write_report(result: Result, records: Any, path: Path) -> None:
    """The HTML report of one result."""
    from sits.report.html import render_report

    write_json_atomic(path, render_report([(result, records)]))
