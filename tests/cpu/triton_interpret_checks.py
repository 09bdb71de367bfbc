"""Checks that ``test_triton_interpret.py`` runs in its own process: ``python triton_interpret_checks.py PART``."""

import sys

import torch

from sits.kernels.reference import attention as reference_attention
from sits.kernels.reference import layer as reference
from sits.kernels.testing import empty_cache, exact_decode, fill_cache, paged_batch, relative_error
from sits.kernels.triton import activation, attention, fused_decode, norm, rope, sampling

RELATIVE = {torch.float32: 2e-6, torch.float16: 2e-3}


def close(actual, wanted, bound):
    error = relative_error(actual, wanted)
    assert error <= bound, f"relative error {error:.3g} > {bound:.3g}"


def elementwise():
    for dtype in (torch.float32, torch.float16):
        for rows, columns in ((1, 576), (3, 33), (2, 1000)):
            x, residual = torch.randn(rows, columns).to(dtype), torch.randn(rows, columns).to(dtype)
            weight = torch.randn(columns).to(dtype)
            kept = x.clone()
            close(norm.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5), RELATIVE[dtype])
            out, summed = norm.add_rms_norm(x, residual, weight, 1e-5)
            wanted, wanted_sum = reference.add_rms_norm(kept, residual, weight, 1e-5)
            assert torch.equal(summed, wanted_sum)
            close(out, wanted, RELATIVE[dtype])
            gate_up = torch.randn(rows, 2 * columns).to(dtype) * 3
            close(activation.silu_mul(gate_up), reference.silu_mul(gate_up), RELATIVE[dtype])
            scales = torch.rand(rows) + 0.1, torch.rand(columns) + 0.1
            scaled = x.double() * scales[0].double()[:, None] * scales[1].double()
            for result in (torch.float32, torch.float16):
                out = activation.scale_sums(x, *scales, None, result)
                assert out.dtype == result
                close(out, scaled, RELATIVE[result])
                close(activation.scale_sums(x, *scales, weight, result), scaled + weight.double(), RELATIVE[result])
            # Loose for e4m3: the interpreter forgets the carry into the exponent (127 becomes 64).
            other = torch.float16 if dtype == torch.float32 else torch.float32
            q, scale, total = norm.add_rms_norm_fp8(x, residual.to(other), weight.to(other), 1e-5, scales)
            assert total.dtype == other
            close(total, scaled + residual.double(), RELATIVE[torch.float16])
            close(q.float() * scale[:, None], reference.rms_norm(total, weight.to(other), 1e-5), 0.2)
            wide = torch.rand(2 * columns) + 0.1
            q, scale = activation.quantize_fp8(gate_up, True, (scales[0], wide))
            wanted = reference.silu_mul(gate_up.float() * scales[0][:, None] * wide)
            close(q.float() * scale[:, None], wanted, 0.2)
    # Strided rows (a slice of a wider tensor), and a row of zeros.
    wide = torch.randn(4, 200)
    wide[2] = 0
    close(
        norm.rms_norm(wide[:, :100], torch.ones(100), 1e-5),
        reference.rms_norm(wide[:, :100], torch.ones(100), 1e-5),
        2e-6,
    )
    # NaN and Inf must stay visible.
    bad = torch.randn(2, 64)
    bad[1, 3] = float("nan")
    out = norm.rms_norm(bad, torch.ones(64), 1e-5)
    assert out[0].isfinite().all()
    assert out[1].isnan().all()


