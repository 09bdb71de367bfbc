"""Measured steps from ``benchmarks/results/*.json``, in the form a prediction can be held against.

A result file is ``{name, card, driver, versions, command, date, rows: [{case, unit, ours, peer, peer_name}]}`` with
cases like ``llama3-70b/int4-g32/b1/ctx512``. Rows that are not whole steps in milliseconds are skipped.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sits.errors import InputError
from sits.traffic.model_shape import ModelShape, cut_to, get_shape
from sits.traffic.operators import Step
from sits.traffic.precision import StepPrecision, weight_bytes

_BATCH, _CONTEXT, _PREFILL = (
    re.compile(r"b(\d+)"),
    re.compile(r"(?:ctx|context)[-_]?(\d+)"),
    re.compile(r"prefill[-_]?(\d+)?"),
)
_KV = re.compile(r"kv[-_]?(bf16|fp16|fp8|int8)")


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One measured step time: which engine on which card took how many ms, and where that is written."""

    case: str
    engine: str  # "sits" or the peer's name
    card: str
    ms: float
    shape: ModelShape
    step: Step
    source: str  # file name
    graphs: bool = True

    @property
    def dense(self) -> bool:
        return self.shape.experts == 0

    @property
    def key(self) -> str:
        return f"{self.card}/{self.engine}"


def parse_case(case: str) -> tuple[ModelShape, Step] | None:
    """``model/precision/b1/ctx512`` or ``model/precision/prefill8192`` -> shapes and step; None for anything else.

    ``prefillN`` is what the benchmarks run under that name: sixteen prompts of N/16 tokens in one step; with ``bB``,
    B prompts.
    """
    parts = case.strip().lower().split("/")
    if len(parts) < 3:
        return None
    try:
        shape = get_shape(parts[0])
    except InputError:
        return None
    weights, kv = "bf16", "bf16"
    batch = context = chunk = 0
    prefill = False
    for part in parts[1:]:
        if match := _BATCH.fullmatch(part):
            batch = int(match[1])
        elif match := _CONTEXT.fullmatch(part):
            context = int(match[1])
        elif match := _PREFILL.fullmatch(part):
            prefill, chunk = True, int(match[1] or 0)
        elif match := _KV.fullmatch(part):
            kv = match[1]
        elif prefill and part.isdigit():
            chunk = int(part)
        else:
            try:
                weight_bytes(part)
                weights = part
            except InputError:
                return None  # an ablation or a unit this reader does not know
    precision = StepPrecision(weights, kv, "fp32" if weights == "fp32" else "bf16")
    if prefill and chunk:
        prompts = batch or 16
        return shape, Step((), ((max(1, chunk // prompts), 0),) * prompts, precision)
    if batch and not prefill:
        return shape, Step.decode(batch, context, precision)
    return None


def read_result_file(path: Path) -> list[MeasuredStep]:
    """Every whole-step row of one file, ours and the peer's. Raises ``InputError`` when it is not readable JSON."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the result file {path}: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("rows"), list):
        return []
    return list(_rows(document, path.name))


def _rows(document: dict[str, Any], source: str) -> Iterable[MeasuredStep]:
    card = _card_name(document.get("card"))
    for row in document["rows"]:
        if not isinstance(row, dict) or card is None:
            continue
        if isinstance(row.get("ms_per_step"), (int, float)) and str(row.get("case", "")).startswith("traffic/"):
            yield from _runner_row(row, card, source)
            continue
        scale = {"ms": 1.0, "ms/step": 1.0, "s": 1000.0}.get(str(row.get("unit", "ms")))
        parsed = parse_case(str(row.get("case", "")))
        if scale is None or parsed is None:
            continue
        shape, step = parsed
        graphs = row.get("graphs", True) is not False
        for engine, key in (
            ("sits", "ours"),
            (str(row.get("peer_name") or "").strip().lower().replace(" ", "-"), "peer"),
        ):
            value = row.get(key)
            if engine and isinstance(value, (int, float)) and value > 0:
                yield MeasuredStep(str(row["case"]), engine, card, float(value) * scale, shape, step, source, graphs)


def _runner_row(row: dict[str, Any], card: str, source: str) -> Iterable[MeasuredStep]:
    """Steps of benchmarks/gpu/traffic.py: the runner alone, no scheduler; the model may be cut to fewer layers."""
    parsed = parse_case(str(row["case"]).removeprefix("traffic/"))
    if parsed is not None:
        shape, step = parsed
        layers = int(row.get("layers") or shape.layers)
        shape = cut_to(shape, layers) if layers < shape.layers else shape
        yield MeasuredStep(str(row["case"]), "runner", card, float(row["ms_per_step"]), shape, step, source)


def _card_name(value: Any) -> str | None:
    from sits.traffic.cards import find_card

    text = value.get("name") if isinstance(value, dict) else value
    found = find_card(str(text)) if text else None
    return found.name if found else None


def read_results(folder: Path) -> list[MeasuredStep]:
    """All whole-step rows under a folder of result files; files of another form are passed over."""
    found: list[MeasuredStep] = []
    for path in sorted(folder.rglob("*.json")):
        try:
            found.extend(read_result_file(path))
        except InputError:
            continue
    return found


def fingerprint(path: Path) -> str:
    """First 16 hex digits of a file's SHA-256, for provenance."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
