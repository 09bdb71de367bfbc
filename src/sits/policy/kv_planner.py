"""How decode attention and prefill are cut to a device: block size, tile, splits per request, chunk length.

Numbers in, numbers out: no tensors. The decode kernel applies :func:`share_of` and the same line of tiles on the
device, so what is proven here (every position once, shares within one tile) holds for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sits.errors import InputError


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """What the planner needs to know of a GPU."""

    multiprocessors: int
    shared_memory: int  # bytes a block can have (opt-in limit); 227 KiB on Hopper
    shared_memory_per_multiprocessor: int = 0  # bytes; 0 = shared_memory + 1 KiB

    @property
    def shared_total(self) -> int:
        return self.shared_memory_per_multiprocessor or self.shared_memory + 1024


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """Attention heads and the storage of K and V."""

    heads: int
    kv_heads: int
    head_dim: int
    kv_bytes: int = 2  # of a stored value

    @property
    def padded_dim(self) -> int:
        """Columns of a tile as the kernel holds it: the next power of two."""
        return 1 << (self.head_dim - 1).bit_length()


LONG_CONTEXT = 32768  # tokens from which more, smaller programs were measured to win


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """What a decode attention launch is given: see ``kernels.triton.attention.decode_shape``."""

    tile: int  # tokens per tile
    workers: int  # programs launched
    min_share: int  # fewest tiles worth a program
    stages: int  # depth of the load pipeline
    splits: int = 0  # > 0: the static rule, every request cut into this many equal pieces of the longest context


class Segment(NamedTuple):
    """Consecutive tokens of one request and KV head, done by one worker."""

    worker: int
    request: int
    head: int
    begin: int
    end: int


def article_block_size(shared_memory: int, heads: int) -> int:
    """SPEC 1.1, the article's rule: clamp(shared_memory // (2 * 2 * heads * 128), 64, 512). The named baseline.

    With the 227 KiB of a Hopper block it is 64 for any model of more than 7 heads.
    """
    if shared_memory < 0 or heads < 1:
        raise InputError(f"article_block_size needs shared memory >= 0 and heads >= 1, not {shared_memory}, {heads}")
    return max(64, min(512, shared_memory // (2 * 2 * heads * 128)))


def tile_size(device: DeviceLimits, layout: HeadLayout, stages: int = 5) -> int:
    """Tokens per tile: the most that lets two programs share a multiprocessor, 16 to 64.

    A tile of K and V occupies ``2 * tile * padded_dim * kv_bytes``; ``stages - 2`` of them are in flight (the block
    table and K take a stage each). Registers bound a tile to 8192 values.
    """
    tile = max(16, min(64, 8192 // layout.padded_dim))
    while tile > 16 and 2 * tile * layout.padded_dim * layout.kv_bytes * (stages - 2) > device.shared_total // 2:
        tile //= 2
    return tile


def block_size(device: DeviceLimits, layout: HeadLayout, mean_context: float = 1024.0) -> int:
    """Tokens per KV cache block: the largest power of two within a tile that wastes at most 2 % of a mean context.

    The last block of a request is half empty on average. Never under 16 (a tile's smallest row of table entries).
    """
    size = tile_size(device, layout)
    while size > 16 and size / 2 > 0.02 * mean_context:
        size //= 2
    return size


def share_of(units: int, workers: int, min_share: int = 1) -> int:
    """Tiles per worker: everyone the same, the last ones less; the same formula runs on the device."""
    return max(-(-units // workers), min_share, 1)


def tile_counts(context_lens: Sequence[int], tile: int, window: int = 0) -> list[tuple[int, int]]:
    """(first tile inside the window, number of tiles) of every request."""
    counts = []
    for length in context_lens:
        first = max(length - window, 0) // tile if window > 0 else 0
        counts.append((first, -(-length // tile) - first))
    return counts


def segments(plan: DecodePlan, context_lens: Sequence[int], kv_heads: int, window: int = 0) -> Iterator[Segment]:
    """Who does what, in order of the workers."""
    counts = tile_counts(context_lens, plan.tile, window)
    pieces: Iterator[tuple[int, int, int, int, int, int]]
    if plan.splits:
        chunk = static_chunk(plan, max(context_lens, default=0))
        pieces = (
            (worker, request, head, tiles, split * chunk, min((split + 1) * chunk, tiles))
            for worker, (request, head, tiles, split) in enumerate(
                (request, head, tiles, split)
                for request, (_, tiles) in enumerate(counts)
                for head in range(kv_heads)
                for split in range(plan.splits)
            )
        )
    else:
        share = share_of(sum(tiles for _, tiles in counts) * kv_heads, plan.workers, plan.min_share)
        pieces = _walk(counts, kv_heads, share)
    for worker, request, head, _, begin, end in pieces:
        if begin < end:
            first, length = counts[request][0], context_lens[request]
            oldest = max(length - window, 0) if window > 0 else 0
            start, stop = max((first + begin) * plan.tile, oldest), min((first + end) * plan.tile, length)
            yield Segment(worker, request, head, start, stop)


def _walk(
    counts: Sequence[tuple[int, int]], kv_heads: int, share: int
) -> Iterator[tuple[int, int, int, int, int, int]]:
    unit = 0
    for request, (_, tiles) in enumerate(counts):
        for head in range(kv_heads):
            begin = 0
            while begin < tiles:
                worker = unit // share
                end = min(tiles, begin + (worker + 1) * share - unit)
                yield worker, request, head, tiles, begin, end
                unit += end - begin
                begin = end


def splits_per_request(plan: DecodePlan, context_lens: Sequence[int], kv_heads: int, window: int = 0) -> list[int]:
    """Most workers any KV head of each request is spread over."""
    pieces = [[0] * kv_heads for _ in context_lens]
    for segment in segments(plan, context_lens, kv_heads, window):
        pieces[segment.request][segment.head] += 1
    return [max(per_head, default=0) for per_head in pieces]


def plan_decode(
    device: DeviceLimits, layout: HeadLayout, context_lens: Sequence[int] | None = None, stages: int | None = None
) -> DecodePlan:
    """The plan of a decode step: equal shares of the line of tiles for two or three programs per multiprocessor.

    ``context_lens`` is what is known when a graph is captured; lengths at replay may be any. Fewer tiles than
    programs shorten the tile, so that short contexts still use the whole device. With long contexts (16-bit
    values), three programs on tiles of half the size hide more latency than two (measured on H200: 84 against 75 %
    of the read peak on a ragged batch). 8-bit values are bound by instructions, where a shallow pipeline costs least.
    """
    stages = stages or (3 if layout.kv_bytes == 1 else 5)
    tile = tile_size(device, layout, stages)
    workers = 2 * device.multiprocessors
    if tile == 64 and layout.kv_bytes > 1 and max(context_lens or (0,)) >= LONG_CONTEXT:
        return DecodePlan(32, 3 * device.multiprocessors, 1, stages)
    if context_lens:
        while tile > 32 and layout.kv_heads * sum(-(-length // tile) for length in context_lens) * 2 <= workers:
            tile //= 2
        units = layout.kv_heads * sum(-(-length // tile) for length in context_lens)
        workers = max(1, min(workers, units))  # a program without a tile only delays the next kernel
    return DecodePlan(tile, workers, 1, stages)


def static_plan(device: DeviceLimits, layout: HeadLayout, context_lens: Sequence[int], stages: int = 5) -> DecodePlan:
    """The baseline: one split count for all, chosen as flash-decoding does from batch, heads and the longest context.

    Every (request, KV head) gets as many pieces as fill the device, never shorter than the article's block.
    """
    tile = tile_size(device, layout, stages)
    longest = max(context_lens, default=1)
    block = article_block_size(device.shared_memory, layout.heads)
    lines = max(1, len(context_lens) * layout.kv_heads)
    splits = max(1, min(-(-2 * device.multiprocessors // lines), -(-longest // block)))
    return DecodePlan(tile, lines * splits, 1, stages, splits)


def static_chunk(plan: DecodePlan, longest: int) -> int:
    """Tiles per piece under the static rule."""
    tiles = -(-longest // plan.tile)
    return max(1, -(-tiles // plan.splits))


def prefill_chunk(
    flops_per_second: float, bytes_per_second: float, weight_bits: float, multiple: int = 128, overshoot: float = 4.0
) -> int:
    """Tokens of a prefill chunk that keep the matrix units busy.

    A weight of ``b`` bits is read once per chunk (b / 8 bytes) and used for 2 operations per token, so compute and
    memory balance at ``flops * b / (16 * bandwidth)`` tokens; ``overshoot`` times that leaves memory 1 / overshoot of
    the time. Rounded up to ``multiple`` (rows of a matrix-unit tile), 256 at least, 16384 at most.
    """
    if min(flops_per_second, bytes_per_second, weight_bits) <= 0:
        raise InputError("prefill_chunk needs positive rates and weight bits")
    balance = flops_per_second * weight_bits / (16.0 * bytes_per_second)
    return max(256, min(16384, int(-(-balance * overshoot // multiple)) * multiple))
