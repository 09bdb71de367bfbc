"""Mean loss of a fixed text: the number whose stillness says that the numerics did not move between rounds."""

from __future__ import annotations

import torch

from sits.engine.step import StepBuilder, StepShape, view_step
from sits.engine.step_batch import StepBatch
from sits.engine.stopping import blocks_for
from sits.engine.warm_up import prefill_step
from sits.models.model import CausalModel
from sits.quant.kv import allocate_kv_cache

_BLOCK_SIZE = 16


@torch.inference_mode()
def token_loss(model: CausalModel, token_ids: list[int], kv_dtype: str = "auto") -> float:
    """Mean negative log-likelihood in nats of ``token_ids[1:]``, each given all before it; one step, own cache."""
    shape, count = model.config, len(token_ids) - 1
    blocks = blocks_for(count, _BLOCK_SIZE)
    cache = allocate_kv_cache(
        kv_dtype, shape.layers, blocks, _BLOCK_SIZE, shape.kv_heads, shape.head_dim, model.dtype, model.device
    )
    batch: StepBatch = prefill_step(count, count, 1, _BLOCK_SIZE)
    request = batch.requests[0]
    request.token_ids = token_ids[:count]
    batch.decode_ids = token_ids[: batch.num_decodes]
    request.blocks = list(range(blocks))
    builder = StepBuilder(_BLOCK_SIZE, 1, blocks)
    sizes = StepShape(count, 1, 1, blocks)
    inputs = view_step(builder.pack(batch, sizes).to(model.device), sizes, _BLOCK_SIZE, batch.num_decodes)
    inputs.batch.query_lens_host = [count]
    inputs.batch.context_lens_host = [count]
    inputs.batch.blocks_host = [request.blocks]
    every_row = torch.arange(count, device=model.device)
    logits = model.forward(inputs.token_ids, inputs.batch, cache, every_row)
    targets = torch.tensor(token_ids[1:], device=model.device)
    return float(torch.nn.functional.cross_entropy(logits, targets))
