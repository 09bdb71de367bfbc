"""FP8 (e4m3) weights with one scale per output row: the neutral form between checkpoints and kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sits.errors import InputError
from sits.kernels.fp8 import FP8_DTYPE, quantize_rows


@dataclass(frozen=True, slots=True)
class Fp8Codes:
    """A weight [N, K]: ``w[n, k] = q[n, k] * scale[n]`` in float32."""

    q: torch.Tensor  # [N, K] float8_e4m3fn
    scale: torch.Tensor  # [N] float32

    def __post_init__(self) -> None:
        if self.q.dtype != FP8_DTYPE or self.q.dim() != 2:
            raise InputError(f"an FP8 weight must be a float8_e4m3fn matrix, not {self.q.dtype}")
        if tuple(self.scale.shape) != (self.q.shape[0],) or self.scale.dtype != torch.float32:
            raise InputError(
                f"an FP8 weight of {self.q.shape[0]} rows needs as many float32 scales, not {list(self.scale.shape)}"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return self.q.shape[0], self.q.shape[1]

    @classmethod
    def from_dense(cls, weight: torch.Tensor, scale_dtype: torch.dtype = torch.float32) -> Fp8Codes:
        """Nearest e4m3 values of weight[N, K] under scale = absmax / 448 per row, rounded to ``scale_dtype``."""
        if weight.dim() != 2:
            raise InputError(f"a weight to quantize must have two dimensions, not {weight.dim()}")
        q, scale = quantize_rows(weight, scale_dtype)
        if not bool(torch.isfinite(scale).all()):
            raise InputError("the weight has NaN or Inf values", "Check the checkpoint; it cannot be quantized")
        return cls(q, scale)

    @classmethod
    def cat(cls, parts: Sequence[Fp8Codes]) -> Fp8Codes:
        """Stack weights of equal K along N."""
        if len({part.shape[1] for part in parts}) != 1:
            raise InputError("FP8 weights stacked into one need equal input sizes")
        # Byte views: concatenation of the float8 types is not implemented on every device.
        q = torch.cat([part.q.view(torch.uint8) for part in parts]).view(FP8_DTYPE)
        return cls(q, torch.cat([part.scale for part in parts]))

    def to(self, device: torch.device | str) -> Fp8Codes:
        """The same weight on another device."""
        return Fp8Codes(self.q.to(device), self.scale.to(device))

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """[N, K] dense; computed in float32, rounded once to ``dtype``."""
        return (self.q.float() * self.scale.unsqueeze(1)).to(dtype)
