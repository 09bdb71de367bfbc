"""A result with what lies beside it: per-request records and the event log, read once, when first asked for."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from sits.spec.clauses import ClauseReport, judge_log
from sits.spec.columns import PointColumns, read_columns
from sits.spec.records import iter_records
from sits.spec.result import LoadPoint, Result, load_result


class LoadedResult:
    """A result file and its side files. Reading raises ``InputError`` for whatever is missing or damaged."""

    def __init__(self, path: Path, shown: str | None = None):
        self.file = path / "result.json" if path.is_dir() else path
        self.shown = shown or str(path)
        self.result: Result = load_result(path)

    @cached_property
    def columns(self) -> dict[int, PointColumns] | None:
        """Per-request columns by load point; ``None`` when the run kept no records."""
        name = self.result.records_file
        return None if name is None else read_columns(iter_records(self._beside(name)))

    @cached_property
    def clauses(self) -> ClauseReport | None:
        """The P3197 clauses over the event log; ``None`` when the run left none."""
        name = self.result.events_file
        return None if name is None else judge_log(self._beside(name))

    def point_columns(self, point: LoadPoint) -> PointColumns | None:
        columns = self.columns
        return None if columns is None else columns.get(point.index)

    def _beside(self, name: str) -> Path:
        # Only the name: a result must not be able to point at a file elsewhere.
        return self.file.parent / Path(name).name
