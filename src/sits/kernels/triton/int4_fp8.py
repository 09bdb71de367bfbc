"""Prompts through INT4 weights at the FP8 rate: the weight goes to an e4m3 scratch with a scale per row, then cuBLAS.

Activations are rounded to e4m3 per token and codes to 8 bits: W8A8 arithmetic on INT4 storage, about 3 % of
noise per linear, against none from the dense path. It runs only where ``SITS_INT4_PREFILL=fp8`` asks for it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
import triton
import triton.language as tl

from sits.kernels.triton.launch import begin, pdl_options

if TYPE_CHECKING:
    from sits.kernels.cuda.int4_layout import PackedInt4
    from sits.kernels.cuda.wgmma_layout import WgmmaInt4

LEAST_ROWS = 1024  # under it the scratch costs more than the faster product saves
_WORDS = tl.constexpr(128)  # int32 words of a chunk: 16 rows x 64 columns


@triton.jit
def make_fp8_kernel(
    codes, scales, minimums, row_scales, out, multiplier, N, K, chunks,
    SYMMETRIC: tl.constexpr, INTERLEAVED: tl.constexpr, CHUNKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Some chunks of one 16-row tile; the layout is that of ``kernels.cuda.int4_layout``."""
    tile = tl.program_id(1).to(tl.int64)
    index = tl.arange(0, CHUNKS * _WORDS)
    chunk = tl.program_id(0) * CHUNKS + index // _WORDS
    lane = index % _WORDS // 4
    word = index % 4
    g, t, lower = lane // 4, lane % 4, word % 2
    if INTERLEAVED:  # 8 rows of gate, 8 of up
        row = tile * 8 + g + lower * (N // 2)
        exists = tile * 8 + g < N // 2
    else:
        row = tile * 16 + g + lower * 8
        exists = row < N
    column = chunk * 64 + word // 2 * 32 + t * 8
    mask = exists & (chunk < chunks) & (column < K)
    begin(PDL)
    block = tile * chunks + chunk
    bits = tl.load(codes + block * _WORDS + index % _WORDS, mask=mask, other=0)
    scale = tl.load(scales + block * 32 + g * 4 + word, mask=mask, other=0.0).to(tl.float32) * multiplier
    if SYMMETRIC:
        minimum = scale * -8.0
    else:
        minimum = tl.load(minimums + block * 32 + g * 4 + word, mask=mask, other=0.0).to(tl.float32) * multiplier
    inverse = 1.0 / tl.load(row_scales + row, mask=mask, other=1.0)
    k = tl.arange(0, 8)
    nibble = (bits[:, None] >> (k // 2 * 4 + k % 2 * 16)[None, :]) & 15
    value = nibble.to(tl.float32) * (scale * inverse)[:, None] + (minimum * inverse)[:, None]
    value = tl.minimum(tl.maximum(value, -448.0), 448.0)
    tl.store(out + (row * K + column)[:, None] + k[None, :], value.to(tl.float8e4nv), mask=mask[:, None])


_row_scales: WeakKeyDictionary[torch.Tensor, torch.Tensor] = WeakKeyDictionary()
_scratch: dict[torch.device, torch.Tensor] = {}


def row_scales(weight: PackedInt4) -> torch.Tensor:
    """Largest magnitude a row can hold / 448, float32 [N]; kept for the life of the weight."""
    found = _row_scales.get(weight.codes)
    if found is not None:
        return found
    scale = weight.scales.float()
    if weight.minimums is None:
        largest = scale.abs() * 8
    else:
        low = weight.minimums.float()
        largest = torch.maximum(low.abs(), (low + 15 * scale).abs())
    tiles, chunks = largest.shape[:2]
    largest = largest.view(tiles, chunks, 8, 2, 2).amax((1, 3))  # tile, g, h
    ordered = largest.permute(2, 0, 1) if weight.interleaved else largest.permute(0, 2, 1)
    scales = ordered.reshape(-1)
    if weight.interleaved:  # drop the padding of each half
        half = weight.rows // 2
        scales = torch.cat((scales[:half], scales[tiles * 8 : tiles * 8 + half]))
    scales = (scales[: weight.rows] * (weight.multiplier / 448.0)).clamp_min(1e-30).contiguous()
    _row_scales[weight.codes] = scales
    return scales


def make_fp8(weight: PackedInt4 | WgmmaInt4) -> tuple[torch.Tensor, torch.Tensor]:
    """(e4m3 [N, K] in a scratch the next call overwrites, scales [N]); safe in stream order."""
    if not hasattr(weight, "codes"):
        from sits.kernels.cuda.small import make_fp8 as make_fp8_of_blocks

        return make_fp8_of_blocks(weight)
    device, size = weight.codes.device, weight.rows * weight.columns
    if device not in _scratch or _scratch[device].numel() < size:
        _scratch[device] = torch.empty(size, dtype=torch.float8_e4m3fn, device=device)
    out = _scratch[device][:size].view(weight.rows, weight.columns)
    scales = row_scales(weight)
    tiles, chunks = weight.codes.shape[:2]
    minimums = weight.scales if weight.minimums is None else weight.minimums
    make_fp8_kernel[(triton.cdiv(chunks, 4), tiles)](
        weight.codes, weight.scales, minimums, scales, out, weight.multiplier, weight.rows, weight.columns, chunks,
        SYMMETRIC=weight.minimums is None, INTERLEAVED=weight.interleaved, CHUNKS=4, num_warps=4,
        **pdl_options(weight.codes),
    )  # fmt: skip
    return out, scales


def wanted(rows: int, weight: PackedInt4 | WgmmaInt4) -> bool:
    """Whether ``rows`` rows of activations should go this way."""
    if rows < LEAST_ROWS or os.environ.get("SITS_INT4_PREFILL", "exact") != "fp8":
        return False
    return weight.rows % 16 == 0 and weight.columns % 16 == 0 and torch.cuda.get_device_capability() >= (8, 9)


def fp8_linear(x: torch.Tensor, weight: PackedInt4 | WgmmaInt4, bias: torch.Tensor | None) -> torch.Tensor:
    """x[M, K] -> [M, N] in x's dtype."""
    from sits.kernels.fp8_linear import scaled_product
    from sits.kernels.triton.activation import quantize_fp8

    q, scale = quantize_fp8(x)
    result = scaled_product(q, scale, *make_fp8(weight), x.dtype)
    return result if bias is None else result.add_(bias)
