"""INT4 weights times activations, the portable way: plain Triton, any GPU Triton supports.

The layout keeps rows: word ``i`` (0..3) of a group of 32 columns holds column ``4 j + i`` in nibble ``j``, so that
the words of one nibble index are a matrix by themselves, ready for a dot product without shuffling. K is padded to 64
with zero scales; every row starts on a 16-byte boundary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from sits.kernels.triton.launch import begin, pdl_options

PADDING = 128  # columns are padded to a multiple of it


@dataclass(slots=True)
class RowWeight:
    """Words [N, Kp / 8] int32, scale and minimum [N, Kp / group]; w = q * scale + minimum."""

    words: torch.Tensor
    scale: torch.Tensor
    minimum: torch.Tensor
    rows: int
    columns: int
    group_size: int

    def tensors(self) -> list[torch.Tensor]:
        return [self.words, self.scale, self.minimum]


def _fit(values: torch.Tensor) -> torch.Tensor:
    """fp16 where that loses nothing."""
    half = values.half()
    return half if torch.equal(half.float().nan_to_num(), values.float().nan_to_num()) else values.float()


def pack_rows(q: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor, group_size: int) -> RowWeight:
    """q[N, K] uint8 codes, scale and minimum [N, ceil(K / group)] -> this kernel's layout. group_size % 32 == 0."""
    if group_size % 32:
        raise ValueError(f"the portable INT4 kernel needs groups of a multiple of 32, not {group_size}")
    rows, columns = q.shape
    step = max(PADDING, group_size)
    padded = -(-columns // step) * step
    words = torch.empty(rows, padded // 8, dtype=torch.int32, device=q.device)
    shift = torch.arange(0, 32, 4, device=q.device, dtype=torch.int32)[:, None]
    for start in range(0, rows, 2048):
        part = torch.nn.functional.pad(q[start : start + 2048], (0, padded - columns)).view(-1, padded // 32, 8, 4)
        words[start : start + 2048] = (part.int() << shift).sum(2, dtype=torch.int32).flatten(1)
    groups = padded // group_size

    def fill(values: torch.Tensor) -> torch.Tensor:
        return _fit(torch.nn.functional.pad(values.float(), (0, groups - values.shape[1]))).contiguous()

    return RowWeight(words, fill(scale), fill(minimum), rows, columns, group_size)


def unpack_rows(weight: RowWeight) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The inverse of ``pack_rows``: (q[N, K] uint8, scale, minimum float32 [N, G])."""
    shift = torch.arange(0, 32, 4, device=weight.words.device, dtype=torch.int32)[:, None]
    split = (weight.words.view(weight.rows, -1, 1, 4) >> shift) & 15
    groups = -(-weight.columns // weight.group_size)
    q = split.to(torch.uint8).flatten(1)[:, : weight.columns].contiguous()
    return q, weight.scale[:, :groups].float(), weight.minimum[:, :groups].float()


@triton.jit
def int4_kernel(
    x, words, scale, minimum, bias, out, M, N, K, x_stride, out_stride, WORDS,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr, VECTOR: tl.constexpr,
    BIAS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    batch = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    step = tl.arange(0, BLOCK_W)
    in_rows = row < N
    in_batch = batch < M
    dtype = x.dtype.element_ty
    begin(PDL)
    if VECTOR:
        sums = tl.zeros([BLOCK_N, BLOCK_W], tl.float32)
    else:
        sums = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for start in range(0, WORDS, BLOCK_W):
        word = start + step
        inside = word < WORDS
        mask = in_rows[:, None] & inside[None, :]
        packed = tl.load(words + row.to(tl.int64)[:, None] * WORDS + word[None, :], mask=mask, other=0)
        place = row.to(tl.int64)[:, None] * (WORDS * 8 // GROUP) + (word * 8 // GROUP)[None, :]
        scales = tl.load(scale + place, mask=mask, other=0.0).to(tl.float32)
        minima = tl.load(minimum + place, mask=mask, other=0.0).to(tl.float32)
        for nibble in tl.static_range(8):
            column = (word // 4) * 32 + nibble * 4 + word % 4
            weight = ((packed >> (4 * nibble)) & 15).to(tl.float32) * scales + minima
            if VECTOR:
                value = tl.load(x + column, mask=inside & (column < K), other=0.0).to(tl.float32)
                sums += weight * value[None, :]
            else:
                x_place = batch.to(tl.int64)[None, :] * x_stride + column[:, None]
                x_mask = in_batch[None, :] & (inside & (column < K))[:, None]
                value = tl.load(x + x_place, mask=x_mask, other=0.0)
                sums += tl.dot(weight.to(dtype), value, input_precision="ieee")
    if BIAS:
        shift = tl.load(bias + row, mask=in_rows, other=0.0).to(tl.float32)
    if VECTOR:
        result = tl.sum(sums, 1)
        if BIAS:
            result += shift
        tl.store(out + row, result.to(dtype), mask=in_rows)
    else:
        if BIAS:
            sums += shift[:, None]
        out_place = batch.to(tl.int64)[None, :] * out_stride + row[:, None]
        tl.store(out + out_place, sums.to(dtype), mask=in_rows[:, None] & in_batch[None, :])


def int4_linear(x: torch.Tensor, weight: RowWeight, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x[M, K] -> [M, N] in x's dtype; float32 accumulation. Weights are rounded to x's dtype when M > 1."""
    count, columns = x.shape
    if columns != weight.columns:
        raise ValueError(f"x has {columns} columns, the weight {weight.columns}")
    if x.stride(-1) != 1:
        x = x.contiguous()
    out = torch.empty((count, weight.rows), dtype=x.dtype, device=x.device)
    if not count:
        return out
    vector = count == 1
    block_n, block_w = (8, 256) if vector else (64, 32)
    block_m = 16 if count <= 16 else 64
    grid = (triton.cdiv(weight.rows, block_n), 1 if vector else triton.cdiv(count, block_m))
    int4_kernel[grid](
        x, weight.words, weight.scale, weight.minimum, bias if bias is not None else x, out,
        count, weight.rows, columns, x.stride(0), out.stride(0), weight.words.shape[1],
        GROUP=weight.group_size, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_W=block_w, VECTOR=vector,
        BIAS=bias is not None, num_warps=4, **pdl_options(x),
    )  # fmt: skip
    return out
