"""INT4 weights with one scale and one minimum per group: the neutral form between checkpoints and kernels.

``w[n, k] = q[n, k] * scale[n, k // g] + minimum[n, k // g]`` in float32. Every 4-bit format the toolkit reads maps
onto this without loss: symmetric (minimum = -8 scale), integer zero point (minimum = -zero scale), and the float
minimum of GGUF Q4_1 and HQQ. With scales of FP16 or BF16 the product and, for integer zeros, the sum are exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from sits.errors import InputError
from sits.kernels.registry import select

ZeroKind = Literal["symmetric", "integer", "float"]
ZERO_KINDS: tuple[ZeroKind, ...] = ("symmetric", "integer", "float")
_CHUNK_ELEMENTS = 1 << 24  # rows are quantised in pieces: float32 temporaries stay near 200 MB for any weight


@dataclass(frozen=True, slots=True)
class Int4Codes:
    """A weight of N rows (outputs) and K columns (inputs) in groups along K; the last group may be short."""

    q: torch.Tensor  # [N, K] uint8, 0..15
    scale: torch.Tensor  # [N, G] float32, G = ceil(K / group_size)
    minimum: torch.Tensor  # [N, G] float32, the value of code 0
    group_size: int

    def __post_init__(self) -> None:
        rows, columns = self.q.shape
        groups = (rows, group_count(columns, self.group_size))
        if self.q.dtype != torch.uint8:
            raise ValueError(f"codes must be uint8, not {self.q.dtype}")
        for name, tensor in (("scale", self.scale), ("minimum", self.minimum)):
            if tuple(tensor.shape) != groups or tensor.dtype != torch.float32:
                raise InputError(
                    f"{name} must be float32 of shape {list(groups)} for a [{rows}, {columns}] weight in groups of "
                    f"{self.group_size}, not {tensor.dtype} of {list(tensor.shape)}"
                )

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return self.q.shape[0], self.q.shape[1]

    @classmethod
    def from_dense(
        cls,
        weight: torch.Tensor,
        group_size: int = 32,
        zero: ZeroKind = "symmetric",
        scale_dtype: torch.dtype = torch.float16,
    ) -> Int4Codes:
        """Round weight[N, K] to the nearest code.

        ``zero``: ``symmetric`` spans [-8, 7] x absmax / 7.5; ``integer`` spans [min(w, 0), max(w, 0)] with a zero
        point of 0..15; ``float`` spans [min, max] with a minimum of ``scale_dtype``. Scales are rounded to
        ``scale_dtype`` (what a checkpoint stores) before the codes are chosen. Raises ``InputError`` for NaN, Inf,
        or scales that overflow ``scale_dtype``.
        """
        on_device = _rounded_by_kernel(weight, group_size, zero, scale_dtype)
        if on_device is not None:
            return on_device
        parts = [round_to_codes(rows, group_size, zero, scale_dtype) for rows in row_chunks(weight)]
        return cls.cat(parts)

    @classmethod
    def from_zero_points(
        cls, q: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | float, group_size: int
    ) -> Int4Codes:
        """q[N, K] codes, scale[N, G] of any float dtype, integer zero[N, G] (or one for all)."""
        scale = scale.float()
        minimum = scale * -(zero.float() if isinstance(zero, torch.Tensor) else zero)
        return cls(q.to(torch.uint8), scale, minimum, group_size)

    @classmethod
    def cat(cls, parts: Sequence[Int4Codes]) -> Int4Codes:
        """Stack weights of equal K along N (fused qkv, gate and up)."""
        if len({(part.shape[1], part.group_size) for part in parts}) != 1:
            raise InputError("INT4 weights stacked into one need equal input sizes and group sizes")
        if len(parts) == 1:
            return parts[0]
        return cls(
            torch.cat([part.q for part in parts]),
            torch.cat([part.scale for part in parts]),
            torch.cat([part.minimum for part in parts]),
            parts[0].group_size,
        )

    def rows(self, start: int, stop: int) -> Int4Codes:
        """Rows start..stop as views."""
        return Int4Codes(self.q[start:stop], self.scale[start:stop], self.minimum[start:stop], self.group_size)

    def select(self, rows: torch.Tensor) -> Int4Codes:
        """The rows of an index tensor, in its order."""
        return Int4Codes(self.q[rows], self.scale[rows], self.minimum[rows], self.group_size)

    def zero_kind(self) -> ZeroKind:
        """``symmetric``, ``integer`` or ``float``: the simplest form that holds these minimums."""
        if self.is_symmetric():
            return "symmetric"
        return "float" if self.zero_points() is None else "integer"

    def to(self, device: torch.device | str) -> Int4Codes:
        """The same weight on another device."""
        return Int4Codes(self.q.to(device), self.scale.to(device), self.minimum.to(device), self.group_size)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """[N, K] dense; computed in float32, rounded once to ``dtype``."""
        rows, columns = self.shape
        dense = torch.empty(rows, columns, dtype=dtype, device=self.q.device)
        for start, stop in row_ranges(rows, columns):
            scale = spread(self.scale[start:stop], columns, self.group_size)
            minimum = spread(self.minimum[start:stop], columns, self.group_size)
            dense[start:stop] = self.q[start:stop].float() * scale + minimum
        return dense

    def zero_points(self) -> torch.Tensor | None:
        """Integer zero points [N, G] uint8, or None when some minimum is not -zero * scale for a zero of 0..15."""
        safe = torch.where(self.scale == 0, 1.0, self.scale)
        zero = torch.round(-self.minimum / safe).clamp(0, 15)
        exact = torch.equal(zero * self.scale, -self.minimum)
        return zero.to(torch.uint8) if exact else None

    def is_symmetric(self) -> bool:
        """Whether every zero point is 8."""
        return torch.equal(self.scale * -8.0, self.minimum)


def _rounded_by_kernel(
    weight: torch.Tensor, group_size: int, zero: ZeroKind, scale_dtype: torch.dtype
) -> Int4Codes | None:
    """``Int4Codes.from_dense`` by a kernel of the device; None where it has none, or to let the plain way find and
    name a fault."""
    if not weight.is_cuda or weight.dim() != 2 or zero not in ZERO_KINDS:
        return None
    try:
        kernel = select("round_groups_int4", "cuda", group_size=group_size, columns=weight.shape[1])
    except LookupError:
        return None
    q, scale, minimum, faults = kernel.function(weight, group_size, zero, scale_dtype)
    return None if int(faults) else Int4Codes(q, scale, minimum, group_size)


def group_count(columns: int, group_size: int) -> int:
    """Groups of a row of ``columns`` weights."""
    if group_size < 1:
        raise InputError(f"group size must be positive, not {group_size}")
    return -(-columns // group_size)


def spread(per_group: torch.Tensor, columns: int, group_size: int) -> torch.Tensor:
    """[N, G] -> [N, K]: the value of each column's group."""
    return per_group.repeat_interleave(group_size, dim=1)[:, :columns]


