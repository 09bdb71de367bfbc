"""Every Triton kernel on a real card against float64 (or the reference, where the reference is the definition).

Outputs are fresh allocations from a pool that was filled with NaN, caches are poisoned, inputs are random each run.
"""

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

from sits.kernels import humming
from sits.kernels.cuda import module
from sits.kernels.fp8 import quantize_rows
from sits.kernels.reference import attention as reference_attention
from sits.kernels.reference import layer as reference
from sits.kernels.testing import empty_cache, exact_decode, fill_cache, paged_batch, relative_error
from sits.kernels.triton import activation, attention, fused_decode, int4, norm, rope
from sits.policy.kv_planner import DecodePlan, DeviceLimits, HeadLayout, plan_decode, static_plan

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
BOUND = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@pytest.fixture(autouse=True)
def _poisoned_pool():
    poison = [torch.full((1 << size,), float("nan"), device=DEVICE) for size in (12, 16, 20, 24)]
    del poison


def randn(*shape, dtype=torch.float16):
    return torch.randn(*shape, device=DEVICE).to(dtype)


def close(actual, wanted, bound):
    error = relative_error(actual, wanted)
    assert error <= bound, f"relative error {error:.3g} > {bound:.3g}"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("rows", "columns"), [(1, 8192), (257, 576), (5, 33)])
