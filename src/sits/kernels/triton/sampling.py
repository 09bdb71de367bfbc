"""Greedy sampling on the device: the index of the largest logit of each row, lowest index on a tie."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sits.kernels.triton.launch import begin, pdl_options

_NOWHERE = tl.constexpr(2147483647)
_BLOCK = 4096


@triton.jit
def partial_argmax_kernel(logits, values, indices, stride, N, SPLITS, BLOCK: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    columns = part * BLOCK + tl.arange(0, BLOCK)
    begin(PDL)
    value = tl.load(logits + row * stride + columns, mask=columns < N, other=float("-inf")).to(tl.float32)
    value = tl.where(value == value, value, float("inf"))  # NaN wins, as something that is not finite
    largest = tl.max(value, 0)
    at = tl.min(tl.where(value == largest, columns, _NOWHERE), 0)
    tl.store(values + row * SPLITS + part, largest)
    tl.store(indices + row * SPLITS + part, at)


@triton.jit
def final_argmax_kernel(values, indices, out, SPLITS, BLOCK: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, BLOCK)
    begin(PDL)
    value = tl.load(values + row * SPLITS + part, mask=part < SPLITS, other=float("-inf"))
    index = tl.load(indices + row * SPLITS + part, mask=part < SPLITS, other=_NOWHERE)
    largest = tl.max(value, 0)
    at = tl.min(tl.where(value == largest, index, _NOWHERE), 0)
    finite = (largest > float("-inf")) & (largest < float("inf"))
    tl.store(out + row, tl.where(finite, at, -1).to(tl.int64))


def argmax_finite(logits: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """logits[B, V] of any float type -> int64 [B]: the largest logit's index, the lowest on a tie.

    -1 where the row has a NaN or +Inf, or nothing but -Inf: the check costs no pass of its own. Two launches, no
    synchronisation, safe under CUDA graph capture; each logit is read once in its own type. ``out[B]`` int64 takes
    the result if it is given.
    """
    rows, vocabulary = logits.shape
    if logits.stride(-1) != 1:
        logits = logits.contiguous()
    splits = triton.cdiv(vocabulary, _BLOCK)
    values = torch.empty((rows, splits), dtype=torch.float32, device=logits.device)
    indices = torch.empty((rows, splits), dtype=torch.int32, device=logits.device)
    if out is None:
        out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    options = pdl_options(logits)
    if rows:
        partial_argmax_kernel[(rows, splits)](
            logits, values, indices, logits.stride(0), vocabulary, splits, BLOCK=_BLOCK, num_warps=8, **options
        )
        final_argmax_kernel[(rows,)](
            values, indices, out, splits, BLOCK=triton.next_power_of_2(splits), num_warps=1, **options
        )
    return out
