"""Rotary embedding + KV write + decode attention in one launch, for batches of decode rows only.

The worker that owns a request's last tile also owns its new token: it rotates k, writes k and v to the cache and
starts its online softmax from them, so nobody waits for anybody. Partial results are combined by whichever worker
arrives last at a (request, KV head): counters count arrivals and are set back to zero for the next launch.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

from sits.kernels.attention_batch import LOG2E, AttentionBatch
from sits.kernels.kv_cache import LARGEST, CacheTensor, ScaledCache
from sits.kernels.registry import register
from sits.kernels.triton.attention import decode_shape, workspace
from sits.kernels.triton.decode_attention import attend_tiles, work_line
from sits.kernels.triton.launch import INTERPRETED, prefetch, release_next, wait_previous
from sits.kernels.triton.rope import rotate_rows, store_heads


@triton.jit
def load_part(partial, partial_stats, worker, begin_unit, share, last_worker, row, column, mask, GROUP, D):
    """A worker's partial result for one (request, KV head); -inf and zeros when the worker is past the last."""
    there = tl.where(worker <= last_worker, row, GROUP) < GROUP
    second = (worker * share < begin_unit).to(tl.int32)  # its first segment belonged to the head before
    place = (worker * 2 + second).to(tl.int64) * GROUP + row
    # From L2: another multiprocessor wrote these after this one may have cached the line.
    best = tl.load(partial_stats + place * 2, mask=there, other=float("-inf"), cache_modifier=".cg")
    total = tl.load(partial_stats + place * 2 + 1, mask=there, other=0.0, cache_modifier=".cg")
    values = tl.load(
        partial + place[:, None] * D + column[None, :], mask=mask & there[:, None], other=0.0, cache_modifier=".cg"
    )
    return best, total, values


