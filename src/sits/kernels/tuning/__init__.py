"""Which implementation is fastest for a batch: a measured table per card, shipped and re-tunable.

A table is JSON: ``{"card": ..., "measured": {...}, "choices": {operator: {shape: [[max_rows, name], ...]}}}``.
A shape is ``"<out>x<in>"`` or ``"*"``; entries are in order of ``max_rows`` (null = no limit). A table written by
``sits kernels tune`` lies in the cache folder and comes before the shipped one.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

Steps = list[tuple[int | None, str]]


def file_name(card: str) -> str:
    """``NVIDIA H200`` -> ``nvidia_h200.json``."""
    return re.sub(r"[^a-z0-9]+", "_", card.lower()).strip("_") + ".json"


def user_file(card: str) -> Path:
    """Where ``sits kernels tune`` writes."""
    root = os.environ.get("SITS_CACHE") or os.path.join(os.path.expanduser("~"), ".cache", "sits")
    return Path(root) / "tuning" / file_name(card)


@cache
def load_table(card: str) -> dict[str, dict[str, Steps]]:
    """Choices for a card: its own re-tuned table, else the shipped one, else nothing. Damaged files are ignored."""
    for file in (user_file(card), Path(__file__).parent / file_name(card)):
        try:
            return json.loads(file.read_text())["choices"]
        except (OSError, ValueError, KeyError):
            continue
    return {}


def ranking(operator: str, card: str, rows: int, shape: tuple[int, int]) -> list[str]:
    """Names to try for ``rows`` activations, best first: the measured choice, then those of neighbouring sizes."""
    table = load_table(card).get(operator, {})
    steps = table.get(f"{shape[0]}x{shape[1]}") or table.get("*") or []
    at = next((i for i, (limit, _) in enumerate(steps) if limit is None or rows <= limit), len(steps) - 1)
    order = sorted(range(len(steps)), key=lambda i: abs(i - at))
    return list(dict.fromkeys(steps[i][1] for i in order))


def choose(
    operator: str, card: str, rows: int, shape: tuple[int, int], available: Collection[str], default: str
) -> str:
    """The best available implementation; ``default`` when the table names none of them."""
    return next((name for name in ranking(operator, card, rows, shape) if name in available), default)


def steps_from_times(times: dict[int, dict[str, float]]) -> list[list[Any]]:
    """``{rows: {name: milliseconds}}`` -> steps; a name holds up to the largest measured batch it wins at."""
    steps: list[list[Any]] = []
    for rows in sorted(times):
        name = min(times[rows], key=lambda key: times[rows][key])
        if steps and steps[-1][1] == name:
            steps[-1][0] = rows
        else:
            steps.append([rows, name])
    if steps:
        steps[-1][0] = None
    return steps
