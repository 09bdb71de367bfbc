"""Names of weight precisions: ``dense``, ``fp8``, ``int4-g32`` (symmetric), ``int4-g32-asym``, ``int4-g32-float``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from sits.errors import InputError

GROUP_SIZES = (32, 64, 128)
Kind = Literal["dense", "int4", "fp8"]
_SUFFIXES = {"": "symmetric", "-asym": "integer", "-float": "float"}


@dataclass(frozen=True)
class Precision:
    """How one weight is stored. ``str()`` gives the name ``parse_precision`` reads."""

    kind: Kind
    group_size: int = 0  # int4 only
    zero: Literal["symmetric", "integer", "float"] = "symmetric"  # int4 only; see ``int4.Int4Codes.from_dense``

    def __str__(self) -> str:
        if self.kind != "int4":
            return self.kind
        suffix = next(text for text, zero in _SUFFIXES.items() if zero == self.zero)
        return f"int4-g{self.group_size}{suffix}"

    def bits_per_weight(self, columns: int) -> float:
        """Stored bits per weight of a row of ``columns``, 16-bit scales and 4- or 16-bit zeros included."""
        if self.kind == "dense":
            return 16.0
        if self.kind == "fp8":
            return 8.0 + 32.0 / columns
        per_group = {"symmetric": 16.0, "integer": 20.0, "float": 32.0}[self.zero]
        return 4.0 + per_group * -(-columns // self.group_size) / columns


DENSE = Precision("dense")
FP8 = Precision("fp8")


def precision_names() -> list[str]:
    """Every name ``parse_precision`` takes."""
    return ["dense", "fp8", *(f"int4-g{size}{suffix}" for size in GROUP_SIZES for suffix in _SUFFIXES)]


def parse_precision(text: str) -> Precision:
    """The precision of a name such as ``int4-g32``. Raises ``InputError`` that lists the known names."""
    name = text.strip().lower()
    if name in ("dense", "fp8"):
        return DENSE if name == "dense" else FP8
    match = re.fullmatch(r"int4-g(\d+)(-asym|-float)?", name)
    if match is None or int(match[1]) not in GROUP_SIZES:
        raise InputError(f"unknown precision {text!r}", f"Choose one of {', '.join(precision_names())}")
    return Precision("int4", int(match[1]), _SUFFIXES[match[2] or ""])  # type: ignore[arg-type]
