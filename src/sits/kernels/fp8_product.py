"""The FP8 matrix product with a scale per token and per output: cuBLASLt on cards that have it, float32 elsewhere."""

from __future__ import annotations

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
