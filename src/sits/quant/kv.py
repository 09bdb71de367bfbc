"""What the KV cache is stored in: the model's dtype, INT8 or FP8 with one scale per token and head."""

from __future__ import annotations

import torch

from sits.errors import InputError
from sits.kernels.kv_cache import CacheTensor, ScaledCache

KV_DTYPES = {"auto": None, "int8": torch.int8, "fp8": torch.float8_e4m3fn}


def storage_dtype(kv_dtype: str) -> torch.dtype | None:
    """Storage dtype of ``auto`` (None: the model's own), ``int8`` or ``fp8``. Raises ``InputError`` otherwise."""
    if kv_dtype not in KV_DTYPES:
        raise InputError(f"unknown KV cache dtype {kv_dtype!r}", f"Choose one of {', '.join(KV_DTYPES)}")
    return KV_DTYPES[kv_dtype]


def kv_bytes_per_token(kv_dtype: str, model_dtype: torch.dtype, layers: int, kv_heads: int, head_dim: int) -> int:
    """Bytes a token occupies over all layers, K and V, scales included."""
    stored = storage_dtype(kv_dtype)
    per_head = head_dim * model_dtype.itemsize if stored is None else head_dim * stored.itemsize + 2
    return 2 * layers * kv_heads * per_head


def allocate_kv_cache(
    kv_dtype: str,
    layers: int,
    num_blocks: int,
    block_size: int,
    kv_heads: int,
    head_dim: int,
    model_dtype: torch.dtype,
    device: torch.device | str,
) -> list[tuple[CacheTensor, CacheTensor]]:
    """A zeroed cache: per layer (k, v), each [num_blocks, block_size, kv_heads, head_dim]."""
    stored = storage_dtype(kv_dtype)
    shape = (num_blocks, block_size, kv_heads, head_dim)

    def one() -> CacheTensor:
        if stored is None:
            return torch.zeros(shape, dtype=model_dtype, device=device)
        # Filled through a byte view: not every device can fill the float8 types.
        data = torch.zeros(shape, dtype=torch.uint8, device=device).view(stored)
        return ScaledCache(data, torch.zeros(shape[:-1], dtype=torch.float16, device=device))

    return [(one(), one()) for _ in range(layers)]
