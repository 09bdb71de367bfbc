"""An INT4 weight as the model multiplies by it: codes until a kernel has packed them into its own order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from sits.quant.int4 import Int4Codes, ZeroKind, row_ranges, spread
from sits.quant.linear import LinearWeight
from sits.quant.packing import pack_rows, unpack_rows

ROW_ALIGNMENT = 16  # bytes: any row can be read with 128-bit loads


@dataclass(frozen=True, slots=True)
class PackedInt4:
    """The portable runtime form: eight codes a word along K, every row on a 16-byte boundary."""

    words: torch.Tensor  # [N, W] int32, W * 4 a multiple of 16; tail codes 0
    scale: torch.Tensor  # [N, G] float16 where exact, else float32
    minimum: torch.Tensor  # [N, G] likewise
    columns: int
    group_size: int

    @classmethod
    def from_codes(cls, codes: Int4Codes) -> PackedInt4:
        """Exact: ``to_codes`` gives the same numbers back."""
        words = pack_rows(codes.q, ROW_ALIGNMENT)
        return cls(words, _narrow(codes.scale), _narrow(codes.minimum), codes.shape[1], codes.group_size)

    def to_codes(self) -> Int4Codes:
        """Back to the neutral form."""
        q = unpack_rows(self.words, self.columns)
        return Int4Codes(q, self.scale.float(), self.minimum.float(), self.group_size)

    def tensors(self) -> list[torch.Tensor]:
        """For the memory count."""
        return [self.words, self.scale, self.minimum]

    def dense_rows(self, start: int, stop: int, dtype: torch.dtype) -> torch.Tensor:
        """Rows start..stop as a dense [stop - start, K] of ``dtype``."""
        q = unpack_rows(self.words[start:stop], self.columns).float()
        scale = spread(self.scale[start:stop].float(), self.columns, self.group_size)
        return (q * scale + spread(self.minimum[start:stop].float(), self.columns, self.group_size)).to(dtype)

    def row_ranges(self) -> list[tuple[int, int]]:
        """Row ranges whose dense form stays small."""
        return list(row_ranges(self.words.shape[0], self.columns))


class Int4Weight(LinearWeight):
    """``codes`` is None once a kernel's ``prepare`` has moved them into ``packed``, which must offer ``tensors()``
    and ``to_codes()`` (``Int4Codes``, or its fields in order)."""

    operator = "linear_int4"

    def __init__(self, codes: Int4Codes, bias: torch.Tensor | None = None):
        super().__init__(codes.shape[0], codes.shape[1], bias)
        self.codes: Int4Codes | None = codes
        self.group_size = codes.group_size
        self.zero: ZeroKind = codes.zero_kind()
        self._device = codes.q.device

    @classmethod
    def from_dense(cls, weight: torch.Tensor, bias: torch.Tensor | None = None, **options: Any) -> Int4Weight:
        """Options are those of ``Int4Codes.from_dense`` (group_size, zero, scale_dtype)."""
        return cls(Int4Codes.from_dense(weight, **options), bias)

    @property
    def precision(self) -> str:
        suffix = {"symmetric": "", "integer": "-asym", "float": "-float"}[self.zero]
        return f"int4-g{self.group_size}{suffix}"

    @property
    def device(self) -> torch.device:
        return self._device

    def tensors(self) -> list[torch.Tensor]:
        held = [] if self.codes is None else [self.codes.q, self.codes.scale, self.codes.minimum]
        packed = [] if self.packed is None else self.packed.tensors()
        return [*held, *packed, *([] if self.bias is None else [self.bias])]

    def to_codes(self) -> Int4Codes:
        """The neutral form, whatever a kernel has made of it."""
        if self.codes is not None:
            return self.codes
        codes = self.packed.to_codes()
        return codes if isinstance(codes, Int4Codes) else Int4Codes(*codes)

    def dequantize(self) -> torch.Tensor:
        return self.to_codes().dequantize()

    def properties(self) -> dict[str, Any]:
        return {**super().properties(), "group_size": self.group_size, "zero": self.zero}

    def pack_portable(self) -> None:
        """Replace the codes by ``PackedInt4`` (the reference kernel's layout)."""
        if self.codes is not None:
            self.packed, self.codes = PackedInt4.from_codes(self.codes), None


def _narrow(values: torch.Tensor) -> torch.Tensor:
    half = values.half()
    return half if torch.equal(half.float(), values) else values
