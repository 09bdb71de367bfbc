"""Norms, activation, rotary embedding and KV write on the CPU, in as few PyTorch calls as possible: at one token a
call costs more than the arithmetic in it."""

from __future__ import annotations

import math

import torch

from sits.kernels.attention_batch import AttentionBatch
from sits.kernels.cpu.plan import plan_of
from sits.kernels.kv_cache import CacheTensor
from sits.kernels.reference.layer import rope_kv_write as reference_rope_kv_write
from sits.kernels.registry import register


@register("rms_norm", "cpu", devices=("cpu",), priority=10)
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x[T, N] -> [T, N]: x * weight / sqrt(|x|^2 / N + eps), with the root as the hypotenuse of |x| and sqrt(N eps).

    Half the time of ``torch.nn.functional.rms_norm``, which runs eight small operators.
    """
    width = x.shape[-1]
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    root = length.mul_(width**-0.5).hypot(_constant(math.sqrt(eps)))
    if x.dtype == torch.float32:
        return (x * weight).div_(root)
    return (x / root).to(x.dtype).mul_(weight)


_constants: dict[float, torch.Tensor] = {}


def _constant(value: float) -> torch.Tensor:
    if value not in _constants:
        _constants[value] = torch.tensor(value)
    return _constants[value]


@register("add_rms_norm", "cpu", devices=("cpu",), priority=10)
def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(x + residual) normed, and the sum, which takes the place of x."""
    summed = x.add_(residual)
    return rms_norm(summed, weight, eps), summed


@register("silu_mul", "cpu", devices=("cpu",), priority=10)
def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up[T, 2I] -> silu(gate) * up, [T, I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate).mul_(up)


@register("rope_kv_write", "cpu", devices=("cpu",), priority=10)
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
    """Rotate q and k in one go, store k and v, return q[T, H, D] (a view)."""
    if (
        not isinstance(k_cache, torch.Tensor)
        or not isinstance(v_cache, torch.Tensor)
        or cos_sin.shape[-1] != head_dim
    ):  # 8-bit caches and partly rotated heads
        return reference_rope_kv_write(qkv, cos_sin, k_cache, v_cache, batch, heads, kv_heads, head_dim)
    plan = plan_of(batch)
    cos, sin = plan.rotary(batch, cos_sin, qkv.dtype)
    per_head = qkv.view(-1, heads + 2 * kv_heads, head_dim)
    qk = per_head[:, : heads + kv_heads]
    rotated = torch.addcmul(qk * cos, qk.roll(head_dim // 2, -1), sin)
    k, v = rotated[:, heads:], per_head[:, heads + kv_heads :]
    if plan.kept is not None:
        k, v = k[plan.kept], v[plan.kept]
    k_cache.view(-1, kv_heads, head_dim).index_copy_(0, plan.slots, k.to(k_cache.dtype))
    v_cache.view(-1, kv_heads, head_dim).index_copy_(0, plan.slots, v.to(v_cache.dtype))
    return rotated[:, :heads]