def rope_checks():
    def fused(*arguments):
        fused_decode.fused_rope_attention(*arguments, 0.1)

    for dtype, kind, heads, kv_heads, head_dim, rotary in (
        (torch.float32, None, 4, 2, 64, 64),
        (torch.float16, None, 3, 1, 80, 32),
        (torch.float32, torch.int8, 4, 4, 96, 96),
    ):
        lengths, counts = [5, 9, 3], [1, 4, 3]
        batch = paged_batch(lengths, counts, 4)
        k, v = empty_cache(batch, kv_heads, head_dim, dtype, kind)
        k2, v2 = empty_cache(batch, kv_heads, head_dim, dtype, kind)
        qkv = torch.randn(8, (heads + 2 * kv_heads) * head_dim).to(dtype)
        cos_sin = torch.rand(32, rotary) * 2 - 1
        q = rope.rope_kv_write(qkv, cos_sin, k, v, batch, heads, kv_heads, head_dim)
        wanted = reference.rope_kv_write(qkv, cos_sin, k2, v2, batch, heads, kv_heads, head_dim)
        close(q, wanted, RELATIVE[dtype])
        for ours, theirs in ((k, k2), (v, v2)):
            if kind is None:
                a, b = (c.view(-1, kv_heads, head_dim)[batch.slots] for c in (ours, theirs))
                close(a, b, RELATIVE[dtype])
                untouched = torch.ones(ours.shape[0] * 4, dtype=torch.bool)
                untouched[batch.slots] = False
                assert ours.view(-1, kv_heads, head_dim)[untouched].isnan().all()
            else:
                a, b = (c.data.view(-1, kv_heads, head_dim)[batch.slots].int() for c in (ours, theirs))
                assert (a - b).abs().max() <= 1
                a, b = (c.scale.view(-1, kv_heads)[batch.slots] for c in (ours, theirs))
                close(a, b, 1e-3)
    # NaN stays visible, in the scale, and spoils no other head.
    for kind in (torch.int8, torch.float8_e4m3fn):
        batch = paged_batch([4], [1], 4)
        qkv = torch.randn(1, 6 * 64)
        qkv[0, 2 * 64 + 3] = qkv[0, 5 * 64 + 9] = float("nan")  # of the first K head, of the second V head
        for write in (rope.rope_kv_write, fused):
            k, v = empty_cache(batch, 2, 64, torch.float32, kind)
            write(qkv, torch.rand(8, 64), k, v, batch, 2, 2, 64)
            assert k.scale.view(-1, 2)[batch.slots].isnan().tolist() == [[True, False]]
            assert v.scale.view(-1, 2)[batch.slots].isnan().tolist() == [[False, True]]
    # Slot -1 writes nothing.
    batch = paged_batch([4], [1], 4)
    k, v = empty_cache(batch, 1, 64, torch.float32)
    batch.slots[:] = -1
    rope.rope_kv_write(torch.randn(1, 3 * 64), torch.rand(8, 64), k, v, batch, 1, 1, 64)
    assert k.isnan().all()
    assert v.isnan().all()


class Plan:
    def __init__(self, tile, workers, min_share=1, splits=0):
        self.tile, self.workers, self.min_share, self.splits = tile, workers, min_share, splits


def decode():
    for dtype, kind, heads, kv_heads, head_dim, lengths, window, plan in (
        (torch.float32, None, 8, 2, 64, [1, 70, 33], 0, Plan(16, 5)),
        (torch.float16, None, 4, 4, 80, [17, 64], 0, Plan(32, 3)),
        (torch.float32, None, 3, 1, 64, [130], 0, Plan(16, 8)),
        (torch.float32, None, 4, 2, 64, [70, 5], 0, Plan(16, 2 * 2 * 3, 1, 3)),
        (torch.float32, None, 4, 2, 64, [100, 5, 64], 40, Plan(16, 4, 2)),
        (torch.float32, torch.int8, 4, 2, 96, [50, 3], 0, Plan(16, 3)),
        (torch.float32, None, 2, 1, 32, [7, 9], 0, None),
    ):
        counts = [1] * len(lengths)
        batch = paged_batch(lengths, counts, 16)
        k, v = empty_cache(batch, kv_heads, head_dim, dtype, kind)
        for cache in (k, v):
            fill_cache(cache, batch, lengths, dtype)
        q = torch.randn(len(lengths), heads, head_dim).to(dtype)
        scale = head_dim**-0.5
        batch.plan = plan
        out = attention.attention(q, k, v, batch, scale, window)
        wanted = exact_decode(q, k, v, batch, scale, window)
        close(out, wanted, 4e-6 if dtype == torch.float32 else 2e-3)
    # A mixed step: decode rows and prefill chunks, with and without tokens of an earlier step; layer after layer.
    for kind, window, lengths, counts in ((None, 0, [20, 12, 37], [1, 5, 37]), (torch.int8, 7, [40, 18], [40, 2])):
        batch = paged_batch(lengths, counts, 16)
        for _ in range(2):
            k, v = empty_cache(batch, 2, 64, torch.float32, kind)
            for cache in (k, v):
                fill_cache(cache, batch, lengths, torch.float32)
            q = torch.randn(sum(counts), 4, 64)
            wanted = reference_attention.attention(q, k, v, batch, 0.1, window)
            close(attention.attention(q, k, v, batch, 0.1, window), wanted, 4e-6)


