"""Split qkv, rotate q and k, write k and v into the paged cache (16-bit, INT8 or FP8), return q: one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sits.kernels.attention_batch import AttentionBatch
from sits.kernels.kv_cache import LARGEST, CacheTensor, ScaledCache
from sits.kernels.registry import register
from sits.kernels.triton.launch import begin, pdl_options


@triton.jit
def round_to_even(x):
    """Nearest integer, ties to even, for |x| < 2^22 (the float32 ulp does the rounding)."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def store_heads(cache, scales, value, slot, head, columns, mask, in_head, KV_HEADS, D, LARGEST: tl.constexpr):
    """Write value[HEADS, D] of one token; ``mask`` selects this cache's heads. Returns what reading gives back."""
    place = (slot * KV_HEADS + head)[:, None] * D + columns[None, :]
    keep = mask[:, None] & in_head[None, :]
    kind = cache.dtype.element_ty
    if LARGEST == 0.0:
        tl.store(cache + place, value.to(kind), mask=keep)
        return value.to(kind).to(tl.float32)
    else:
        absmax = tl.max(tl.where(in_head[None, :], tl.abs(value), 0.0), axis=1)
        scale = tl.minimum(absmax / LARGEST, 65504.0)
        # The largest value of some passes NaN over, and saturating would make it a number: the scale keeps it.
        bad = tl.max(tl.where(in_head[None, :] & (value != value), 1, 0), axis=1)
        scale = tl.where(bad > 0, float("nan"), scale).to(tl.float16)
        wide = scale.to(tl.float32)[:, None]
        steps = value / tl.where(wide == 0.0, 1.0, wide)
        steps = tl.minimum(tl.maximum(steps, -LARGEST), LARGEST)
        if LARGEST == 127.0:
            steps = round_to_even(steps)
        tl.store(cache + place, steps.to(kind), mask=keep)
        tl.store(scales + slot * KV_HEADS + head, scale, mask=mask)
        return steps.to(kind).to(tl.float32) * wide


@triton.jit
def rotate_rows(rows, columns, keep, turn, cos_sin, half, dtype: tl.constexpr):
    """Load heads ``rows[N, 1] + columns`` and rotate those that ``turn`` selects; rounded to ``dtype``, as float32.

    ``cos_sin`` points at the row of the token's position: cos, then sin, ``half`` columns each.
    """
    value = tl.load(rows + columns[None, :], mask=keep, other=0.0).to(tl.float32)
    # The other member of each rotated pair; columns past the rotary part are left as they are.
    rotary = columns < 2 * half
    turns = keep & rotary[None, :] & turn[:, None]
    partner_column = tl.where(columns < half, columns + half, columns - half)
    partner = tl.load(rows + partner_column[None, :], mask=turns, other=0.0).to(tl.float32)
    angle = tl.where(columns < half, columns, columns - half)
    cos = tl.load(cos_sin + angle, mask=rotary, other=1.0).to(tl.float32)
    sin = tl.load(cos_sin + half + angle, mask=rotary, other=0.0).to(tl.float32)
    sin = tl.where(columns < half, -sin, sin)
    rotated = tl.where(turns, value * cos[None, :] + partner * sin[None, :], value)
    return rotated.to(dtype).to(tl.float32)


@triton.jit
def rope_kv_write_kernel(
    qkv, cos_sin, positions, slots, q_out, k_cache, v_cache, k_scale, v_scale, qkv_stride, cos_stride, half,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, HEADS: tl.constexpr,
    LARGEST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)  # over q heads, then k heads, then v heads
    columns = tl.arange(0, BLOCK_D)
    in_head = columns < D
    begin(PDL)
    position = tl.load(positions + token)
    slot = tl.load(slots + token)
    exists = head < Q_HEADS + 2 * KV_HEADS
    rows = qkv + token * qkv_stride + head[:, None] * D
    keep = exists[:, None] & in_head[None, :]
    dtype = qkv.dtype.element_ty
    written = rotate_rows(
        rows, columns, keep, head < Q_HEADS + KV_HEADS, cos_sin + position * cos_stride, half, dtype
    )
    is_q = head < Q_HEADS
    tl.store(
        q_out + (token * Q_HEADS + head)[:, None] * D + columns[None, :], written.to(dtype), mask=keep & is_q[:, None]
    )
    # A negative slot writes nothing.
    kv_head = tl.where(slot >= 0, head - Q_HEADS, -1)
    is_k = (kv_head >= 0) & (kv_head < KV_HEADS)
    is_v = (kv_head >= KV_HEADS) & (kv_head < 2 * KV_HEADS)
    store_heads(k_cache, k_scale, written, slot, kv_head, columns, is_k, in_head, KV_HEADS, D, LARGEST)
    store_heads(v_cache, v_scale, written, slot, kv_head - KV_HEADS, columns, is_v, in_head, KV_HEADS, D, LARGEST)


@register("rope_kv_write", "triton", devices=("cuda",), priority=10)
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
    """Rotate q and k, store k and v, return q[T, H, D]; see ``sits.kernels.ops``."""
    tokens = qkv.shape[0]
    if qkv.stride(-1) != 1:
        qkv = qkv.contiguous()
    q = torch.empty((tokens, heads, head_dim), dtype=qkv.dtype, device=qkv.device)
    if not tokens:
        return q
    scaled = isinstance(k_cache, ScaledCache)
    k_data, v_data = (k_cache.data, v_cache.data) if scaled else (k_cache, v_cache)
    k_scale, v_scale = (k_cache.scale, v_cache.scale) if scaled else (q, q)
    per_program = 8
    grid = (tokens, triton.cdiv(heads + 2 * kv_heads, per_program))
    rope_kv_write_kernel[grid](
        qkv, cos_sin, batch.positions, batch.slots, q, k_data, v_data, k_scale, v_scale,
        qkv.stride(0), cos_sin.stride(0), cos_sin.shape[1] // 2,
        Q_HEADS=heads, KV_HEADS=kv_heads, D=head_dim, BLOCK_D=triton.next_power_of_2(head_dim), HEADS=per_program,
        LARGEST=LARGEST[k_cache.dtype] if scaled else 0.0, num_warps=4, **pdl_options(qkv),
    )  # fmt: skip
    return q
