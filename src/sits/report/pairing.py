"""Which load point belongs to which, and whether two runs may be compared at all.

A latency is a fact about a model on a machine under a load. When one of the three differs, the ratio of two latencies
says nothing about the change that is being judged; so drift makes a comparison invalid, not green.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sits.spec.result import LoadPoint, Result

# Kinds of drift; a user may allow some of them by name.
HARDWARE = ("gpu", "cpu", "cores", "memory")
SOFTWARE = ("driver", "os", "software")
WORK = ("model", "dtype", "workload", "target", "warmup")
KINDS = (*HARDWARE, *SOFTWARE, *WORK)
# What may differ without making latencies incomparable: it is often the very thing that is judged.
INFORMATIVE = ("os", "software", "memory")


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not the same on both sides. ``breaks`` says whether it makes a comparison invalid."""

    kind: str
    name: str
    baseline: str
    candidate: str
    breaks: bool

    def __str__(self) -> str:
        return f"{self.name}: {self.baseline} -> {self.candidate}"


def matching_point(point: LoadPoint, result: Result) -> LoadPoint | None:
    """The load point of ``result`` under the same load: mode, concurrency or rate, arrival process."""
    for other in result.points:
        same = (other.mode, other.arrival) == (point.mode, point.arrival)
        if same and _close(other.concurrency, point.concurrency) and _close(other.rate, point.rate):
            return other
    return None


def _close(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return a is b
    return abs(a - b) <= 0.01 * max(abs(a), abs(b))


def differences(baseline: Result, candidate: Result, allow: tuple[str, ...] | list[str] = ()) -> list[Difference]:
    """Everything that differs between two runs and might explain a difference in their figures."""
    found: list[Difference] = []

    def note(kind: str, name: str, old: Any, new: Any) -> None:
        if old != new:
            breaks = kind not in INFORMATIVE and kind not in allow
            found.append(Difference(kind, name, _text(old), _text(new), breaks))

    old, new = baseline.environment, candidate.environment
    for field in ("name", "memory_gb"):
        note("gpu", f"GPU {field}", _gpus(old.hardware, field), _gpus(new.hardware, field))
    note("driver", "GPU driver", _gpus(old.hardware, "driver"), _gpus(new.hardware, "driver"))
    note("cpu", "CPU", old.hardware.get("cpu"), new.hardware.get("cpu"))
    note("cores", "cores", old.hardware.get("cores"), new.hardware.get("cores"))
    note("memory", "memory", old.hardware.get("memory_gb"), new.hardware.get("memory_gb"))
    note("os", "operating system", old.os, new.os)
    for name in sorted(set(old.software) | set(new.software)):
        note("software", name, old.software.get(name), new.software.get(name))
    note("target", "target", baseline.target.kind, candidate.target.kind)
    note("target", "API", baseline.target.api, candidate.target.api)
    note("model", "model", *_models(baseline, candidate))
    for key in ("layers", "cut_layers", "parameters"):
        note("model", f"model {key}", baseline.target.card.get(key), candidate.target.card.get(key))
    note("dtype", "dtype", baseline.target.card.get("dtype"), candidate.target.card.get("dtype"))
    for key in sorted(set(baseline.workload) | set(candidate.workload)):
        note("workload", f"workload {key}", baseline.workload.get(key), candidate.workload.get(key))
    note("warmup", "warm-up", baseline.warmup.get("preset"), candidate.warmup.get("preset"))
    return found


def _models(baseline: Result, candidate: Result) -> tuple[Any, Any]:
    """The hash of the weights where both sides know it, else the name."""
    hashes = [side.target.card.get("sha256") for side in (baseline, candidate)]
    if all(hashes):
        return hashes[0], hashes[1]
    return baseline.target.name, candidate.target.name


def _gpus(hardware: dict[str, Any], field: str) -> list[Any]:
    gpus = hardware.get("gpus")
    if not isinstance(gpus, list):
        return []
    return [gpu.get(field) if isinstance(gpu, dict) else gpu for gpu in gpus]


def _text(value: Any) -> str:
    if value is None or value == "" or value == []:
        return "none"
    if isinstance(value, list):
        return ", ".join(_text(item) for item in value)
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
