"""Captured CUDA graphs for steps that only decode: one launch instead of hundreds.

A graph is captured the first time its sizes are needed, for a number of rows rounded up to a bucket and a context
rounded up to a power of two. The padding rows write nothing (slot -1) and read one token of the scratch block.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import torch

from sits.engine.attention_plan import AttentionPlanner
from sits.engine.previous_tokens import fill_in
from sits.engine.sampler import choose_greedy
from sits.engine.step import StepBuilder, StepShape, StepTensors, view_step
from sits.engine.step_batch import StepBatch
from sits.kernels.kv_cache import CacheTensor
from sits.models.model import CausalModel

_LEAST_CONTEXT = 1024


def row_buckets(max_rows: int) -> list[int]:
    """1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, ... up to ``max_rows``, which is always one."""
    buckets = [1, 2, 4, 8]
    size = 16
    while size < max_rows:
        buckets += [size, size + size // 2]
        size *= 2
    return sorted({bucket for bucket in buckets if bucket < max_rows} | {max_rows})


@dataclass(slots=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    buffer: torch.Tensor  # packed inputs the graph reads
    inputs: StepTensors  # views of it; kept alive with whatever a kernel planned for them
    logits: torch.Tensor  # [rows, vocab] float32, written by each replay
    tokens: torch.Tensor  # [rows] int64, the greedy ones; a view of ``chosen``


class DecodeGraphs:
    """Runs decode-only steps of one model through captured graphs."""

    def __init__(
        self,
        model: CausalModel,
        kv_cache: list[tuple[CacheTensor, CacheTensor]],
        builder: StepBuilder,
        planner: AttentionPlanner,
        chosen: torch.Tensor,
        max_blocks: int,
    ):
        """``chosen[max_rows]`` int64 holds the tokens of the step before, and then those of this one."""
        self._model = model
        self._kv_cache = kv_cache
        self._builder = builder
        self._planner = planner
        self._chosen = chosen
        self._buckets = row_buckets(chosen.shape[0])
        self._max_blocks = max_blocks
        self._captured: dict[tuple[int, int], _Captured] = {}
        self._memory_pool: Any = None

    @staticmethod
    def usable(model: CausalModel) -> str | None:
        """Why the model cannot be captured, or ``None`` when it can.

        The plain PyTorch operators loop over host lists, which a capture would freeze.
        """
        if model.device.type != "cuda":
            return "graphs need a CUDA device"
        chosen = getattr(getattr(model, "ops", None), "chosen", {})
        plain = [name for name in ("attention", "rope_kv_write") if chosen.get(name, "reference") == "reference"]
        return f"{' and '.join(plain)} run in plain PyTorch, which cannot be captured" if plain else None

    def run(self, batch: StepBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [len(batch.requests), vocab] and their greedy tokens, for a step in which every row decodes and
        samples."""
        rows = len(batch.requests)
        bucket = self._buckets[bisect_left(self._buckets, rows)]
        blocks = self._context_bucket(self._builder.widest(batch))
        shape = StepShape(bucket, bucket, bucket, blocks)
        packed = self._builder.pack(batch, shape)
        captured = self._captured.get((bucket, blocks))
        if captured is None:
            captured = self._captured[bucket, blocks] = self._capture(shape, packed)
        else:
            captured.buffer.copy_(packed, non_blocking=True)
        captured.graph.replay()
        return captured.logits[:rows], captured.tokens[:rows]

    def _context_bucket(self, blocks: int) -> int:
        size = max(1, _LEAST_CONTEXT // self._builder.block_size)
        while size < blocks:
            size *= 2
        return min(size, self._max_blocks)

    def _capture(self, shape: StepShape, packed: torch.Tensor) -> _Captured:
        """Capture with the inputs of a real step: running it more than once writes the same K and V again."""
        model, block_size = self._model, self._builder.block_size
        buffer = packed.to(model.device)
        inputs = view_step(buffer, shape, block_size, shape.rows)
        # What is read on the host while capturing must hold for the longest context this graph may see.
        inputs.batch.query_lens_host = [1] * shape.rows
        inputs.batch.context_lens_host = [shape.blocks * block_size] * shape.rows
        # Any plan is right for any context; this one is good in the middle of what the graph will see.
        inputs.batch.plan = self._planner.plan([max(1, shape.blocks * block_size // 2)] * shape.rows)

        tokens = self._chosen[: shape.rows]

        def forward() -> torch.Tensor:
            fill_in(inputs.token_ids, self._chosen)  # once: then no reference is left, and it changes nothing
            logits = model.forward(inputs.token_ids, inputs.batch, self._kv_cache, inputs.logits_rows)
            choose_greedy(logits, tokens)
            return logits

        stream = torch.cuda.Stream(model.device)
        stream.wait_stream(torch.cuda.current_stream(model.device))
        with torch.cuda.stream(stream):  # compile, autotune and allocate outside the capture
            forward()
            forward()
        torch.cuda.current_stream(model.device).wait_stream(stream)
        torch.cuda.synchronize(model.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory_pool):
            logits = forward()
        self._memory_pool = self._memory_pool or graph.pool()
        return _Captured(graph, buffer, inputs, logits, tokens)
