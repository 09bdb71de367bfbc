"""The device side of the engine: the model, its KV cache, and the execution of one step.

It knows tensors and nothing of queues: the scheduler decides, the runner computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

import torch

from sits.engine.attention_plan import AttentionPlanner
from sits.engine.decode_graphs import DecodeGraphs
from sits.engine.device_clock import DeviceClock
from sits.engine.host_values import to_device
from sits.engine.kv_sizing import choose_block_count
from sits.engine.previous_tokens import fill_in
from sits.engine.running_step import CudaStep, FinishedStep
from sits.engine.sampler import Sampled, Sampler
from sits.engine.step import StepBuilder, StepShape, StepTensors, view_step
from sits.engine.step_batch import StepBatch
from sits.engine.stopping import blocks_for
from sits.engine.warm_up import decode_step, prefill_step
from sits.errors import SitsError
from sits.kernels.kv_cache import CacheTensor
from sits.models.excerpt import excerpt, representative_layers
from sits.models.llama import LlamaModel
from sits.models.model import CausalModel
from sits.quant.kv import allocate_kv_cache


@dataclass(frozen=True, slots=True)
class RunnerConfig:
    """Sizes the runner allocates for."""

    block_size: int
    max_running: int
    max_step_tokens: int
    max_model_len: int
    kv_blocks: int | None = None  # None: from free memory
    kv_dtype: str = "auto"
    memory_share: float = 0.9  # of the device's memory, for everything
    cuda_graphs: bool = True
    overlap: bool = False  # a step may refer to the tokens of the one before it, not fetched yet


class Runner:
    """Owns a model and its cache; one step at a time."""

    def __init__(self, model: CausalModel, config: RunnerConfig):
        self.model: CausalModel = model
        self.config = config
        self.device = model.device
        shape = model.config
        on_cuda = self.device.type == "cuda"
        self._max_blocks = blocks_for(config.max_model_len, config.block_size)
        self._builder = StepBuilder(config.block_size, config.max_running, self._max_blocks, pin_memory=on_cuda)
        self._planner = AttentionPlanner(model, config.kv_dtype)
        self._sampler = Sampler(shape.vocab_size, config.max_running, self.device)
        self._chosen = torch.zeros(config.max_running, dtype=torch.int64, device=self.device)  # by the last step
        self._clock = DeviceClock()
        # Tokens on the host: of the step in flight, and of the one that is taken in meanwhile.
        self._fetched = [torch.empty(config.max_running, dtype=torch.int64, pin_memory=on_cuda) for _ in range(2)]
        self._graphs: DecodeGraphs | None = None
        self.num_blocks = self._choose_blocks() + 1  # and the scratch block
        self.kv_cache = self._allocate(self.num_blocks)
        self.no_graphs_because: str | None = "switched off"
        if config.cuda_graphs:
            self.no_graphs_because = DecodeGraphs.usable(model)
            if self.no_graphs_because is None:
                self._graphs = DecodeGraphs(
                    model, self.kv_cache, self._builder, self._planner, self._chosen, self._max_blocks
                )

    @property
    def kv_bytes(self) -> int:
        """Bytes of the whole cache."""
        return sum(k.nbytes + v.nbytes for k, v in self.kv_cache)

    @torch.inference_mode()
    def execute(self, batch: StepBatch) -> FinishedStep | CudaStep:
        """Give one step to the device; ``fetch()`` of the result waits for it. At most two may be unfetched.

        Raises ``SitsError`` when the device is out of memory.
        """
        try:
            sampled = self._compute(batch)
            if self.device.type != "cuda":
                return FinishedStep(sampled)
            self._fetched.reverse()
            step = CudaStep(sampled, self._fetched[0], self._clock)
            self._builder.hold_until(step.event)
            return step
        except torch.OutOfMemoryError as error:
            raise SitsError(
                f"out of memory in a step of {batch.num_tokens} tokens: {str(error).splitlines()[0]}",
                "Lower max_step_tokens, max_running or kv_blocks",
            ) from error

    def zero_blocks(self, blocks: list[int]) -> None:
        """Clear blocks that may hold values that are not finite: masked reads multiply them by zero."""
        index = to_device(blocks, torch.int64, self.device)
        with torch.inference_mode():
            for pair in self.kv_cache:
                for cache in pair:
                    tensor = cache if isinstance(cache, torch.Tensor) else cache.scale  # scale 0 reads as 0
                    tensor.index_fill_(0, index, 0)

    def warm_up(self, rows: Sequence[int] = (1,)) -> float:
        """Run one prefill and a decode step for each number of ``rows``, so that nothing is compiled or captured
        later for these sizes; returns the seconds it took."""
        started = monotonic()
        config = self.config
        steps = [prefill_step(config.max_step_tokens, config.max_model_len, config.max_running, config.block_size)]
        steps += [decode_step(count, 2, config.block_size) for count in rows]
        for step in steps:
            self.execute(step).fetch()
        return monotonic() - started

    def _compute(self, batch: StepBatch) -> Sampled | None:
        greedy = None
        if self._graphs is not None and batch.only_decodes:
            logits, greedy = self._graphs.run(batch)
        else:
            inputs = self._prepare(batch)
            logits = self.model.forward(inputs.token_ids, inputs.batch, self.kv_cache, inputs.logits_rows)
        rows = len(batch.sample_rows)
        if not rows:
            return None
        requests = batch.requests if batch.only_decodes else [batch.requests[row] for row in batch.sample_rows]
        sampled = self._sampler.sample(logits, requests, batch.output_indices, greedy)
        if self.config.overlap and sampled.tokens is not greedy:
            self._chosen[:rows].copy_(sampled.tokens)
        return sampled

    def _prepare(self, batch: StepBatch) -> StepTensors:
        rows = len(batch.requests)
        shape = StepShape(sum(batch.counts), rows, len(batch.sample_rows), self._builder.widest(batch))
        packed = self._builder.pack(batch, shape)
        if self.device.type != "cpu":
            packed = packed.to(self.device, non_blocking=True)
        inputs = view_step(packed, shape, self.config.block_size, batch.num_decodes)
        if min(batch.decode_ids, default=0) < 0:
            fill_in(inputs.token_ids, self._chosen)
        inputs.batch.query_lens_host = batch.counts
        inputs.batch.context_lens_host = [start + count for start, count in zip(batch.starts, batch.counts)]
        inputs.batch.blocks_host = [request.blocks for request in batch.requests]
        inputs.batch.plan = self._planner.plan(inputs.batch.context_lens_host[: batch.num_decodes])
        return inputs

    def _allocate(self, blocks: int) -> list[tuple[CacheTensor, CacheTensor]]:
        shape, config = self.model.config, self.config
        return allocate_kv_cache(
            config.kv_dtype,
            shape.layers,
            blocks,
            config.block_size,
            shape.kv_heads,
            shape.head_dim,
            self.model.dtype,
            self.device,
        )

    def _choose_blocks(self) -> int:
        """Blocks of the cache that requests may use."""
        config = self.config
        return choose_block_count(
            self.model,
            config.kv_blocks,
            block_size=config.block_size,
            max_running=config.max_running,
            max_model_len=config.max_model_len,
            kv_dtype=config.kv_dtype,
            memory_share=config.memory_share,
            activation_bytes=self._measure_activations() if self.device.type == "cuda" else 0,
        )

    def _measure_activations(self) -> int:
        """Bytes the largest steps need beside weights and cache: run them once over a cache of one block.

        A layer's activations are gone when the next one runs, so one layer of each kind needs what all need.
        """
        model = self.model
        if isinstance(model, LlamaModel):
            self.model = excerpt(model, representative_layers(model))
        self.kv_cache = self._allocate(1)
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        self.warm_up([self.config.max_running])
        torch.cuda.synchronize(self.device)
        peak = torch.cuda.max_memory_allocated(self.device) - before
        self.kv_cache, self.model = [], model
        return peak
