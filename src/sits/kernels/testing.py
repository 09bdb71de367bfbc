"""Paged caches with known contents and a float64 attention over them, for tests and benchmarks of kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sits.kernels.attention_batch import AttentionBatch
from sits.kernels.kv_cache import CacheTensor, ScaledCache, gather_tokens, write_tokens


def relative_error(actual: torch.Tensor, wanted: torch.Tensor) -> float:
    """||actual - wanted|| / ||wanted|| in float64; NaN when either has one."""
    wide = wanted.double()
    return float((actual.double() - wide).norm() / wide.norm().clamp_min(1e-300))


def paged_batch(
    context_lens: Sequence[int],
    query_lens: Sequence[int],
    block_size: int,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> AttentionBatch:
    """A step over requests of these lengths whose blocks lie in random order; decode rows must come first."""
    needed = [-(-length // block_size) for length in context_lens]
    order = torch.randperm(max(sum(needed), 1), generator=torch.Generator().manual_seed(seed)).int() + 1
    tables = torch.zeros(len(needed), max(needed, default=0) + 2, dtype=torch.int32)
    at = 0
    for row, count in enumerate(needed):
        tables[row, :count] = order[at : at + count]
        at += count
    positions, slots, start = [], [], [0]
    for row, (length, count) in enumerate(zip(context_lens, query_lens)):
        position = torch.arange(length - count, length)
        positions.append(position)
        slots.append(tables[row, position // block_size].long() * block_size + position % block_size)
        start.append(start[-1] + count)
    return AttentionBatch(
        positions=torch.cat(positions).to(device),
        slots=torch.cat(slots).to(device),
        query_start=torch.tensor(start, dtype=torch.int32, device=device),
        context_lens=torch.tensor(list(context_lens), dtype=torch.int32, device=device),
        block_tables=tables.to(device),
        block_size=block_size,
        num_decodes=next((i for i, count in enumerate(query_lens) if count != 1), len(query_lens)),
        query_lens_host=list(query_lens),
        context_lens_host=list(context_lens),
    )


def empty_cache(
    batch: AttentionBatch, kv_heads: int, head_dim: int, dtype: torch.dtype, kind: torch.dtype | None = None
) -> tuple[CacheTensor, CacheTensor]:
    """K and V caches with room for the batch, poisoned: NaN, or random bytes and NaN scales when 8-bit (``kind``)."""
    device = batch.block_tables.device
    blocks = int(batch.block_tables.max()) + 2
    shape = (blocks, batch.block_size, kv_heads, head_dim)

    def one() -> CacheTensor:
        if kind is None:
            return torch.full(shape, float("nan"), dtype=dtype, device=device)
        data = torch.randint(0, 256, shape, dtype=torch.uint8, device=device).view(kind)
        return ScaledCache(data, torch.full(shape[:3], float("nan"), dtype=torch.float16, device=device))

    return one(), one()


def fill_cache(cache: CacheTensor, batch: AttentionBatch, lengths: Sequence[int], dtype: torch.dtype) -> None:
    """Random values for the first ``lengths[r]`` tokens of every request."""
    device = batch.block_tables.device
    for row, length in enumerate(lengths):
        position = torch.arange(length, device=device)
        slots = batch.block_tables[row, position // batch.block_size].long() * batch.block_size
        values = torch.randn(length, *cache.shape[2:], device=device).to(dtype)
        write_tokens(cache, slots + position % batch.block_size, values)


def exact_decode(
    q: torch.Tensor, k: CacheTensor, v: CacheTensor, batch: AttentionBatch, scale: float, window: int = 0
) -> torch.Tensor:
    """Decode attention of q[R, H, D] in float64."""
    rows = []
    group = q.shape[1] // k.shape[2]
    for row, length in enumerate(batch.context_lens_host):
        blocks = batch.block_tables[row, : -(-length // batch.block_size)].long()
        oldest = max(0, length - window) if window else 0
        keys = gather_tokens(k, blocks, length, torch.float32)[oldest:].double()
        values = gather_tokens(v, blocks, length, torch.float32)[oldest:].double()
        query = q[row].double().view(-1, group, q.shape[2])  # [kv heads, group, D]
        weight = torch.softmax(torch.einsum("kgd,skd->kgs", query, keys) * scale, -1)
        rows.append(torch.einsum("kgs,skd->kgd", weight, values).flatten(0, 1))
    return torch.stack(rows)
