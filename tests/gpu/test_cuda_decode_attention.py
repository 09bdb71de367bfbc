"""The short-context decode attention against float64: splits, ragged lengths, windows, padding, poisoned caches."""

from __future__ import annotations

import pytest
import torch

from sits.kernels.cuda import module
from sits.kernels.cuda.decode_attention import decode_attention, fits
from sits.kernels.reference import layer as reference
from sits.kernels.testing import empty_cache, exact_decode, fill_cache, paged_batch, relative_error

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not module.is_available(), reason="needs cuda-bindings, NVRTC and an sm_90 device"),
]
DEVICE = "cuda"
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
LENGTHS = [1, 2, 16, 17, 33, 64, 65, 66, 129, 300, 513, 1500]


def step(lengths, heads, kv_heads, head_dim, dtype, rotary=None, block_size=16):
    """(arguments of the kernel, cached K and V and angles) over caches that are NaN where nothing was written."""
    batch = paged_batch(lengths, [1] * len(lengths), block_size, DEVICE)
    k, v = empty_cache(batch, kv_heads, head_dim, dtype)
    for cache in (k, v):
        fill_cache(cache, batch, [max(length - 1, 0) for length in lengths], dtype)
    qkv = torch.randn(len(lengths), (heads + 2 * kv_heads) * head_dim, device=DEVICE).to(dtype)
    angle = torch.rand(4096, (rotary or head_dim) // 2, device=DEVICE) * 6
    cos_sin = torch.cat((angle.cos(), angle.sin()), 1).contiguous()
    return qkv, cos_sin, k, v, batch, heads, kv_heads, head_dim, head_dim**-0.5


@pytest.mark.parametrize("splits", [0, 1, 2, 4, 8])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(64, 8, 128), (6, 2, 128), (9, 3, 64), (2, 2, 64)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_against_float64(dtype, heads, kv_heads, head_dim, splits):
    for window, block_size, rotary in [(0, 16, None), (100, 32, None), (7, 64, head_dim // 2)]:
        arguments = step(LENGTHS, heads, kv_heads, head_dim, dtype, rotary, block_size)
        qkv, cos_sin, k, v, batch, *_ = arguments
        out = decode_attention(*arguments, window, splits=splits)
        again = decode_attention(*arguments, window, splits=splits)
        assert torch.equal(out, again)
        kept = k.clone(), v.clone()
        q = reference.rope_kv_write(qkv, cos_sin, k, v, batch, heads, kv_heads, head_dim)
        written = batch.slots
        for mine, theirs in zip(kept, (k, v)):
            mine, theirs = (cache.view(-1, kv_heads, head_dim)[written] for cache in (mine, theirs))
            assert relative_error(mine, theirs) < TOLERANCE[dtype]
        assert relative_error(out, exact_decode(q, k, v, batch, head_dim**-0.5, window)) < TOLERANCE[dtype]


def test_padding_rows_write_nothing_and_rows_without_context_are_left_alone():
    arguments = step([40, 1, 5], 64, 8, 128, torch.float16)
    batch = arguments[4]
    batch.slots[1] = -1
    batch.context_lens[2] = 0
    before = arguments[2].clone()
    out = decode_attention(*arguments)
    qkv = arguments[0].view(3, 80, 128)
    assert torch.equal(out[1].view(8, 8, 128), qkv[1, 72:, None].expand(8, 8, 128))  # its own value
    changed = (arguments[2] != before) & ~(arguments[2].isnan() & before.isnan())
    assert changed.any(-1).any(-1).sum() == 1  # the first row's token


@pytest.mark.parametrize("splits", [1, 4])
def test_graph_replays_with_new_lengths(splits):
    arguments = step([900, 40, 7, 512], 64, 8, 128, torch.float16)
    qkv, cos_sin, k, v, batch, *_ = arguments
    decode_attention(*arguments, splits=splits)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = decode_attention(*arguments, splits=splits)
    for new in ([900, 40, 7, 512], [33, 1, 6, 500]):
        batch.context_lens.copy_(torch.tensor(new))
        batch.context_lens_host = new
        position = torch.tensor(new, device=DEVICE) - 1
        batch.positions.copy_(position)
        rows = torch.arange(4, device=DEVICE)
        batch.slots.copy_(batch.block_tables[rows, position // 16].long() * 16 + position % 16)
        qkv.copy_(torch.randn_like(qkv))
        out.fill_(float("nan"))
        graph.replay()
        q = reference.rope_kv_write(qkv, cos_sin, k, v, batch, 64, 8, 128)
        assert relative_error(out, exact_decode(q, k, v, batch, 128**-0.5)) < 2e-3


def test_steps_it_does_not_take_are_named():
    qkv, _, k, _, batch, heads, kv_heads, head_dim, _ = step([40, 9], 64, 8, 128, torch.float16)
    assert fits(qkv, k, batch, heads, kv_heads, head_dim, 64)
    assert not fits(qkv, k, batch, 128, kv_heads, head_dim, 64)  # 16 query heads a KV head
    assert not fits(qkv, k, batch, heads, kv_heads, 96, 48)
    batch.context_lens_host = [100_000]
    assert not fits(qkv, k, batch, heads, kv_heads, head_dim, 64)
