"""What attention needs to know of one ragged step, whatever the kernel.

Requests come decode rows first (one query token each), then prefill chunks. Device tensors are for kernels;
the ``*_host`` lists are the same numbers for code that must not wait for the device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

LOG2E = 1.4426950408889634  # kernels take powers of two: softmax scales are multiplied by it on the host


@dataclass(slots=True)
class AttentionBatch:
    """Layout of a step of R requests with T query tokens over a paged KV cache.

    The cache of a layer is a pair of tensors ``[num_blocks, block_size, kv_heads, head_dim]``. Token ``p`` of
    request ``r`` lives in block ``block_tables[r, p // block_size]`` at offset ``p % block_size``; its flat slot
    is ``block * block_size + offset``.
    """

    positions: torch.Tensor  # [T] int64, position of each query token in its request
    slots: torch.Tensor  # [T] int64, where its K and V go; -1 = do not write (padding of a captured graph)
    query_start: torch.Tensor  # [R + 1] int32, cumulative query tokens
    context_lens: torch.Tensor  # [R] int32, tokens in the cache after this step (query tokens included)
    block_tables: torch.Tensor  # [R, max_blocks] int32, unused entries 0
    block_size: int
    num_decodes: int  # the first num_decodes requests have one query token each
    query_lens_host: list[int] = field(default_factory=list)
    context_lens_host: list[int] = field(default_factory=list)
    blocks_host: list[list[int]] = field(default_factory=list)
    plan: Any = None  # scratch of a kernel's planner, reused by all layers of the step
    prefill: Any = None  # where the prefill rows' contexts lie, found by the first layer and reused by the others
