"""Eight INT4 codes, one a byte, to a 32-bit word whose pairs lie 16 bits apart, as tensor-core kernels want them."""

from __future__ import annotations

import torch

SHIFTS = (0, 16, 4, 20, 8, 24, 12, 28)  # of codes 0..7 in a word


def squeeze_nibbles(codes: torch.Tensor) -> torch.Tensor:
    """int64 of any shape (byte k of an element is code k, 0..15) -> int32 of that shape, code k at ``SHIFTS[k]``.

    On a GPU in one pass; the codes move as eights, so permute them as int64 (``codes.view(torch.int64)``) before.
    """
    if codes.is_cuda:
        from sits.kernels.triton.nibbles import squeeze

        return squeeze(codes)
    halves = []
    for eight in (codes, codes >> 8):
        four = eight & 0x000F000F000F000F
        two = (four | (four >> 12)) & 0x000000FF000000FF
        halves.append((two | (two >> 24)) & 0xFFFF)
    return (halves[0] | halves[1] << 16).to(torch.int32)
