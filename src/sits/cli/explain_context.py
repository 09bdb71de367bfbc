"""What a result says of its model, device and engine, in the form the traffic model takes. Options override it."""

from __future__ import annotations

import hashlib
import json
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sits.errors import InputError
from sits.spec.result import LoadPoint, Result
from sits.traffic.cards import HardwareCard, find_card, get_card
from sits.traffic.explain_run import RunContext, precision_of
from sits.traffic.model_shape import ModelShape, get_shape


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the user said in place of what the result says."""

    model: str | None = None
    card: str | None = None
    bandwidth: float | None = None  # GB/s a read reaches
    weights: str | None = None
    kv: str | None = None
    devices: int = 1
    no_graphs: bool = False


def shape_of(name: str) -> ModelShape:
    """Shapes of a preset, or of a folder (or file) with a Hugging Face ``config.json``."""
    path = Path(name)
    config = path / "config.json" if path.is_dir() else path
    if not config.is_file() or config.suffix != ".json":
        return get_shape(name)
    try:
        card = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {config}: {error}") from None
    if not isinstance(card, dict):
        raise InputError(f"{config} does not hold a JSON object")
    return ModelShape.from_card(card.get("text_config") or card, config.parent.name)


def with_bandwidth(card: HardwareCard, gbps: float | None) -> HardwareCard:
    """The card with a read bandwidth known better than the table's."""
    return card if gbps is None else replace(card, read_gbps=gbps, uncertain=None)


def window_of(point: LoadPoint) -> tuple[int, int] | None:
    """Monotonic ns of the measured window, where the point has it."""
    if point.started_ns <= 0 or point.duration_s <= 0:
        return None
    return point.started_ns, point.started_ns + int(point.duration_s * 1e9)


def context_of(result: Result, overrides: Overrides | None = None) -> tuple[RunContext, list[str]]:
    """Shapes, card, precision and engine settings of a run, with notes; what is unknown stays None."""
    told = overrides or Overrides()
    stored = result.target.card
    notes: list[str] = []
    shape = None
    if told.model is not None:
        shape = shape_of(told.model)
    else:
        try:
            shape = ModelShape.from_card(stored, result.target.name)
        except InputError as error:
            if stored.get("layers"):
                notes.append(error.message)
    precision = precision_of(stored)
    if told.weights:
        precision = replace(precision, weights=told.weights)
    if told.kv:
        precision = replace(precision, kv=told.kv)
    card, more = _card_of(result, told)
    found = stored.get("engine")
    engine: dict[str, Any] = found if isinstance(found, dict) else {}
    graphs = engine.get("cuda_graphs")
    if card is not None and card.vendor in ("cpu", "arm"):
        graphs = None  # there are none on a CPU: nothing to blame
    context = RunContext(
        shape, card, precision, devices=told.devices,
        graphs=False if told.no_graphs else graphs if isinstance(graphs, bool) else None,
        chunk=engine.get("max_step_tokens"), kv_blocks=engine.get("kv_blocks"),
        vision_tokens=int(result.workload.get("vision_tokens") or 0),
    )  # fmt: skip
    return context, notes + more


def _card_of(result: Result, told: Overrides) -> tuple[HardwareCard | None, list[str]]:
    if told.card is not None:
        return with_bandwidth(get_card(told.card), told.bandwidth), []
    engine = result.target.card.get("engine")
    device = str((engine or {}).get("device") or result.target.card.get("device") or "")
    gpus = result.environment.hardware.get("gpus") or []
    if device.startswith("cpu"):
        return _this_cpu(result, told.bandwidth)
    if result.target.kind == "embedded" and gpus and isinstance(gpus[0], dict):
        card = find_card(str(gpus[0].get("name", "")))
        return (None if card is None else with_bandwidth(card, told.bandwidth)), []
    return None, []


def _this_cpu(result: Result, gbps: float | None) -> tuple[HardwareCard, list[str]]:
    """The CPU card with a measured read bandwidth: the one of the run, else of this machine if it is the same."""
    card = get_card("CPU")
    if gbps is not None:
        return with_bandwidth(card, gbps), []
    measured = [p.server["cpu_read_gbps"] for p in result.points if p.server.get("cpu_read_gbps")]
    if measured:
        return with_bandwidth(card, float(measured[0])), [
            f"read bandwidth of this CPU, measured before the run: {float(measured[0]):.1f} GB/s"
        ]
    here = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:12]
    if result.environment.hostname_hash != here:
        return card, ["the run was made on another machine: its read bandwidth is unknown, give --bandwidth"]
    from sits.telemetry.cpu_peak import measure_read_peak

    best = measure_read_peak()["best_gbps"]
    return with_bandwidth(card, best), [f"read bandwidth of this CPU measured just now: {best:.1f} GB/s"]
