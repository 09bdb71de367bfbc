"""The K or V cache of a layer: a plain tensor, or 8-bit values with one scale per token and head.

Operators take either as ``k_cache`` and ``v_cache``. A kernel that reads 8-bit values uses ``cache.data`` and
``cache.scale``; one that cannot says so in its ``supports`` test (property ``kv_dtype``: ``auto``, ``int8`` or
``fp8``).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

#: Largest magnitude of a stored value, by storage dtype.
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


@dataclass(slots=True)
class ScaledCache:
    """8-bit cache: the value of a token's head is ``data * scale``."""

    data: torch.Tensor  # [num_blocks, block_size, kv_heads, head_dim] int8 or float8_e4m3fn
    scale: torch.Tensor  # [num_blocks, block_size, kv_heads] float16

    @property
    def shape(self) -> torch.Size:
        """Of the values."""
        return self.data.shape

    @property
    def dtype(self) -> torch.dtype:
        """Of the stored values."""
        return self.data.dtype

    @property
    def device(self) -> torch.device:
        return self.data.device

    @property
    def nbytes(self) -> int:
        """Values and scales."""
        return self.data.nbytes + self.scale.nbytes


CacheTensor = torch.Tensor | ScaledCache


def quantize_heads(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """x[..., D] -> (8-bit values [..., D], float16 scales [...]): symmetric, scale = absmax / largest value.

    The scale is rounded to float16 before the values are, so reading back with the stored scale is what was meant.
    Values are saturated, never wrapped; an all-zero head gets scale 0 and reads back as zeros.
    """
    largest = LARGEST[dtype]
    wide = x.float()
    scale = (wide.abs().amax(-1) / largest).clamp_max(torch.finfo(torch.float16).max).to(torch.float16)
    divisor = torch.where(scale == 0, 1.0, scale.float()).unsqueeze(-1)
    steps = (wide / divisor).clamp_(-largest, largest)
    return (steps.round_() if dtype == torch.int8 else steps).to(dtype), scale


def write_tokens(cache: CacheTensor, slots: torch.Tensor, x: torch.Tensor) -> None:
    """Store x[T, kv_heads, D] at flat slots[T] (all >= 0), quantising when the cache is 8-bit."""
    if isinstance(cache, ScaledCache):
        values, scale = quantize_heads(x, cache.dtype)
        # Byte views: indexed writes are not implemented for the float8 types on every device.
        flat = cache.data.view(torch.uint8).view(-1, *x.shape[1:])
        flat.index_copy_(0, slots, values.view(torch.uint8))
        cache.scale.view(-1, x.shape[1]).index_copy_(0, slots, scale)
    else:
        cache.view(-1, *x.shape[1:]).index_copy_(0, slots, x.to(cache.dtype))


def gather_tokens(cache: CacheTensor, blocks: torch.Tensor, length: int, dtype: torch.dtype) -> torch.Tensor:
    """The first ``length`` tokens of the given blocks[n], in order: [length, kv_heads, head_dim] of ``dtype``."""
    if isinstance(cache, ScaledCache):
        values = cache.data.view(torch.uint8)[blocks].view(cache.dtype).flatten(0, 1)[:length]
        scale = cache.scale[blocks].flatten(0, 1)[:length]
        return (values.float() * scale.float().unsqueeze(-1)).to(dtype)
    return cache[blocks].flatten(0, 1)[:length].to(dtype)


def gather_slots(cache: CacheTensor, slots: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tokens at flat slots[S], of any requests in any order: [S, kv_heads, head_dim] of ``dtype``."""
    heads = cache.shape[2:]
    if isinstance(cache, ScaledCache):
        values = cache.data.view(torch.uint8).view(-1, *heads).index_select(0, slots).view(cache.dtype)
        scale = cache.scale.view(-1, heads[0]).index_select(0, slots)
        return (values.float() * scale.float().unsqueeze(-1)).to(dtype)
    return cache.view(-1, *heads).index_select(0, slots).to(dtype)
