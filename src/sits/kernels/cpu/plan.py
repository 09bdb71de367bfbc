"""What the CPU operators work out once per step and reuse in every layer: rotary rows, cache runs, masks."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import torch

from sits.kernels.attention_batch import AttentionBatch
from sits.kernels.reference.attention import causal_mask


@dataclass(slots=True)
class Request:
    """Where one request's keys and values are: from token ``start`` of the cache if they lie in one run there
    (``gathered`` false), else from token ``start`` of the blocks gathered for this step."""

    row: int  # first query token of the request in the step
    query_len: int
    context_len: int
    start: int
    gathered: bool
    masks: dict[int, torch.Tensor | None] = field(default_factory=dict)  # by window

    def mask(self, window: int) -> torch.Tensor | None:
        """[query, context] bool mask, None where no mask or plain causal order is enough."""
        if window not in self.masks:
            masked = window > 0 and self.context_len > window
            whole = self.query_len in (1, self.context_len)
            self.masks[window] = (
                causal_mask(self.query_len, self.context_len, window, torch.device("cpu"))
                if masked or not whole
                else None
            )
        return self.masks[window]


class CpuPlan:
    """Per-step scratch of the CPU kernels; lives in ``AttentionBatch.plan``."""

    def __init__(self, batch: AttentionBatch):
        self.requests: list[Request] = []
        self._rotary: tuple[torch.Tensor, torch.Tensor] | None = None
        self.slots = batch.slots
        self.kept: torch.Tensor | None = None  # query tokens whose K and V are written, None = all
        if bool((batch.slots < 0).any()):
            self.kept = (batch.slots >= 0).nonzero().squeeze(1)
            self.slots = batch.slots[self.kept]
        self.block_size = batch.block_size
        self._tables = batch.blocks_host or batch.block_tables.tolist()
        self._gathered: dict[int, torch.Tensor | None] = {}
        row = 0
        for query_len, context_len, table in zip(batch.query_lens_host, batch.context_lens_host, self._tables):
            blocks = table[: -(-context_len // self.block_size)]
            self.requests.append(
                Request(row, query_len, context_len, blocks[0] * self.block_size, not _is_run(blocks))
            )
            row += query_len

    def gathered_blocks(self, skip: int) -> torch.Tensor | None:
        """Blocks to copy together for the requests from ``skip`` on whose blocks are scattered; None if there are
        none. Their ``start`` then counts in the copy."""
        if skip not in self._gathered:
            blocks: list[int] = []
            for request, table in list(zip(self.requests, self._tables))[skip:]:
                if request.gathered:
                    request.start = len(blocks) * self.block_size
                    blocks += table[: -(-request.context_len // self.block_size)]
            self._gathered[skip] = torch.tensor(blocks, dtype=torch.int64) if blocks else None
        return self._gathered[skip]

    def rotary(
        self, batch: AttentionBatch, cos_sin: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin of the step's positions, both [T, 1, rotary_dim]; sin is negative in its first half, so that
        rotated = x * cos + roll(x, rotary_dim / 2) * sin."""
        if self._rotary is None:
            cos, sin = cos_sin[batch.positions].to(dtype).unsqueeze(1).chunk(2, dim=-1)
            self._rotary = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
        return self._rotary


def _is_run(blocks: list[int]) -> bool:
    return all(after - before == 1 for before, after in pairwise(blocks))


def plan_of(batch: AttentionBatch) -> CpuPlan:
    """The step's plan, made on first use."""
    plan = batch.plan
    if type(plan) is not CpuPlan:
        plan = batch.plan = CpuPlan(batch)
    return plan
