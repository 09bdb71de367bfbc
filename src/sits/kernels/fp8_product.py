"""The FP8 matrix product with a scale per token and per output: torch's kernels on cards, float32 elsewhere.

The scales can be left to whoever reads the product (``Sums``): cuBLASLt's product without them is faster for few
rows than torch's own with them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

FAST_ACCUMULATION = True  # partial sums of 32 products in the tensor cores' own width, as every FP8 engine does


def scaled_product(
    q: torch.Tensor, scale: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """q[M, K] e4m3 with scale[M], weight[N, K] e4m3 with weight_scale[N] -> [M, N] of ``dtype``, summed in float32.

    On CUDA K and N must be multiples of 16. torch's row-wise product writes bf16 only; other types are converted
    from it.
    """
    if not q.is_cuda:
        return exact_product(q, scale, weight, weight_scale).to(dtype)
    product = torch._scaled_mm(
        q,
        weight.t(),
        scale_a=scale.view(-1, 1),
        scale_b=weight_scale.view(1, -1),
        out_dtype=torch.bfloat16,
        use_fast_accum=FAST_ACCUMULATION,
    )
    return product if dtype == torch.bfloat16 else product.to(dtype)


def exact_product(
    q: torch.Tensor, scale: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor
) -> torch.Tensor:
    """The same in float32: the definition."""
    return q.float() @ weight.float().T * scale.unsqueeze(1) * weight_scale


@dataclass(frozen=True, slots=True)
class Sums:
    """A product before its scales: what it stands for is ``values * row_scale[:, None] * column_scale``."""

    values: torch.Tensor  # [M, N] bf16 on CUDA (fp16 would overflow: they reach 448 * 448 * K), float32 elsewhere
    row_scale: torch.Tensor  # [M] float32, of the tokens
    column_scale: torch.Tensor  # [N] float32, of the outputs

    @property
    def scales(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the rows, of the columns."""
        return self.row_scale, self.column_scale

    def scaled(self) -> torch.Tensor:
        """[M, N] float32: the definition."""
        return self.values.float() * self.row_scale.unsqueeze(1) * self.column_scale


def unscaled_product(q: torch.Tensor, scale: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor) -> Sums:
    """q[M, K] e4m3 with scale[M], weight[N, K] e4m3 with weight_scale[N] -> sums [M, N] that await their scales.

    On CUDA K and N must be multiples of 16.
    """
    if not q.is_cuda:
        return Sums(q.float() @ weight.float().T, scale, weight_scale)
    one = unit_scale(q.device)
    sums = torch._scaled_mm(
        q, weight.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=FAST_ACCUMULATION
    )
    return Sums(sums, scale, weight_scale)


@functools.cache
def unit_scale(device: torch.device) -> torch.Tensor:
    """The 1 that cuBLASLt reads from the device. Make it before a graph is captured: it must outlive every graph."""
    return torch.ones((), dtype=torch.float32, device=device)
