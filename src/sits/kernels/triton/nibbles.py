"""Squeeze INT4 codes, one a byte, into 32-bit words in the order the tensor-core kernels unpack them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 1024


@triton.jit
def squeeze_kernel(codes, words, COUNT, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < COUNT
    eight = tl.load(codes + place, mask=inside, other=0)  # int64: byte k is code k
    even, odd = eight & 0x000F000F000F000F, (eight >> 8) & 0x000F000F000F000F
    even, odd = (even | (even >> 12)) & 0x000000FF000000FF, (odd | (odd >> 12)) & 0x000000FF000000FF
    even, odd = (even | (even >> 24)) & 0xFFFF, (odd | (odd >> 24)) & 0xFFFF
    tl.store(words + place, (even | (odd << 16)).to(tl.int32), mask=inside)


def squeeze(codes: torch.Tensor) -> torch.Tensor:
    """int64 of any shape, eight codes a word (byte k is code k) -> int32 of that shape; see ``squeeze_nibbles``."""
    codes = codes.contiguous()
    words = torch.empty(codes.shape, dtype=torch.int32, device=codes.device)
    if codes.numel():
        squeeze_kernel[(triton.cdiv(codes.numel(), _BLOCK),)](codes, words, codes.numel(), BLOCK=_BLOCK, num_warps=4)
    return words
