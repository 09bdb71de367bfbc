"""An FP8 weight as the model multiplies by it; activations are quantised per token by the kernel."""

from __future__ import annotations

from typing import Any

import torch

from sits.quant.fp8 import Fp8Codes
from sits.quant.linear import LinearWeight


class Fp8Weight(LinearWeight):
    """``codes`` (e4m3 values and a scale per row) stay as they are: the layout is what GPUs read."""

    operator = "linear_fp8"

    def __init__(self, codes: Fp8Codes, bias: torch.Tensor | None = None):
        super().__init__(codes.shape[0], codes.shape[1], bias)
        self.codes = codes

    @classmethod
    def from_dense(cls, weight: torch.Tensor, bias: torch.Tensor | None = None, **options: Any) -> Fp8Weight:
        """Options are those of ``Fp8Codes.from_dense`` (scale_dtype)."""
        return cls(Fp8Codes.from_dense(weight, **options), bias)

    @property
    def precision(self) -> str:
        return "fp8"

    @property
    def device(self) -> torch.device:
        return self.codes.q.device

    def tensors(self) -> list[torch.Tensor]:
        return [self.codes.q, self.codes.scale, *([] if self.bias is None else [self.bias])]

    def dequantize(self) -> torch.Tensor:
        return self.codes.dequantize()