def test_norms(rows, columns, dtype):
    x, residual, weight = (
        randn(rows, columns, dtype=dtype),
        randn(rows, columns, dtype=dtype),
        randn(columns, dtype=dtype),
    )
    summed = (x + residual).double()
    wanted = summed / (summed.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    out, total = norm.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    close(out, wanted, BOUND[dtype])
    wide = x.double()
    close(
        norm.rms_norm(x, weight, 1e-5),
        wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double(),
        BOUND[dtype],
    )
    quantised, scale, total = norm.add_rms_norm_fp8(x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    close(quantised.double() * scale.double()[:, None], wanted, 4e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("rows", "width"), [(1, 28672), (257, 1536), (3, 35)])
def test_activation_and_quantisation(rows, width, dtype):
    gate_up = randn(rows, 2 * width, dtype=dtype) * 3
    gate, up = gate_up.double().chunk(2, -1)
    wanted = gate / (1 + (-gate).exp()) * up
    close(activation.silu_mul(gate_up), wanted, 2 * BOUND[dtype])
    quantised, scale = activation.quantize_fp8(gate_up, silu=True)
    close(quantised.double() * scale.double()[:, None], wanted, 4e-2)
    quantised, scale = activation.quantize_fp8(gate_up)
    want_q, want_scale = quantize_rows(gate_up)
    close(scale, want_scale, 1e-6)
    differing = (quantised.view(torch.uint8) != want_q.view(torch.uint8)).sum()
    assert differing <= max(1, quantised.numel() // 1000)  # values half way between two codes


def test_nan_and_inf_stay_visible():
    x = randn(3, 4096)
    x[1, 7], x[2, 9] = float("nan"), float("inf")
    out = norm.rms_norm(x, torch.ones(4096, device=DEVICE, dtype=x.dtype), 1e-5)
    assert out[0].isfinite().all()
    assert out[1].isnan().all()
    assert not out[2].isfinite().all()


CASES = [
    (torch.float16, None, 64, 8, 128),
    (torch.bfloat16, None, 8, 8, 64),
    (torch.float16, None, 5, 1, 80),
    (torch.float16, None, 32, 32, 96),
    (torch.bfloat16, None, 16, 2, 256),
    (torch.float16, torch.int8, 64, 8, 128),
    (torch.bfloat16, torch.float8_e4m3fn, 32, 8, 128),
]
IDS = [f"{str(c[0])[6:]}-{str(c[1])[6:] if c[1] else 'same'}-{c[2]}-{c[3]}-{c[4]}" for c in CASES]


@pytest.mark.parametrize(("dtype", "kind", "heads", "kv_heads", "head_dim"), CASES, ids=IDS)
def test_rope_and_kv_write(dtype, kind, heads, kv_heads, head_dim):
    lengths, counts = [300, 9, 129], [1, 9, 129]
    batch = paged_batch(lengths, counts, 16, DEVICE)
    ours, theirs = (empty_cache(batch, kv_heads, head_dim, dtype, kind) for _ in range(2))
    qkv = randn(sum(counts), (heads + 2 * kv_heads) * head_dim, dtype=dtype)
    cos_sin = torch.rand(512, head_dim // 2 * 2, device=DEVICE) * 2 - 1
    q = rope.rope_kv_write(qkv, cos_sin, *ours, batch, heads, kv_heads, head_dim)
    wanted = reference.rope_kv_write(qkv, cos_sin, *theirs, batch, heads, kv_heads, head_dim)
    close(q, wanted, BOUND[dtype])
    for a, b in zip(ours, theirs):
        if kind is None:
            flat_a, flat_b = (c.view(-1, kv_heads, head_dim) for c in (a, b))
            close(flat_a[batch.slots], flat_b[batch.slots], BOUND[dtype])
            assert torch.equal(flat_a.isnan(), flat_b.isnan())
        else:
            got, want = (
                c.data.view(-1, kv_heads, head_dim).float()[batch.slots]
                * c.scale.view(-1, kv_heads)[batch.slots].float()[..., None]
                for c in (a, b)
            )
            close(got, want, 5e-3)


@pytest.mark.parametrize(("dtype", "kind", "heads", "kv_heads", "head_dim"), CASES, ids=IDS)
def test_decode_attention(dtype, kind, heads, kv_heads, head_dim):
    lengths = [1, 2, 63, 64, 65, 4097, 1000, 16]
    batch = paged_batch(lengths, [1] * len(lengths), 16, DEVICE)
    k, v = empty_cache(batch, kv_heads, head_dim, dtype, kind)
    for cache in (k, v):
        fill_cache(cache, batch, lengths, dtype)
    q = randn(len(lengths), heads, head_dim, dtype=dtype)
    scale = head_dim**-0.5
    close(attention.attention(q, k, v, batch, scale), exact_decode(q, k, v, batch, scale), 2 * BOUND[dtype])
    close(attention.attention(q, k, v, batch, scale, 100), exact_decode(q, k, v, batch, scale, 100), 2 * BOUND[dtype])


def test_decode_attention_long_contexts_and_plans():
    lengths = [131072, 1, 32768, 7]
    batch = paged_batch(lengths, [1] * 4, 64, DEVICE)
    k, v = empty_cache(batch, 2, 128, torch.float16)
    for cache in (k, v):
        fill_cache(cache, batch, lengths, torch.float16)
    q = randn(4, 16, 128) * 4
    wanted = exact_decode(q, k, v, batch, 128**-0.5)
    device = DeviceLimits(torch.cuda.get_device_properties(0).multi_processor_count, 227 * 1024)
    layout = HeadLayout(16, 2, 128)
    plans = [
        None,
        plan_decode(device, layout, lengths),
        static_plan(device, layout, lengths),
        DecodePlan(64, 3, 1, 5),
    ]
    for plan in plans:
        batch.plan = plan
        close(attention.attention(q, k, v, batch, 128**-0.5), wanted, 2e-3)


@pytest.mark.parametrize(("dtype", "kind", "heads", "kv_heads", "head_dim"), CASES, ids=IDS)
def test_fused_rope_attention(dtype, kind, heads, kv_heads, head_dim):
    lengths = [1, 65, 4097, 300, 64]
    batch = paged_batch(lengths, [1] * len(lengths), 16, DEVICE)
    k, v = empty_cache(batch, kv_heads, head_dim, dtype, kind)
    for cache in (k, v):
        fill_cache(cache, batch, [length - 1 for length in lengths], dtype)
    qkv = randn(len(lengths), (heads + 2 * kv_heads) * head_dim, dtype=dtype)
    cos_sin = torch.rand(8192, head_dim // 2 * 2, device=DEVICE) * 2 - 1
    arguments = (qkv, cos_sin, k, v, batch, heads, kv_heads, head_dim, head_dim**-0.5)
    first = fused_decode.fused_rope_attention(*arguments)
    for _ in range(20):  # the same bits whoever arrives last, and counters back at zero
        assert torch.equal(first, fused_decode.fused_rope_attention(*arguments))
    q = reference.rope_kv_write(qkv, cos_sin, k, v, batch, heads, kv_heads, head_dim)
    close(first, exact_decode(q, k, v, batch, head_dim**-0.5), 2 * BOUND[dtype] if kind is None else 2e-2)


@pytest.mark.parametrize("window", [0, 50])
@pytest.mark.parametrize("kind", [None, torch.int8])
def test_prefill_chunks_beside_decode_rows(window, kind):
    lengths, counts = [300, 70, 257, 129], [1, 1, 257, 30]
    batch = paged_batch(lengths, counts, 16, DEVICE)
    k, v = empty_cache(batch, 2, 128, torch.float16, kind)
    for cache in (k, v):
        fill_cache(cache, batch, lengths, torch.float16)
    q = randn(sum(counts), 8, 128)
    out = attention.attention(q, k, v, batch, 0.08, window)
    wanted = reference_attention.attention(q.float(), k, v, batch, 0.08, window)
    close(out, wanted, 2e-3)


def test_graph_replays_with_new_lengths():
    lengths = [900, 40, 7, 512]
    batch = paged_batch(lengths, [1] * 4, 16, DEVICE)
    k, v = empty_cache(batch, 8, 128, torch.float16)
    for cache in (k, v):
        fill_cache(cache, batch, lengths, torch.float16)
    q = randn(4, 64, 128)
    attention.attention(q, k, v, batch, 0.09)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attention.attention(q, k, v, batch, 0.09)
    for new in ([900, 40, 7, 512], [33, 1, 6, 500]):
        batch.context_lens.copy_(torch.tensor(new))
        batch.context_lens_host = new
        q.copy_(randn(4, 64, 128))
        out.fill_(float("nan"))
        graph.replay()
        close(out, exact_decode(q, k, v, batch, 0.09), 2e-3)


def codes(rows, columns, group, symmetric):
    groups = -(-columns // group)
    q = torch.randint(0, 16, (rows, columns), dtype=torch.uint8, device=DEVICE)
    scale = (torch.rand(rows, groups, device=DEVICE) * 0.01 + 1e-3).half().float()
    minimum = scale * -8 if symmetric else (torch.randn(rows, groups, device=DEVICE) * 0.05).half().float()
    dense = q.double() * scale.double().repeat_interleave(group, 1)[:, :columns]
    return q, scale, minimum, dense + minimum.double().repeat_interleave(group, 1)[:, :columns]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("rows", "columns", "group"), [(1024, 512, 32), (77, 100, 32), (130, 1000, 64), (33, 777, 128)]
)
def test_portable_int4(rows, columns, group, dtype):
    q, scale, minimum, dense = codes(rows, columns, group, False)
    weight = int4.pack_rows(q, scale, minimum, group)
    for count in (1, 2, 17, 257):
        x, bias = randn(count, columns, dtype=dtype), randn(rows, dtype=dtype)
        close(int4.int4_linear(x, weight, bias), x.double() @ dense.T + bias.double(), 2 * BOUND[dtype])
    scale[5, 0] = float("nan")
    out = int4.int4_linear(randn(1, columns, dtype=dtype), int4.pack_rows(q, scale, minimum, group))
    assert out[0, 5].isnan()
    assert out.isnan().sum() == 1


@pytest.mark.skipif(not humming.available(), reason="humming-kernels is not installed")
@pytest.mark.parametrize("symmetric", [True, False])
def test_humming(symmetric):
    rows, columns, group = 1024, 512, 32
    q, scale, _minimum, dense = codes(rows, columns, group, symmetric)
    zero = None
    if not symmetric:
        zero = torch.randint(0, 16, scale.shape, dtype=torch.uint8, device=DEVICE)
        dense = (q.double() - zero.double().repeat_interleave(group, 1)) * scale.double().repeat_interleave(group, 1)
    weight = humming.pack(q, scale, zero, group, torch.float16)
    for count in (1, 16, 257):
        x = randn(count, columns)
        close(humming.linear(x, weight), x.double() @ dense.T, 2e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("zero", ["symmetric", "float"])
def test_int4_linear_of_any_batch(dtype, zero):
    from sits.quant.int4_linear import Int4Weight

    dense = torch.randn(512, 384, device=DEVICE) * 0.05
    weight = Int4Weight.from_dense(dense, randn(512, dtype=dtype), group_size=32, zero=zero)
    wanted_weight = weight.dequantize().double()
    weight.activation_dtype = dtype
    weight.prepack()
    assert weight.kernel == "measured"
    for rows in (1, 2, 8, 16, 17, 257):
        x = randn(rows, 384, dtype=dtype)
        close(weight.apply(x), x.double() @ wanted_weight.T + weight.bias.double(), 2 * BOUND[dtype])
    # Scales are kept in the type of the activations.
    torch.testing.assert_close(weight.dequantize().double(), wanted_weight, rtol=BOUND[dtype], atol=BOUND[dtype] / 4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_fp8_linear(dtype):
    from sits.kernels.reference.linear import linear_fp8 as wanted
    from sits.quant.fp8_linear import Fp8Weight

    weight = Fp8Weight.from_dense(torch.randn(256, 384, device=DEVICE) * 0.05)
    weight.prepack()
    assert weight.kernel == "scaled_mm"
    for rows in (1, 3, 16, 257):
        x = randn(rows, 384, dtype=dtype)
        close(weight.apply(x), wanted(x.float(), weight, None), 1e-2)


def test_int4_prompts_at_the_fp8_rate():
    """A long prompt through the e4m3 scratch against the exact path: logits differ by the rounding, no more."""
    from sits.models.loading import load_model

    if module.is_available() is False:
        pytest.skip("no wgmma layout on this card")
    model = load_model(
        "synthetic:llama-3-8b?layers=2", dtype="bfloat16", device=DEVICE, quantization="int4-g32"
    ).model
    batch = paged_batch([1500], [1500], 16, DEVICE)
    tokens = torch.randint(0, 100_000, (1500,), device=DEVICE)
    rows = torch.tensor([1499, 700], device=DEVICE)
    logits = {}
    for mode in ("exact", "fp8"):
        model.set_int4_prefill(mode)
        assert (model.fused_fp8 is not None) == (mode == "fp8")
        cache = [empty_cache(batch, 8, 128, torch.bfloat16) for _ in range(2)]
        with torch.inference_mode():
            logits[mode] = model.forward(tokens, batch, cache, rows)
    error = relative_error(logits["fp8"], logits["exact"])
    assert 1e-4 < error < 0.15
    assert not model.fused_fp8.accepts(64)
