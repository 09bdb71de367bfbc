"""8-bit KV: values come back within half a step, and attention over them stays close to the exact one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.errors import InputError
from sits.kernels.attention_batch import AttentionBatch
from sits.kernels.kv_cache import ScaledCache, gather_tokens, quantize_heads, write_tokens
from sits.kernels.reference.attention import attention
from sits.kernels.reference.layer import rope_kv_write
from sits.quant.kv import allocate_kv_cache, kv_bytes_per_token


@given(st.integers(0, 2**31), st.floats(1e-3, 1e3), st.sampled_from([8, 64, 80]))
@settings(max_examples=40, deadline=None)
def test_int8_error_is_at_most_half_a_step(seed, size, head_dim):
    x = size * torch.randn(5, 2, head_dim, generator=torch.Generator().manual_seed(seed))
    values, scale = quantize_heads(x, torch.int8)
    error = (values.float() * scale.float().unsqueeze(-1) - x).abs()
    # Half a step, and half a rounding unit of the float16 scale times 127 steps at the largest value.
    assert bool((error <= scale.float().unsqueeze(-1) * (0.5 + 127 * 2**-10)).all())


@given(st.integers(0, 2**31), st.floats(1e-2, 1e3))
@settings(max_examples=40, deadline=None)
def test_fp8_relative_error_is_that_of_three_mantissa_bits(seed, size):
    x = size * torch.randn(5, 2, 64, generator=torch.Generator().manual_seed(seed))
    values, scale = quantize_heads(x, torch.float8_e4m3fn)
    wide = scale.float().unsqueeze(-1)
    error = (values.float() * wide - x).abs()
    assert bool(torch.isfinite(values.float()).all())
    assert bool((error <= torch.maximum(x.abs() * 2**-4 * 1.01, wide * 2**-9)).all())


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_zeros_and_outliers(dtype):
    x = torch.zeros(1, 2, 64)
    x[0, 1, 3] = 6e6  # beyond what a float16 scale times 127 can say in full: saturates, stays finite
    values, scale = quantize_heads(x, dtype)
    assert bool(torch.isfinite(values.float()).all())
    assert bool((values.float()[0, 0] == 0).all())
    assert float(values.float()[0, 1, 3] * scale.float()[0, 1]) > 5e6


def ragged_batch(query_lens, context_lens, block_size):
    """Requests with disjoint blocks, in scrambled order."""
    counts = [-(-length // block_size) for length in context_lens]
    free = torch.randperm(sum(counts)).tolist()
    blocks = [[free.pop() for _ in range(count)] for count in counts]
    table = torch.zeros(len(blocks), max(counts), dtype=torch.int32)
    positions, slots = [], []
    for row, (query, context) in enumerate(zip(query_lens, context_lens)):
        table[row, : len(blocks[row])] = torch.tensor(blocks[row])
        for position in range(context - query, context):
            positions.append(position)
            slots.append(blocks[row][position // block_size] * block_size + position % block_size)
    start = torch.tensor([0, *query_lens]).cumsum(0).int()
    return AttentionBatch(
        torch.tensor(positions), torch.tensor(slots), start, torch.tensor(context_lens, dtype=torch.int32), table,
        block_size, sum(1 for q in query_lens if q == 1), list(query_lens), list(context_lens), blocks,
    )  # fmt: skip


@pytest.mark.parametrize(("kv_dtype", "bound"), [("auto", 1e-6), ("int8", 0.02), ("fp8", 0.06)])
def test_attention_over_a_quantised_cache(kv_dtype, bound):
    torch.manual_seed(0)
    heads, kv_heads, head_dim, lens = 4, 2, 64, [33, 16, 7]
    batch = ragged_batch(lens, lens, 16)
    qkv = torch.randn(sum(lens), (heads + 2 * kv_heads) * head_dim)
    angles = torch.arange(64).unsqueeze(1) * torch.rand(head_dim // 2)
    cos_sin = torch.cat([angles.cos(), angles.sin()], 1)
    results = []
    for dtype in ("auto", kv_dtype):
        ((k, v),) = allocate_kv_cache(dtype, 1, 6, 16, kv_heads, head_dim, torch.float32, "cpu")
        q = rope_kv_write(qkv, cos_sin, k, v, batch, heads, kv_heads, head_dim)
        results.append(attention(q, k, v, batch, head_dim**-0.5))
    difference = (results[1] - results[0]).norm() / results[0].norm()
    assert difference <= bound
    if kv_dtype != "auto":
        assert difference > 1e-4  # it really went through 8 bits


def test_writes_touch_only_their_slots():
    ((k, _),) = allocate_kv_cache("int8", 1, 2, 4, 2, 8, torch.float32, "cpu")
    assert isinstance(k, ScaledCache)
    x = torch.randn(2, 2, 8)
    write_tokens(k, torch.tensor([6, 1]), x)
    tokens = gather_tokens(k, torch.tensor([0, 1]), 8, torch.float32)
    assert bool((tokens[[0, 2, 3, 4, 5, 7]] == 0).all())
    torch.testing.assert_close(tokens[[6, 1]], x, atol=0.02, rtol=0)


def test_bytes_count_the_scales():
    cache = allocate_kv_cache("int8", 3, 2, 4, 2, 64, torch.float16, "cpu")
    total = sum(k.nbytes + v.nbytes for k, v in cache)
    assert total == kv_bytes_per_token("int8", torch.float16, 3, 2, 64) * 8
    assert kv_bytes_per_token("auto", torch.float16, 3, 2, 64) == 2 * 3 * 2 * 64 * 2


def test_unknown_kv_dtype_lists_the_known_ones():
    with pytest.raises(InputError, match=r"int4.*auto, int8, fp8"):
        allocate_kv_cache("int4", 1, 1, 16, 1, 64, torch.float16, "cpu")
