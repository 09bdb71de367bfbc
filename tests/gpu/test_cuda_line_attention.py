"""The line decode attention against float64: ragged lengths, shapes, windows, padding, poisoned caches, graphs."""

from __future__ import annotations

import pytest
import torch

from sits.kernels.cuda import module
from sits.kernels.cuda.line_attention import LineShape, fits, line_attention
from sits.kernels.reference import layer as reference
from sits.kernels.testing import empty_cache, exact_decode, fill_cache, paged_batch, relative_error

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not module.is_available(), reason="needs cuda-bindings, NVRTC and an sm_90 device"),
]
DEVICE = "cuda"
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
LENGTHS = [1, 2, 16, 17, 33, 64, 65, 66, 129, 300, 513, 1500]
SHAPES = [LineShape(8, 2, 1), LineShape(8, 3, 1), LineShape(4, 3, 2)]


def step(lengths, heads, kv_heads, head_dim, dtype, block_size=16, kind=None):
    """(arguments of the kernel) over caches that are NaN where nothing was written."""
    batch = paged_batch(lengths, [1] * len(lengths), block_size, DEVICE)
    k, v = empty_cache(batch, kv_heads, head_dim, dtype, kind)
    for cache in (k, v):
        fill_cache(cache, batch, [max(length - 1, 0) for length in lengths], dtype)
    qkv = torch.randn(len(lengths), (heads + 2 * kv_heads) * head_dim, device=DEVICE).to(dtype)
    angle = torch.rand(max(lengths) + 1, head_dim // 2, device=DEVICE) * 6
    cos_sin = torch.cat((angle.cos(), angle.sin()), 1).contiguous()
    return qkv, cos_sin, k, v, batch, heads, kv_heads, head_dim, head_dim**-0.5


def check(arguments, window=0, **options):
    """The kernel's result and what it wrote against the reference; twice, for the same bits."""
    qkv, cos_sin, k, v, batch, heads, kv_heads, head_dim, scale = arguments
    tolerance = TOLERANCE[qkv.dtype]
    out = line_attention(*arguments, window, **options)
    for _ in range(3):  # whoever arrives last, and counters back at zero
        assert torch.equal(out, line_attention(*arguments, window, **options))
    kept = k.clone(), v.clone()
    q = reference.rope_kv_write(qkv, cos_sin, k, v, batch, heads, kv_heads, head_dim)
    for mine, theirs in zip(kept, (k, v)):
        mine, theirs = (cache.view(-1, kv_heads, head_dim)[batch.slots] for cache in (mine, theirs))
        assert relative_error(mine, theirs) < tolerance
    assert relative_error(out, exact_decode(q, k, v, batch, scale, window)) < tolerance


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(64, 8, 128), (6, 2, 128), (9, 3, 64), (2, 2, 64)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_against_float64(dtype, heads, kv_heads, head_dim, shape):
    for window, block_size, min_share in [(0, 16, 0), (100, 32, 1), (7, 64, 3)]:
        arguments = step(LENGTHS, heads, kv_heads, head_dim, dtype, block_size)
        check(arguments, window, shape=shape, min_share=min_share)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(64, 8, 128), (9, 3, 64)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn])
def test_8_bit_caches(kind, dtype, heads, kv_heads, head_dim):
    for lengths, window in [(LENGTHS, 0), (LENGTHS, 50), ([20_000, 3], 0)]:
        arguments = step(lengths, heads, kv_heads, head_dim, dtype, 16, kind)
        qkv, cos_sin, k, v, batch, *_, scale = arguments
        out = line_attention(*arguments, window)
        assert torch.equal(out, line_attention(*arguments, window))
        kept = [read_back(cache, batch.slots) for cache in (k, v)]
        assert relative_error(out, exact_decode(rotated(arguments), k, v, batch, scale, window)) < TOLERANCE[dtype]
        reference.rope_kv_write(qkv, cos_sin, k, v, batch, heads, kv_heads, head_dim)
        for mine, cache in zip(kept, (k, v)):
            assert relative_error(mine, read_back(cache, batch.slots)) < 1e-2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn])
def test_nan_stays_visible_in_8_bit_caches(kind, dtype):
    arguments = step([40, 700], 64, 8, 128, dtype, 16, kind)
    qkv, _, k, v, batch, *_ = arguments
    qkv.view(2, 80, 128)[0, 64 + 3, 5] = float("nan")  # of K head 3
    qkv.view(2, 80, 128)[1, 72 + 6, 90] = float("nan")  # of V head 6
    out = line_attention(*arguments).view(2, 8, -1).isnan()
    bad = [cache.scale.view(-1, 8)[batch.slots].isnan().nonzero().tolist() for cache in (k, v)]
    assert bad == [[[0, 3]], [[1, 6]]]
    assert out.any(-1).nonzero().tolist() == [[0, 3], [1, 6]]


def read_back(cache, slots):
    """[slots, KV heads, D] of an 8-bit cache, in float."""
    heads = cache.shape[2:]
    scale = cache.scale.view(-1, heads[0])[slots].float()
    return cache.data.view(-1, *heads).float()[slots] * scale[..., None]


def rotated(arguments):
    """The queries of a step; writes nothing to its caches."""
    qkv, cos_sin, _, _, batch, heads, kv_heads, head_dim, _ = arguments
    spare = empty_cache(batch, kv_heads, head_dim, qkv.dtype)
    return reference.rope_kv_write(qkv, cos_sin, *spare, batch, heads, kv_heads, head_dim)


@pytest.mark.parametrize("shape", SHAPES)
def test_long_and_ragged_contexts(shape):
    check(step([131072, 1, 32768, 7, 300], 16, 2, 128, torch.float16, 64), shape=shape)
    check(step([40_000], 64, 8, 128, torch.float16), shape=shape)


def test_many_requests():
    check(step([100 + 7 * (i % 13) for i in range(257)], 64, 8, 128, torch.float16))


def test_padding_rows_write_nothing_and_rows_without_context_are_left_alone():
    arguments = step([40, 1, 5], 64, 8, 128, torch.float16)
    batch = arguments[4]
    batch.slots[1] = -1
    batch.context_lens[2] = 0
    before = arguments[2].clone()
    out = line_attention(*arguments)
    qkv = arguments[0].view(3, 80, 128)
    assert torch.equal(out[1].view(8, 8, 128), qkv[1, 72:, None].expand(8, 8, 128))  # its own value
    changed = (arguments[2] != before) & ~(arguments[2].isnan() & before.isnan())
    assert changed.any(-1).any(-1).sum() == 1  # the first row's token


@pytest.mark.parametrize("host", [512, 4096])
def test_graph_replays_with_new_lengths(host):
    arguments = step([900, 40, 7, 512], 64, 8, 128, torch.float16)
    qkv, cos_sin, k, v, batch, *_ = arguments
    batch.context_lens_host = [host] * 4  # a bucket, also one that is too small, decides only how fast
    line_attention(*arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = line_attention(*arguments)
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
    assert not fits(qkv, k, batch, heads, kv_heads, head_dim, 32)  # half of a head rotated
    assert not fits(qkv, k, batch, heads, kv_heads, 96, 48)