@triton.jit
def fused_decode_kernel(
    qkv, cos_sin, positions, slots, k_cache, v_cache, k_scale, v_scale, out, partial, partial_stats, arrivals,
    context_lens, block_tables, scale, window, requests, qkv_stride, cos_stride, half, table_stride, min_share,
    BLOCK_SIZE: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr,
    BLOCK_D: tl.constexpr, TILE: tl.constexpr, BATCH: tl.constexpr, SCALED: tl.constexpr, LARGEST: tl.constexpr,
    STAGES: tl.constexpr, LINES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    worker = tl.program_id(0)
    index, lengths, firsts, tile_counts, ends = work_line(context_lens, window, requests, BATCH, TILE)
    units = tl.sum(tile_counts, 0) * KV_HEADS
    share = tl.maximum((units + tl.num_programs(0) - 1) // tl.num_programs(0), min_share)
    begin_unit = worker * share
    end_unit = tl.minimum(begin_unit + share, units)
    row = tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK_D)
    one = tl.arange(0, 1)
    in_head = column < D
    in_group = row < GROUP
    q_mask = in_group[:, None] & in_head[None, :]
    dtype = qkv.dtype.element_ty
    unit = begin_unit
    while unit < end_unit:
        request = tl.sum((ends * KV_HEADS <= unit).to(tl.int32), 0)
        here = index == request
        tiles = tl.sum(tl.where(here, tile_counts, 0), 0)
        length = tl.sum(tl.where(here, lengths, 0), 0)
        first = tl.sum(tl.where(here, firsts, 0), 0)
        head_line = (tl.sum(tl.where(here, ends, 0), 0) - tiles) * KV_HEADS
        head = (unit - head_line) // tiles
        tile_begin = (unit - head_line) % tiles
        tile_end = tl.minimum(tiles, tile_begin + end_unit - unit)
        oldest = tl.where(window > 0, tl.maximum(length - window, 0), 0)

        token = request.to(tl.int64)
        # Everything up to here, and the cache of earlier steps, was written before this step began: while the qkv
        # projection still runs, the first tile comes into L2.
        position = (first + tile_begin) * TILE + tl.arange(0, TILE)
        cached = (position >= oldest) & (position < length - 1)
        page = tl.load(block_tables + token * table_stride + position // BLOCK_SIZE, mask=cached, other=0).to(
            tl.int64
        )
        line = ((page * BLOCK_SIZE + position % BLOCK_SIZE) * KV_HEADS + head)[:, None] * D
        line += tl.arange(0, LINES)[None, :] * (128 // (k_cache.dtype.element_ty.primitive_bitwidth // 8))
        prefetch(k_cache + line, PDL)
        prefetch(v_cache + line, PDL)
        angles = cos_sin + tl.load(positions + token) * cos_stride
        slot = tl.load(slots + token)
        wait_previous(PDL)
        packed = qkv + token * qkv_stride
        query = rotate_rows(
            packed + (head * GROUP + row)[:, None] * D, column, q_mask, in_group, angles, half, dtype
        ).to(dtype)
        best = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        mixed = tl.zeros([ROWS, BLOCK_D], tl.float32)
        if tile_end == tiles:
            mine = tl.where(slot >= 0, one, 1) == 0
            k_rows = packed + ((KV_HEADS * GROUP + head) * D + one)[:, None]
            k_new = rotate_rows(k_rows, column, in_head[None, :], one == 0, angles, half, dtype)
            v_rows = packed + ((KV_HEADS * (GROUP + 1) + head) * D + one)[:, None]
            v_new = tl.load(v_rows + column[None, :], mask=in_head[None, :], other=0.0).to(tl.float32)
            heads = one + head
            k_new = store_heads(k_cache, k_scale, k_new, slot, heads, column, mine, in_head, KV_HEADS, D, LARGEST)
            v_new = store_heads(v_cache, v_scale, v_new, slot, heads, column, mine, in_head, KV_HEADS, D, LARGEST)
            best = tl.sum(query.to(tl.float32) * k_new, 1) * scale
            total = tl.full([ROWS], 1.0, tl.float32)
            mixed += v_new
        best, total, mixed = attend_tiles(
            query, best, total, mixed, k_cache, v_cache, k_scale, v_scale, block_tables + token * table_stride,
            first + tile_begin, first + tile_end, oldest, length - 1, head, scale,
            BLOCK_SIZE, KV_HEADS, D, BLOCK_D, TILE, SCALED, STAGES,
        )  # fmt: skip

        whole = (tile_begin == 0) & (tile_end == tiles)
        finished = whole
        if not whole:
            place = worker * 2 + tl.where(unit == begin_unit, 0, 1)
            partial_row = place.to(tl.int64) * GROUP + row
            tl.store(partial + partial_row[:, None] * D + column[None, :], mixed, mask=q_mask)
            tl.store(partial_stats + partial_row * 2, best, mask=in_group)
            tl.store(partial_stats + partial_row * 2 + 1, total, mask=in_group)
            line_begin = head_line + head * tiles
            first_worker = line_begin // share
            last_worker = (line_begin + tiles - 1) // share
            counter = arrivals + token * KV_HEADS + head
            tl.debug_barrier()  # every thread's stores come before the arrival
            arrived = tl.atomic_add(counter, 1, sem="acq_rel")
            finished = arrived == last_worker - first_worker
            if finished:
                tl.store(counter, 0)
                best = tl.full([ROWS], float("-inf"), tl.float32)
                total = tl.zeros([ROWS], tl.float32)
                mixed = tl.zeros([ROWS, BLOCK_D], tl.float32)
                # In order of the workers, so the sum does not depend on who came last; four loads at a time.
                for start in range(first_worker, last_worker + 1, 4):
                    best0, total0, values0 = load_part(
                        partial, partial_stats, start, line_begin, share, last_worker, row, column, q_mask, GROUP, D
                    )
                    best1, total1, values1 = load_part(
                        partial,
                        partial_stats,
                        start + 1,
                        line_begin,
                        share,
                        last_worker,
                        row,
                        column,
                        q_mask,
                        GROUP,
                        D,
                    )
                    best2, total2, values2 = load_part(
                        partial,
                        partial_stats,
                        start + 2,
                        line_begin,
                        share,
                        last_worker,
                        row,
                        column,
                        q_mask,
                        GROUP,
                        D,
                    )
                    best3, total3, values3 = load_part(
                        partial,
                        partial_stats,
                        start + 3,
                        line_begin,
                        share,
                        last_worker,
                        row,
                        column,
                        q_mask,
                        GROUP,
                        D,
                    )
                    new_best = tl.maximum(tl.maximum(best0, best1), tl.maximum(best2, best3))
                    new_best = tl.maximum(best, new_best)
                    safe = tl.where(new_best == float("-inf"), 0.0, new_best)  # rows beyond the group
                    fade = tl.exp2(best - safe)
                    gain0, gain1 = tl.exp2(best0 - safe), tl.exp2(best1 - safe)
                    gain2, gain3 = tl.exp2(best2 - safe), tl.exp2(best3 - safe)
                    total = total * fade + total0 * gain0 + total1 * gain1 + total2 * gain2 + total3 * gain3
                    mixed = mixed * fade[:, None] + values0 * gain0[:, None] + values1 * gain1[:, None]
                    mixed += values2 * gain2[:, None] + values3 * gain3[:, None]
                    best = new_best
        if finished:
            result_row = (token * KV_HEADS + head) * GROUP + row
            result = mixed / total[:, None]
            tl.store(out + result_row[:, None] * D + column[None, :], result.to(dtype), mask=q_mask)
        unit += tile_end - tile_begin
    release_next(PDL)


@cache
def _arrivals(device: torch.device, count: int) -> torch.Tensor:
    """Arrival counters; every launch leaves them at zero."""
    return torch.zeros(count, dtype=torch.int32, device=device)


@register("rope_decode_attention", "triton", devices=("cuda",), priority=10)
def fused_rope_attention(
    qkv: torch.Tensor,
    cos_sin: torch.Tensor,
    k_cache: CacheTensor,
    v_cache: CacheTensor,
    batch: AttentionBatch,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    window: int = 0,
    plan: Any = None,
) -> torch.Tensor:
    """qkv[R, (H + 2K) D], one new token per request -> attention output [R, H, D]; the cache gets k and v.

    The same as ``rope_kv_write`` then ``attention``, in one launch and without host data; ``batch.num_decodes`` must
    equal R. A row with context length 0 (padding of a captured graph) is skipped and its output left as it was.
    """
    requests = qkv.shape[0]
    if qkv.stride(-1) != 1:
        qkv = qkv.contiguous()
    out = torch.empty((requests, heads, head_dim), dtype=qkv.dtype, device=qkv.device)
    if not requests:
        return out
    if plan is None and not INTERPRETED:
        from sits.kernels.cuda.attention_choice import kernel_for

        kernel = kernel_for(qkv, k_cache, batch, heads, kv_heads, head_dim, cos_sin.shape[1] // 2)
        if kernel is not None:
            return kernel(qkv, cos_sin, k_cache, v_cache, batch, heads, kv_heads, head_dim, scale, window)
    scaled = isinstance(k_cache, ScaledCache)
    k_data, v_data = (k_cache.data, v_cache.data) if scaled else (k_cache, v_cache)
    k_scale, v_scale = (k_cache.scale, v_cache.scale) if scaled else (qkv, qkv)
    group = heads // kv_heads
    shape = decode_shape(plan or batch.plan, head_dim, qkv.device, kv_heads, batch.context_lens_host)
    partial, stats = workspace(qkv.device, shape.workers, group, head_dim)
    rounded = triton.next_power_of_2(requests)
    fused_decode_kernel[(shape.workers,)](
        qkv, cos_sin, batch.positions, batch.slots, k_data, v_data, k_scale, v_scale, out, partial, stats,
        _arrivals(qkv.device, rounded * kv_heads), batch.context_lens, batch.block_tables, scale * LOG2E, window,
        requests, qkv.stride(0), cos_sin.stride(0), cos_sin.shape[1] // 2, batch.block_tables.stride(0),
        shape.min_share,
        BLOCK_SIZE=batch.block_size, KV_HEADS=kv_heads, GROUP=group, ROWS=max(16, triton.next_power_of_2(group)),
        D=head_dim, BLOCK_D=triton.next_power_of_2(head_dim), TILE=shape.tile, BATCH=rounded, SCALED=scaled,
        LARGEST=LARGEST[k_cache.dtype] if scaled else 0.0, STAGES=shape.stages,
        LINES=triton.next_power_of_2(triton.cdiv(head_dim * k_data.element_size(), 128)),
        num_warps=4,
        # Its programs would sit on the multiprocessors until qkv ends and keep the next linear's CTAs away: a whole
        # layer of Llama-3-70B took 310 us with dependent launch and 235 without at batch 16 (docs/notes/tuning.md).
        PDL=False,
    )  # fmt: skip
    return out