def fused():
    for dtype, kind, heads, kv_heads, head_dim, lengths, window, plan in (
        (torch.float32, None, 8, 2, 64, [1, 70, 33, 17], 0, Plan(16, 5)),
        (torch.float16, None, 4, 4, 80, [17, 64], 0, Plan(16, 3)),
        (torch.float32, None, 4, 2, 64, [100, 5, 65], 40, Plan(16, 4, 2)),
        (torch.float32, torch.int8, 4, 2, 96, [50, 3], 0, Plan(16, 3)),
    ):
        counts = [1] * len(lengths)
        batch = paged_batch(lengths, counts, 16)
        k, v = empty_cache(batch, kv_heads, head_dim, dtype, kind)
        for cache in (k, v):
            fill_cache(cache, batch, [n - 1 for n in lengths], dtype)
        qkv = torch.randn(len(lengths), (heads + 2 * kv_heads) * head_dim).to(dtype)
        cos_sin = torch.rand(128, head_dim) * 2 - 1
        batch.plan = plan
        out = fused_decode.fused_rope_attention(
            qkv, cos_sin, k, v, batch, heads, kv_heads, head_dim, head_dim**-0.5, window
        )
        again = fused_decode.fused_rope_attention(
            qkv, cos_sin, k, v, batch, heads, kv_heads, head_dim, head_dim**-0.5, window
        )
        assert torch.equal(out, again), "counters were not reset"
        q = reference.rope_kv_write(qkv, cos_sin, k, v, batch, heads, kv_heads, head_dim)
        wanted = exact_decode(q, k, v, batch, head_dim**-0.5, window)
        close(out, wanted, 4e-6 if dtype == torch.float32 and kind is None else 2e-3)


def sampling_checks():
    logits = torch.randn(3, 9001)
    logits[1, 17] = logits[1, 8000] = 50.0
    logits[2, 9000] = 60.0
    for kind in (logits, logits.half()):
        assert sampling.argmax_finite(kind).tolist() == [int(kind[0].argmax()), 17, 9000]
    logits[0, 4096], logits[1, 5], logits[2] = float("nan"), float("inf"), float("-inf")
    assert sampling.argmax_finite(logits).tolist() == [-1, -1, -1]
    logits[2, 5000] = -3.0
    out = torch.zeros(4, dtype=torch.int64)
    sampling.argmax_finite(logits, out[:3])
    assert out.tolist() == [-1, -1, 5000, 0]

    from sits.kernels.triton import previous_tokens

    ids = torch.randint(0, 500, (300,))
    ids[3], ids[299], ids[5] = -1 - 2, -1 - 0, -1 - 1
    expected = ids.clone()
    expected[3], expected[299], expected[5] = 77, 11, 0  # a row without a token becomes token 0
    previous_tokens.fill_in(ids, torch.tensor([11, -1, 77]))
    assert torch.equal(ids, expected)


