"""How many KV blocks fit: a given number, what is free on the GPU, or a share of what is free in main memory."""

from __future__ import annotations

import torch

from sits.engine.stopping import blocks_for
from sits.errors import InputError
from sits.models.model import CausalModel
from sits.quant.kv import kv_bytes_per_token

_CPU_SHARE = 0.4  # of the free memory of a machine that others use too
_GPU_SLACK = 256 << 20  # captured graphs, library workspaces, fragmentation


def bytes_per_block(model: CausalModel, block_size: int, kv_dtype: str) -> int:
    """Bytes of one block over all layers, K and V, scales included."""
    shape = model.config
    return block_size * kv_bytes_per_token(kv_dtype, model.dtype, shape.layers, shape.kv_heads, shape.head_dim)


def choose_block_count(
    model: CausalModel,
    given: int | None,
    *,
    block_size: int,
    max_running: int,
    max_model_len: int,
    kv_dtype: str,
    memory_share: float,
    activation_bytes: int,
) -> int:
    """Usable blocks of the cache, without the scratch block; never more than all running requests could fill.

    Raises ``InputError`` when not even one block fits.
    """
    if block_size < 1:
        raise InputError(f"block_size must be at least 1, not {block_size}")
    size = bytes_per_block(model, block_size, kv_dtype)
    free = free_bytes(model.device, memory_share) - activation_bytes
    fit = max(0, free) // size - 1
    if given is not None:
        if given < 1:
            raise InputError(f"kv_blocks must be at least 1, not {given}")
        limit = fit if model.device.type == "cuda" else max(0, _available_memory()) // size - 1
        if given > limit:
            raise InputError(
                f"{given} KV blocks of {block_size} tokens take {given * size / 1e9:.1f} GB, but there is room for"
                f" {max(limit, 0)} blocks",
                "Lower kv_blocks",
            )
        return given
    if fit < 1:
        raise InputError(
            f"no memory is left for one KV block of {block_size} tokens ({size / 1e6:.1f} MB)",
            "Use a smaller model or dtype, quantise the weights, or lower max_step_tokens",
        )
    return min(fit, max_running * blocks_for(max_model_len, block_size))


def free_bytes(device: torch.device, memory_share: float) -> int:
    """Bytes the cache may take on a device. ``memory_share`` bounds what the whole process takes of a GPU."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(device)
        return int(free - (1 - memory_share) * total) - _GPU_SLACK
    return int(_available_memory() * _CPU_SHARE)


def _available_memory() -> int:
    import psutil

    return int(psutil.virtual_memory().available)
