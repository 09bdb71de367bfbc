"""Bytes per stored element of the precisions a step can use, and the math type each runs at."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sits.errors import InputError

_PLAIN = {
    "fp32": 4.0, "float32": 4.0, "fp16": 2.0, "float16": 2.0, "bf16": 2.0, "bfloat16": 2.0, "dense": 2.0,
    "fp8": 1.0, "fp8_e4m3": 1.0, "int8": 1.0,
}  # fmt: skip
_GGUF = {"q4_0": (4, 32, 16), "q4_1": (4, 32, 32), "q8_0": (8, 32, 16)}  # bits, group, bits per group
_ALIASES = {"w4a16": "int4-g128", "int4": "int4-g32", "w4g32": "int4-g32"}


def weight_bytes(precision: str) -> float:
    """Bytes per weight with its share of 16-bit scales and zeros: ``int4-g32`` is 0.5 + 2/32 = 0.5625."""
    name = _ALIASES.get(precision.strip().lower(), precision.strip().lower())
    if name in _PLAIN:
        return _PLAIN[name]
    if name in _GGUF:
        bits, group, extra = _GGUF[name]
        return (bits + extra / group) / 8
    match = re.fullmatch(r"int(4|8)-g(\d+)(-asym|-float)?", name)
    if match is None or int(match[2]) < 1:
        raise InputError(
            f"unknown weight precision {precision!r}", "Use bf16, fp16, fp32, fp8, int8, int4-g32 (g64, g128, -asym)"
        )
    bits, group = int(match[1]), int(match[2])
    zero_bits = {None: 0, "-asym": bits, "-float": 16}[match[3]]
    return bits / 8 + (16 + zero_bits) / 8 / group


def element_bytes(name: str) -> float:
    """Bytes of one KV or activation element; a quantised KV adds a 16-bit scale per token and head elsewhere."""
    size = _PLAIN.get(name.strip().lower())
    if size is None:
        raise InputError(f"unknown element type {name!r}", f"Use one of {', '.join(_PLAIN)}")
    return size


@dataclass(frozen=True, slots=True)
class StepPrecision:
    """How each part of a step is stored. ``head`` is the output head, which most checkpoints keep at 16 bits."""

    weights: str = "bf16"
    kv: str = "bf16"
    activations: str = "bf16"
    head: str | None = None

    @property
    def weight_bytes(self) -> float:
        return weight_bytes(self.weights)

    @property
    def head_bytes(self) -> float:
        return weight_bytes(self.head or self.activations)

    @property
    def kv_bytes(self) -> float:
        return element_bytes(self.kv)

    @property
    def activation_bytes(self) -> float:
        return element_bytes(self.activations)

    @property
    def family(self) -> str:
        """Which fitted parameters apply to the weights: int4, fp8, int8, fp32 or bf16 (all 16-bit types)."""
        return family_of(self.weights)


def family_of(precision: str) -> str:
    """``int4-g32`` -> int4, ``fp16`` -> bf16, ``q4_1`` -> int4, ..."""
    name = _ALIASES.get(precision.strip().lower(), precision.strip().lower())
    for start, family in (("int4", "int4"), ("q4", "int4"), ("int8", "int8"), ("q8", "int8"), ("fp8", "fp8")):
        if name.startswith(start):
            return family
    return "fp32" if name in ("fp32", "float32") else "bf16"


def math_of(family: str) -> str:
    """The math a weight family runs at: int4 and int8 weights are widened to 16 bits, fp8 stays."""
    return {"fp8": "fp8", "fp32": "fp32"}.get(family, "bf16")
