"""Warm-up before anything is measured: prompts of growing length, one after the other."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from sits.bench.client import Client, RequestSpec
from sits.bench.workload import SyntheticWorkload
from sits.spec.records import CANCELLED

PRESETS: dict[str, tuple[int, ...]] = {
    "article": (512,) * 2 + (2048,) * 3 + (8192,) * 5,
    "ladder": (512, 1024, 2048, 4096, 8192),
    "none": (),
}
OUTPUT_TOKENS = 4  # enough to reach the decode path


@dataclass(slots=True)
class WarmupReport:
    """What was run and what was left out, for the result."""

    preset: str
    lengths: list[int] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    failed: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {
            "preset": self.preset,
            "lengths": self.lengths,
            "skipped": self.skipped,
            "failed": self.failed,
            "seconds": round(self.seconds, 3),
            "notes": self.notes,
        }


def planned_lengths(preset: str, max_context: int | None) -> list[int]:
    """Prompt lengths of a preset, clipped to the context; lengths that clip to the same value run once."""
    lengths = list(PRESETS[preset])
    if max_context is None:
        return lengths
    longest = max(1, max_context - OUTPUT_TOKENS)
    kept = [length for length in lengths if length <= longest]
    return [*kept, longest] if len(kept) < len(lengths) and longest not in kept else kept


async def warm_up(
    client: Client,
    preset: str,
    workload: SyntheticWorkload,
    *,
    max_context: int | None = None,
    longest: int | None = None,
    budget_s: float | None = None,
) -> WarmupReport:
    """Send the prompts of ``preset`` one at a time.

    ``longest`` leaves out lengths far beyond anything the run will send. With ``budget_s`` a length that would
    likely go over it (by the speed of the ones before) is left out; what is left out is reported. Cancelling the
    task ends it with the request under way.
    """
    report = WarmupReport(preset)
    start = time.monotonic()
    per_token = 0.0
    for index, length in enumerate(planned_lengths(preset, max_context)):
        spent = time.monotonic() - start
        too_long = longest is not None and length > longest and index > 0
        if too_long or (budget_s is not None and index > 0 and spent + per_token * length > budget_s):
            report.skipped.append(length)
            continue
        began = time.monotonic_ns()
        record = await client.send(warm_request(workload, index, length), began)
        if record.status == CANCELLED:  # clients return what had arrived instead of raising
            break
        per_token = max(per_token, (time.monotonic_ns() - began) / 1e9 / length)
        report.lengths.append(length)
        report.failed += not record.ok
        if not record.ok and not report.notes:
            report.notes.append(f"warm-up request of {length} tokens failed: {record.error or record.error_kind}")
    report.seconds = time.monotonic() - start
    if report.skipped:
        report.notes.append(f"warm-up left out {len(report.skipped)} of its prompts (too long for this run)")
    return report


def warm_request(workload: SyntheticWorkload, index: int, length: int) -> RequestSpec:
    """A warm-up request of exactly ``length`` prompt tokens, unlike any other."""
    spec = workload.exact(length, index, "warmup")
    spec.max_tokens = OUTPUT_TOKENS
    return spec
