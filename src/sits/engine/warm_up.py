"""Steps that exercise the model without any request: to compile, to measure memory, to capture graphs.

Their tokens live in the scratch block, so no request's cache is touched.
"""

from __future__ import annotations

from sits.cache.block_pool import SCRATCH_BLOCK
from sits.engine.request import Request, RequestState
from sits.engine.sampling_params import SamplingParams
from sits.engine.step_batch import StepBatch
from sits.engine.stopping import blocks_for


def _request(row: int, tokens: int, computed: int, block_size: int) -> Request:
    request = Request(f"warm-up-{row}", [0] * tokens, SamplingParams())
    request.row = row
    request.num_computed = computed
    request.blocks = [SCRATCH_BLOCK] * blocks_for(tokens, block_size)
    request.state = RequestState.RUNNING
    return request


def prefill_step(tokens: int, max_model_len: int, max_rows: int, block_size: int) -> StepBatch:
    """A step of ``tokens`` prompt tokens in as few requests as possible."""
    counts: list[int] = []
    while sum(counts) < tokens and len(counts) < max_rows:
        counts.append(min(tokens - sum(counts), max_model_len))
    requests = [_request(row, count, 0, block_size) for row, count in enumerate(counts)]
    return StepBatch(0, "warm-up", requests, counts, counts.count(1), list(range(len(counts))))


def decode_step(rows: int, context: int, block_size: int) -> StepBatch:
    """A step in which ``rows`` requests decode at a context of ``context`` tokens."""
    requests = [_request(row, context, context - 1, block_size) for row in range(rows)]
    return StepBatch(0, "warm-up", requests, [1] * rows, rows, list(range(rows)))
