"""Greedy sampling on the device: the index of the largest logit of each row, lowest index on a tie."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sits.kernels.triton.launch import begin, pdl_options


@triton.jit
def partial_argmax_kernel(logits, values, indices, stride, N, SPLITS, BLOCK: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    columns = part * BLOCK + tl.arange(0, BLOCK)
    begin(PDL)
    value = tl.load(logits + row * stride + columns, mask=columns < N, other=float("-inf")).to(tl.float32)
    largest = tl.max(value, 0)
    at = tl.min(tl.where(value == largest, columns, 2147483647), 0)
    tl.store(values + row * SPLITS + part, largest)
    tl.store(indices + row * SPLITS + part, at)


@triton.jit
def final_argmax_kernel(values, indices, out, SPLITS, BLOCK: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, BLOCK)
    begin(PDL)
    value = tl.load(values + row * SPLITS + part, mask=part < SPLITS, other=float("-inf"))
    index = tl.load(indices + row * SPLITS + part, mask=part < SPLITS, other=2147483647)
    at = tl.min(tl.where(value == tl.max(value, 0), index, 2147483647), 0)
    tl.store(out + row, tl.where(at == 2147483647, 0, at).to(tl.int64))


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """logits[B, V] -> int64 [B]; two launches, no synchronisation. A row of only NaN gives 0."""
    rows, vocabulary = logits.shape
    if logits.stride(-1) != 1:
        logits = logits.contiguous()
    block = 4096
    splits = triton.cdiv(vocabulary, block)
    values = torch.empty((rows, splits), dtype=torch.float32, device=logits.device)
    indices = torch.empty((rows, splits), dtype=torch.int32, device=logits.device)
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    options = pdl_options(logits)
    if rows:
        partial_argmax_kernel[(rows, splits)](
            logits, values, indices, logits.stride(0), vocabulary, splits, BLOCK=block, num_warps=8, **options
        )
        final_argmax_kernel[(rows,)](
            values, indices, out, splits, BLOCK=triton.next_power_of_2(splits), num_warps=1, **options
        )
    return out
