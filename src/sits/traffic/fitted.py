"""The fitted parameters that ship with the package, and which of them to use for a card."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from sits.traffic.cards import HardwareCard
from sits.traffic.predict import CPU_EFFICIENCY, Efficiency, scaled

FILE = Path(__file__).with_name("fitted.json")
_ORDER = ("sits", "vllm", "runner")  # our own engine first: that is what a user runs here


@functools.cache
def entries() -> dict[str, Any]:
    """``card/engine`` -> fit with provenance; empty when nothing has been fitted."""
    try:
        document = json.loads(FILE.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def load_efficiency(entry: dict[str, Any]) -> Efficiency:
    """An ``efficiency`` object of the file as a dataclass."""
    return Efficiency(**entry["efficiency"])


def efficiency_for(card: HardwareCard, engine: str | None = None) -> Efficiency:
    """The fit of this card (and engine); another GPU borrows the shares of a fitted one and says so."""
    if card.vendor in ("cpu", "arm"):
        return CPU_EFFICIENCY
    table = entries()
    wanted = [engine] if engine else list(_ORDER)
    for name in wanted:
        for key, entry in table.items():
            if key.startswith(f"{card.name}/{name}"):
                return load_efficiency(entry)
    for name in wanted:
        for key, entry in table.items():
            if key.split("/", 1)[1].startswith(name):
                fit = load_efficiency(entry)
                return scaled(fit, f"shares borrowed from {key} ({entry['kind']}), peaks of {card.name}")
    return Efficiency()