def row_ranges(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    """Row ranges of at most about 16 million weights."""
    step = max(1, _CHUNK_ELEMENTS // max(columns, 1))
    for start in range(0, max(rows, 1), step):
        yield start, min(start + step, rows)


def row_chunks(weight: torch.Tensor) -> Iterator[torch.Tensor]:
    """Pieces of weight[N, K] small enough for float32 temporaries. Raises ``InputError`` if not a matrix."""
    if weight.dim() != 2:
        raise InputError(f"a weight to quantise must have two dimensions, not {weight.dim()}")
    for start, stop in row_ranges(weight.shape[0], weight.shape[1]):
        yield weight[start:stop]


def grouped(weight: torch.Tensor, group_size: int) -> torch.Tensor:
    """weight[N, K] -> float32 [N, G, group_size]; a short last group repeats its last column."""
    wide = weight.float()
    columns = wide.shape[1]
    missing = group_count(columns, group_size) * group_size - columns
    if missing:
        wide = torch.cat([wide, wide[:, -1:].expand(-1, missing)], dim=1)
    return wide.reshape(wide.shape[0], -1, group_size)


def encode(groups: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor) -> torch.Tensor:
    """Nearest codes (float, 0..15) of groups[N, G, g] under scale and minimum [N, G]."""
    safe = torch.where(scale == 0, 1.0, scale)
    return torch.round((groups - minimum.unsqueeze(-1)) / safe.unsqueeze(-1)).clamp_(0, 15)


def round_to_codes(
    weight: torch.Tensor, group_size: int, zero: ZeroKind, scale_dtype: torch.dtype = torch.float16
) -> Int4Codes:
    """Round-to-nearest of one chunk of rows; see ``Int4Codes.from_dense``."""
    groups = grouped(weight, group_size)
    scale, minimum = span_grid(groups, zero, scale_dtype)
    return finish(encode(groups, scale, minimum), scale, minimum, weight.shape[1], group_size)


def span_grid(groups: torch.Tensor, zero: ZeroKind, scale_dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and minimum [N, G] that span each group of groups[N, G, g]."""
    if not bool(torch.isfinite(groups).all()):
        raise InputError("the weight has NaN or Inf values", "Check the checkpoint; it cannot be quantised")
    low, high = groups.amin(-1), groups.amax(-1)
    if zero == "symmetric":
        scale = round_scale(torch.maximum(-low, high) / 7.5, scale_dtype)
        return scale, scale * -8.0
    if zero == "integer":
        low, high = low.clamp_max(0.0), high.clamp_min(0.0)
        scale = round_scale((high - low) / 15.0, scale_dtype)
        return scale, scale * -integer_zero(low, scale)
    if zero == "float":
        return round_scale((high - low) / 15.0, scale_dtype), round_scale(low, scale_dtype, positive=False)
    raise InputError(f"unknown kind of zero point {zero!r}", f"Choose one of {', '.join(ZERO_KINDS)}")


def integer_zero(minimum: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Nearest zero point 0..15 (float) for a wanted minimum."""
    return torch.round(-minimum / scale).clamp_(0, 15)


def round_scale(value: torch.Tensor, dtype: torch.dtype, positive: bool = True) -> torch.Tensor:
    """``value`` rounded to what ``dtype`` can store, as float32; a positive scale never becomes 0."""
    stored = value.to(dtype).float()
    if not bool(torch.isfinite(stored).all()):
        raise InputError(
            f"group scales up to {float(value.abs().max()):.3g} overflow {dtype}", "Store the scales as bfloat16"
        )
    return torch.where(stored > 0, stored, torch.finfo(dtype).tiny) if positive else stored


def finish(
    codes: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor, columns: int, group_size: int
) -> Int4Codes:
    """Codes [N, G, g] back to a weight of ``columns`` columns."""
    q = codes.to(torch.uint8).reshape(codes.shape[0], -1)[:, :columns].contiguous()
    return Int4Codes(q, scale, minimum, group_size)
