"""Decode attention over the paged cache, split over the sequence so that all multiprocessors end together.

The work of a step is a line of tiles: request by request, KV head by KV head, TILE tokens each. Worker ``w`` of ``W``
takes tiles ``w * share .. (w + 1) * share``, wherever they fall (``policy.kv_planner`` has the same formula and its
proof). The kernel derives everything from ``context_lens`` on the device, so a captured graph replays with new
lengths. A worker that covers a whole (request, head) writes the result; the others leave a partial result
(maximum, sum, weighted values) that a second, small launch combines.

All query heads of a KV head are handled together, padded to the 16 rows of a tensor-core tile: K and V are read once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sits.kernels.triton.launch import begin, release_next, wait_previous
from sits.kernels.triton.widen import widen


@triton.jit
def work_line(context_lens, window, requests, BATCH: tl.constexpr, TILE: tl.constexpr):
    """Per request: context length, first tile inside the window, tiles, and tiles up to and including it."""
    index = tl.arange(0, BATCH)
    length = tl.load(context_lens + index, mask=index < requests, other=0)
    first = tl.where(window > 0, tl.maximum(length - window, 0) // TILE, 0)
    tiles = (length + TILE - 1) // TILE - first
    return index, length, first, tiles, tl.cumsum(tiles, 0)


@triton.jit
def static_chunk(lengths, TILE: tl.constexpr, SPLITS: tl.constexpr):
    """Tiles per piece when every request is cut into SPLITS pieces of the longest context (the baseline rule)."""
    return tl.maximum(((tl.max(lengths, 0) + TILE - 1) // TILE + SPLITS - 1) // SPLITS, 1)


@triton.jit
def attend_tiles(
    query, best, total, mixed, k_cache, v_cache, k_scale, v_scale, table,
    tile_begin, tile_end, oldest, end, head, scale,
    BLOCK_SIZE: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, TILE: tl.constexpr,
    SCALED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Online softmax over cached positions ``oldest <= p < end`` of the given tiles; ``scale`` includes log2(e).

    Unless ``best`` is already finite, every tile must hold at least one such position.
    """
    column = tl.arange(0, BLOCK_D)
    token = tl.arange(0, TILE)
    in_head = column < D
    dtype = query.dtype
    for tile in tl.range(tile_begin, tile_end, num_stages=STAGES):
        position = tile * TILE + token
        valid = (position < end) & (position >= oldest)
        block = tl.load(table + position // BLOCK_SIZE, mask=valid, other=0).to(tl.int64)
        slot = (block * BLOCK_SIZE + position % BLOCK_SIZE) * KV_HEADS + head
        place = slot[:, None] * D + column[None, :]
        kv_mask = valid[:, None] & in_head[None, :]
        # Masked loads give zeros: what lies in slots never written must not reach the product, NaN times 0 is NaN.
        k = tl.load(k_cache + place, mask=kv_mask, other=0.0)
        v = tl.load(v_cache + place, mask=kv_mask, other=0.0)
        score = tl.dot(query, tl.trans(widen(k, dtype)), input_precision="ieee") * scale
        if SCALED:
            score *= tl.load(k_scale + slot, mask=valid, other=0.0).to(tl.float32)[None, :]
        score = tl.where(valid[None, :], score, float("-inf"))
        new_best = tl.maximum(best, tl.max(score, 1))
        fade = tl.exp2(best - new_best)
        weight = tl.exp2(score - new_best[:, None])
        total = total * fade + tl.sum(weight, 1)
        if SCALED:
            weight *= tl.load(v_scale + slot, mask=valid, other=0.0).to(tl.float32)[None, :]
        mixed = mixed * fade[:, None] + tl.dot(weight.to(dtype), widen(v, dtype), input_precision="ieee")
        best = new_best
    return best, total, mixed


@triton.jit
def decode_kernel(
    q, k_cache, v_cache, k_scale, v_scale, out, partial, partial_stats, context_lens, block_tables,
    scale, window, requests, table_stride, min_share,
    BLOCK_SIZE: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr,
    BLOCK_D: tl.constexpr, TILE: tl.constexpr, BATCH: tl.constexpr, SCALED: tl.constexpr, STAGES: tl.constexpr,
    SPLITS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    wait_previous(PDL)
    worker = tl.program_id(0)
    index, lengths, firsts, tile_counts, ends = work_line(context_lens, window, requests, BATCH, TILE)
    units = tl.sum(tile_counts, 0) * KV_HEADS
    share = tl.maximum((units + tl.num_programs(0) - 1) // tl.num_programs(0), min_share)
    begin_unit = worker * share
    end_unit = tl.minimum(begin_unit + share, units)
    if SPLITS > 0:
        chunk = static_chunk(lengths, TILE, SPLITS)
        line = worker // SPLITS
        mine = index == line // KV_HEADS
        whole_tiles = tl.sum(tl.where(mine, tile_counts, 0), 0)
        before = (tl.sum(tl.where(mine, ends, 0), 0) - whole_tiles) * KV_HEADS + (line % KV_HEADS) * whole_tiles
        begin_unit = before + tl.minimum((worker % SPLITS) * chunk, whole_tiles)
        end_unit = before + tl.minimum((worker % SPLITS + 1) * chunk, whole_tiles)
    row = tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK_D)
    in_head = column < D
    dtype = q.dtype.element_ty
    unit = begin_unit
    while unit < end_unit:
        request = tl.sum((ends * KV_HEADS <= unit).to(tl.int32), 0)
        here = index == request
        tiles = tl.sum(tl.where(here, tile_counts, 0), 0)
        length = tl.sum(tl.where(here, lengths, 0), 0)
        first = tl.sum(tl.where(here, firsts, 0), 0)
        local = unit - (tl.sum(tl.where(here, ends, 0), 0) - tiles) * KV_HEADS
        head = local // tiles
        tile_begin = local % tiles
        tile_end = tl.minimum(tiles, tile_begin + end_unit - unit)
        oldest = tl.where(window > 0, tl.maximum(length - window, 0), 0)

        query_row = request.to(tl.int64) * KV_HEADS * GROUP + head * GROUP + row
        in_group = row < GROUP
        q_mask = in_group[:, None] & in_head[None, :]
        query = tl.load(q + query_row[:, None] * D + column[None, :], mask=q_mask, other=0.0)
        best = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        mixed = tl.zeros([ROWS, BLOCK_D], tl.float32)
        best, total, mixed = attend_tiles(
            query, best, total, mixed, k_cache, v_cache, k_scale, v_scale,
            block_tables + request.to(tl.int64) * table_stride,
            first + tile_begin, first + tile_end, oldest, length, head, scale,
            BLOCK_SIZE, KV_HEADS, D, BLOCK_D, TILE, SCALED, STAGES,
        )  # fmt: skip
        if (tile_begin == 0) & (tile_end == tiles):
            result = mixed / total[:, None]
            tl.store(out + query_row[:, None] * D + column[None, :], result.to(dtype), mask=q_mask)
        else:
            place = worker * 2 + tl.where(unit == begin_unit, 0, 1)
            partial_row = place.to(tl.int64) * GROUP + row
            tl.store(partial + partial_row[:, None] * D + column[None, :], mixed, mask=q_mask)
            tl.store(partial_stats + partial_row * 2, best, mask=in_group)
            tl.store(partial_stats + partial_row * 2 + 1, total, mask=in_group)
        unit += tile_end - tile_begin
    release_next(PDL)


@triton.jit
def combine_kernel(
    partial, partial_stats, out, context_lens, window, requests, workers, min_share,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, TILE: tl.constexpr,
    BATCH: tl.constexpr, PARTS: tl.constexpr, HEADS: tl.constexpr, SPLITS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One program per (request, KV head) and HEADS query heads; returns at once when nothing was split."""
    begin(PDL)
    request = tl.program_id(0) // KV_HEADS
    head = tl.program_id(0) % KV_HEADS
    index, lengths, _, tile_counts, ends = work_line(context_lens, window, requests, BATCH, TILE)
    units = tl.sum(tile_counts, 0) * KV_HEADS
    share = tl.maximum((units + workers - 1) // workers, min_share)
    tiles = tl.sum(tl.where(index == request, tile_counts, 0), 0)
    begin_unit = (tl.sum(tl.where(index == request, ends, 0), 0) - tiles) * KV_HEADS + head * tiles
    first_worker = begin_unit // share
    last_worker = (begin_unit + tiles - 1) // share
    if SPLITS > 0:
        chunk = static_chunk(lengths, TILE, SPLITS)
        first_worker = (request * KV_HEADS + head) * SPLITS
        last_worker = first_worker + (tiles + chunk - 1) // chunk - 1
    column = tl.arange(0, BLOCK_D)
    in_head = column < D
    if (tiles > 0) & (last_worker > first_worker):
        for offset in tl.static_range(HEADS):
            member = tl.program_id(1) * HEADS + offset
            best = tl.full([1], float("-inf"), tl.float32)
            total = tl.zeros([1], tl.float32)
            mixed = tl.zeros([BLOCK_D], tl.float32)
            for start in range(first_worker, last_worker + 1, PARTS):
                worker = start + tl.arange(0, PARTS)
                there = worker <= last_worker
                second = tl.where(worker * share < begin_unit, 1, 0)  # its first segment belonged to the head before
                if SPLITS > 0:
                    second = tl.zeros([PARTS], tl.int32)
                place = (worker * 2 + second).to(tl.int64) * GROUP + member
                part_best = tl.load(partial_stats + place * 2, mask=there, other=float("-inf"))
                part_total = tl.load(partial_stats + place * 2 + 1, mask=there, other=0.0)
                values = tl.load(
                    partial + place[:, None] * D + column[None, :], mask=there[:, None] & in_head[None, :], other=0.0
                )
                new_best = tl.maximum(best, tl.max(part_best, 0))
                fade = tl.exp2(best - new_best)
                gain = tl.exp2(part_best - new_best)
                total = total * fade + tl.sum(part_total * gain, 0)
                mixed = mixed * fade + tl.sum(values * gain[:, None], 0)
                best = new_best
            row = request.to(tl.int64) * KV_HEADS * GROUP + head * GROUP + member
            tl.store(out + row * D + column, (mixed / total).to(out.dtype.element_ty), mask=in_head)