def draw():
    """Against float64: the tokens that may be chosen, and which one the random number chooses of them."""
    from sits.kernels.triton.draw import draw as draw_tokens

    vocabulary = 9000
    settings = [  # temperature, top-p, min-p, top-k
        (1.0, 1.0, 0.0, 0),
        (0.7, 0.9, 0.0, 0),
        (1.5, 1.0, 0.0, 7),
        (1.0, 0.8, 0.0, 50),
        (2.0, 0.95, 0.02, 0),
        (1.0, 1.0, 1.0, 0),
        (1.0, 1e-6, 0.0, 0),
        (0.01, 0.999, 0.0, vocabulary),
    ]
    noises = (0.0, 0.3, 0.77, 1 - 2.0**-23)
    logits = torch.randn(len(settings) + 3, vocabulary) * 3
    logits[2, 100:110] = logits[2].topk(6).values[-1]  # ties with the seventh
    logits[4, :50] = float("-inf")
    logits[-3, 5], logits[-2, 8999], logits[-1] = float("nan"), float("inf"), float("-inf")
    for noise in noises:
        parameters = torch.tensor([(*one, noise) for one in [*settings, *[settings[0]] * 3]])
        order = torch.randperm(len(logits))
        got = draw_tokens(logits.clone(), order, parameters[order])[order.argsort()].tolist()
        assert got[-3:] == [-1, -1, -1]
        for row, token, (temperature, top_p, min_p, top_k) in zip(logits, got, settings):
            weights = ((row.double() - row.max()) / temperature).exp()
            ordered = weights.sort(descending=True).values
            kept = weights > 0
            if 0 < top_k < vocabulary:
                kept &= weights >= ordered[top_k - 1]
            if top_p < 1:
                inside = ordered[ordered >= weights[kept].min()]
                before = (inside.cumsum(0) - inside) / inside.sum()
                kept &= weights >= inside[max(int((before < top_p).sum()), 1) - 1] * (1 - 1e-6)
            kept &= weights >= min_p * (1 - 1e-6)
            share = torch.where(kept, weights, 0.0).cumsum(0) / weights[kept].sum()
            expected = int((share > noise).nonzero()[0])
            if token != expected:  # a number at the edge of two tokens may fall to either
                assert kept[token], (temperature, top_p, min_p, top_k, noise)
                assert abs(float(share[min(token, expected)]) - noise) < 1e-4


def int4():
    from sits.kernels.triton import int4 as int4_kernels

    for dtype, rows, columns, group, count in (
        (torch.float32, 33, 96, 32, 1),
        (torch.float16, 20, 200, 64, 3),
        (torch.float32, 17, 256, 128, 5),
    ):
        groups = -(-columns // group)
        q = torch.randint(0, 16, (rows, columns), dtype=torch.uint8)
        scale = torch.rand(rows, groups) * 0.01
        minimum = torch.randn(rows, groups) * 0.05
        weight = int4_kernels.pack_rows(q, scale, minimum, group)
        x = torch.randn(count, columns).to(dtype)
        dense = q.double() * scale.double().repeat_interleave(group, 1)[:, :columns]
        dense += minimum.double().repeat_interleave(group, 1)[:, :columns]
        close(int4_kernels.int4_linear(x, weight), x.double() @ dense.T, 2e-6 if dtype == torch.float32 else 2e-3)


def rounding():
    from sits.kernels.cuda.nibbles import squeeze_nibbles
    from sits.kernels.triton import nibbles, quantize_int4
    from sits.quant.int4 import Int4Codes

    for dtype, stored, group in (
        (torch.float32, torch.float32, 32),
        (torch.float16, torch.float16, 64),
        (torch.float32, torch.float16, 128),
    ):
        weight = torch.randn(37, 256).to(dtype) * torch.logspace(-3, 2, 37).unsqueeze(1).to(dtype)
        weight[3] = 0
        weight[4, :32] = weight[4].abs()[:32] + 1
        weight[5] = 0.25
        for zero in quantize_int4.ZERO_KINDS:
            *ours, faults = quantize_int4.round_groups(weight, group, zero, stored)
            wanted = Int4Codes.from_dense(weight, group, zero, stored)
            assert int(faults) == 0
            for mine, theirs in zip(ours, (wanted.q, wanted.scale, wanted.minimum), strict=True):
                assert torch.equal(mine, theirs), (dtype, stored, group, zero)
    codes = torch.randint(0, 16, (1025, 8), dtype=torch.uint8).view(torch.int64)
    assert torch.equal(nibbles.squeeze(codes), squeeze_nibbles(codes))
    for value in (float("nan"), float("-inf")):
        weight[36, 255] = value
        assert int(quantize_int4.round_groups(weight, 32, "symmetric", torch.float16)[3]) & quantize_int4.NOT_FINITE
    weight[36, 255] = 1e7
    assert int(quantize_int4.round_groups(weight, 32, "symmetric", torch.float16)[3]) == quantize_int4.OVERFLOW
    assert int(quantize_int4.round_groups(weight, 32, "symmetric", torch.float32)[3]) == 0


CHECKS = {
    "elementwise": elementwise, "rope": rope_checks, "decode": decode, "fused": fused,
    "sampling": sampling_checks, "draw": draw, "int4": int4, "rounding": rounding,
}  # fmt: skip

if __name__ == "__main__":
    torch.manual_seed(0)
    CHECKS[sys.argv[1]]()
