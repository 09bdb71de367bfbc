"""Round a dense weight to INT4 codes in one pass: plain PyTorch moves the weight some 20 times, this reads it once.

The function is that of ``sits.quant.int4.round_to_codes``, bit for bit (IEEE divisions, ties to even): quantising
Llama-3-70B while it loads is a pass over 140 GB.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sits.kernels.registry import register
from sits.kernels.triton.rope import round_to_even

ZERO_KINDS = ("symmetric", "integer", "float")
NOT_FINITE, OVERFLOW = 1, 2  # what ``round_groups`` reports
_BLOCK = 64  # groups of a program
_TYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


@triton.jit
def as_stored(value, kind: tl.constexpr):
    """``value`` rounded to what a checkpoint stores, as float32."""
    return value.to(kind).to(tl.float32)


@triton.jit
def round_groups_kernel(
    weight, codes, scales, minimums, faults, GROUPS, TINY,
    GROUP: tl.constexpr, ZERO: tl.constexpr, STORED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = group < GROUPS
    place = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    value = tl.load(weight + place, mask=inside[:, None], other=0.0).to(tl.float32)
    finite = tl.abs(value) < float("inf")  # false for NaN
    low, high = tl.min(value, 1), tl.max(value, 1)
    if ZERO == 0:
        wanted = tl.div_rn(tl.maximum(-low, high), 7.5)
    else:
        if ZERO == 1:
            low, high = tl.minimum(low, 0.0), tl.maximum(high, 0.0)
        wanted = tl.div_rn(high - low, 15.0)
    scale = as_stored(wanted, STORED)
    stored = tl.abs(scale) < float("inf")
    scale = tl.where(scale > 0.0, scale, TINY)
    if ZERO == 0:
        minimum = scale * -8.0
    elif ZERO == 1:
        zero = tl.minimum(tl.maximum(tl.div_rn(-low, scale), 0.0), 15.0)
        minimum = scale * -round_to_even(zero)
    else:
        minimum = as_stored(low, STORED)
        stored = stored & (tl.abs(minimum) < float("inf"))
    steps = tl.div_rn(value - minimum[:, None], tl.broadcast_to(scale[:, None], BLOCK, GROUP))
    steps = round_to_even(tl.minimum(tl.maximum(steps, 0.0), 15.0))
    tl.store(codes + place, steps.to(tl.uint8), mask=inside[:, None])
    tl.store(scales + group, scale, mask=inside)
    tl.store(minimums + group, minimum, mask=inside)
    fault = tl.max(tl.where(finite, 0, 1), 1) | tl.where(stored, 0, 2)
    fault = tl.max(tl.where(inside, fault, 0), 0)
    if fault > 0:
        tl.atomic_or(faults, fault)


def supports(group_size: int = 0, columns: int = 1, **_: int) -> bool:
    """Whole groups of a power of two."""
    return group_size in (16, 32, 64, 128, 256) and columns % group_size == 0


@register("round_groups_int4", "triton", devices=("cuda",), priority=10, supports=supports)
def round_groups(
    weight: torch.Tensor, group_size: int, zero: str, scale_dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """weight[N, K] -> (codes[N, K] uint8, scale[N, G] float32, minimum[N, G] float32, faults[1] int32).

    ``faults`` is 0, or bits of ``NOT_FINITE`` (NaN or Inf in the weight; the rest is then undefined) and ``OVERFLOW``
    (a scale or minimum that ``scale_dtype`` cannot hold).
    """
    rows, columns = weight.shape
    groups = columns // group_size
    weight, device = weight.contiguous(), weight.device
    codes = torch.empty(rows, columns, dtype=torch.uint8, device=device)
    scale, minimum = (torch.empty(rows, groups, dtype=torch.float32, device=device) for _ in range(2))
    faults = torch.zeros(1, dtype=torch.int32, device=device)
    if rows:
        round_groups_kernel[(triton.cdiv(rows * groups, _BLOCK),)](
            weight, codes, scale, minimum, faults, rows * groups, torch.finfo(scale_dtype).tiny,
            GROUP=group_size, ZERO=ZERO_KINDS.index(zero), STORED=_TYPES[scale_dtype], BLOCK=_BLOCK, num_warps=4,
            enable_fp_fusion=False,  # the last bit of a difference decides between two codes
        )  # fmt: skip
    return codes, scale, minimum, faults
