"""Norms, activation, rotary embedding and the KV write, in plain PyTorch."""

from __future__ import annotations

import torch

from sits.kernels.attention_batch import AttentionBatch
from sits.kernels.kv_cache import CacheTensor, write_tokens
from sits.kernels.registry import register


@register("rms_norm", "reference")
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x[T, N] -> [T, N]; see ``sits.kernels.ops``."""
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (wide * scale).to(x.dtype) * weight


@register("add_rms_norm", "reference")
def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(x + residual) normed, and the sum itself; both [T, N]."""
    summed = x + residual
    return rms_norm(summed, weight, eps), summed


@register("silu_mul", "reference")
def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up[T, 2I] -> silu(gate) * up, [T, I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Half-split rotary embedding of x[T, heads, D]; cos and sin are [T, rotary_dim / 2]."""
    half = cos.shape[-1]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    rotated = (first * cos - second * sin, second * cos + first * sin, rest)
    return torch.cat(rotated, dim=-1).to(x.dtype)


@register("rope_kv_write", "reference")
def rope_kv_write(
    qkv: torch.Tensor,
    cos_sin: torch.Tensor,
    k_cache: CacheTensor,
    v_cache: CacheTensor,
    batch: AttentionBatch,
    heads: int,
    kv_heads: int,
    head_dim: int,
) -> torch.Tensor:
    """Rotate q and k, store k and v, return q[T, H, D]."""
    tokens = qkv.shape[0]
    q, k, v = qkv.split((heads * head_dim, kv_heads * head_dim, kv_heads * head_dim), dim=-1)
    cos, sin = cos_sin[batch.positions].chunk(2, dim=-1)
    q = rotate(q.view(tokens, heads, head_dim), cos, sin)
    k = rotate(k.view(tokens, kv_heads, head_dim), cos, sin)
    v = v.view(tokens, kv_heads, head_dim)
    slots = batch.slots
    if slots.device.type == "cpu" and bool((slots < 0).any()):
        keep = slots >= 0
        slots, k, v = slots[keep], k[keep], v[keep]
    write_tokens(k_cache, slots, k)
    write_tokens(v_cache, slots, v)
    return q
