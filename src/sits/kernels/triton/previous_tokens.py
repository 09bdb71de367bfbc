"""Input tokens of a step from the tokens that the step before it chose (``sits.engine.previous_tokens``)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def fill_in_kernel(ids, chosen, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    wanted = tl.load(ids + at, mask=at < count, other=0)
    refers = wanted < 0
    known = tl.load(chosen + (-1 - wanted), mask=refers, other=0)
    tl.store(ids + at, tl.maximum(known, 0), mask=refers)


def fill_in(ids: torch.Tensor, chosen: torch.Tensor) -> None:
    """ids[T] int64: each ``-1 - i`` becomes ``max(chosen[i], 0)``, in place; one launch."""
    count = ids.shape[0]
    if count:
        fill_in_kernel[(triton.cdiv(count, 256),)](ids, chosen, count, BLOCK=256, num_warps=4)
