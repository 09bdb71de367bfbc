"""Decode attention over a paged cache, as a step launches it: rotary embedding and KV write inside.

Shapes are Llama-3-70B's: 64 query heads, 8 KV heads, head_dim 128. Rows count the bytes of K and V of all contexts,
scales included. The ragged mix is also run through the Triton kernel, by planned and by static splits; single long
contexts through PyTorch's own attention. ``--sweep`` adds every CUDA kernel and launch shape by itself.
"""

from __future__ import annotations

import torch
from _common import DEVICE, Report, graph_milliseconds, rotate

from sits.kernels.cuda import decode_attention as cluster
from sits.kernels.cuda import line_attention as line
from sits.kernels.kv_cache import gather_tokens
from sits.kernels.testing import empty_cache, paged_batch
from sits.kernels.triton.attention import decode_attention
from sits.kernels.triton.fused_decode import fused_rope_attention
from sits.policy.kv_planner import DeviceLimits, HeadLayout, block_size, plan_decode, static_plan

HEADS, KV_HEADS, HEAD_DIM = 64, 8, 128
RAGGED = [131072, 65536, 32768] + [8192] * 8 + [2048] * 16 + [300] * 37
CASES = {
    "32768": [32768],
    "65536": [65536],
    "131072": [131072],
    "ragged": RAGGED,
    "b1/ctx512": [512],
    "b4/ctx512": [512] * 4,
    "b16/ctx512": [512] * 16,
    "b64/ctx512": [512] * 64,
    "b64/ctx160": [160] * 64,
    "b128/ctx160": [160] * 128,
    "b256/ctx160": [160] * 256,
}
SHAPES = [line.LineShape(8, 3, 1), line.LineShape(8, 2, 1), line.LineShape(4, 3, 2), line.LineShape(4, 2, 2)]
KINDS = {"fp16": None, "int8": torch.int8, "fp8": torch.float8_e4m3fn}


def random_cache(batch, kind):
    """A cache full of values of about unit size; filling it token by token would take minutes."""
    caches = empty_cache(batch, KV_HEADS, HEAD_DIM, torch.float16, kind)
    for cache in caches:
        if kind is None:
            cache.normal_()
        else:
            if kind is torch.float8_e4m3fn:
                cache.data.view(torch.uint8).random_(0, 0x78)
            cache.scale.fill_(0.02)
    return caches


def options(parser) -> None:
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="storage of K and V")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--sweep", action="store_true", help="every kernel and launch shape by itself")


def main() -> None:
    report = Report("attention", __doc__ or "", options)
    properties = torch.cuda.get_device_properties(0)
    limits = DeviceLimits(
        properties.multi_processor_count,
        getattr(properties, "shared_memory_per_block_optin", 227 * 1024),
        getattr(properties, "shared_memory_per_multiprocessor", 228 * 1024),
    )
    for kind_name in report.options.kinds:
        for case in report.options.cases:
            measure(report, limits, case, CASES[case], kind_name)
    report.save()


def measure(report: Report, limits: DeviceLimits, case: str, lengths: list[int], kind_name: str) -> None:
    """The rows of one mix of contexts with K and V of one kind."""
    kind, scale = KINDS[kind_name], HEAD_DIM**-0.5
    layout = HeadLayout(HEADS, KV_HEADS, HEAD_DIM, 2 if kind is None else 1)
    page = block_size(limits, layout, sum(lengths) / len(lengths))
    kv_bytes = sum(lengths) * 2 * KV_HEADS * (HEAD_DIM * layout.kv_bytes + (0 if kind is None else 2))
    sets = max(2, min(12, int(3e8 // kv_bytes) + 1))
    calls = sets * -(-12 // sets)  # a dozen calls a graph: the replay's own cost must not count
    batches = [paged_batch(lengths, [1] * len(lengths), page, DEVICE, seed) for seed in range(sets)]
    caches = [random_cache(batch, kind) for batch in batches]
    if max(lengths) < 1024:  # what the host knows while a graph is captured is its bucket
        for batch in batches:
            batch.context_lens_host = [1024] * len(lengths)
    qkv = torch.randn(len(lengths), (HEADS + 2 * KV_HEADS) * HEAD_DIM, device=DEVICE).half()
    angles = torch.rand(max(lengths) + 1, HEAD_DIM, device=DEVICE)
    name = f"attention/decode/{case}" + ("" if kind is None else f"/{kind_name}")

    def fused(kernel=fused_rope_attention, **more) -> float:
        def work():
            for batch, (k, v) in rotate(list(zip(batches, caches)), calls):
                kernel(qkv, angles, k, v, batch, HEADS, KV_HEADS, HEAD_DIM, scale, **more)

        return graph_milliseconds(work, calls)

    def unfused(plan) -> float:
        q = qkv.view(len(lengths), -1, HEAD_DIM)[:, :HEADS].contiguous()

        def work():
            for batch, (k, v) in rotate(list(zip(batches, caches)), calls):
                decode_attention(q, k, v, batch.context_lens, batch.block_tables, scale, 0, plan)

        return graph_milliseconds(work, calls)

    ours, more, peer, peer_name = fused(), {}, None, None
    if len(lengths) == 1 and kind is None and lengths[0] >= 32768:
        q = torch.randn(1, HEADS, HEAD_DIM, device=DEVICE).half()
        peer, peer_name = stock_milliseconds(q, batches, caches, scale), "torch SDPA on contiguous K and V"
    if case == "ragged":
        planned = unfused(plan_decode(limits, layout, lengths))
        peer, peer_name = unfused(static_plan(limits, layout, lengths)), "Triton, static splits"
        more = {"speedup": peer / ours}
        report.row(f"{name}/triton", "ms", planned, peer, peer_name, kv_bytes, speedup=peer / planned)
    report.row(name, "ms", ours, peer, peer_name, kv_bytes, **more)
    if not report.options.sweep:
        return
    for shape in SHAPES:
        label = f"{name}/line{shape.warps}.{shape.stages}.{shape.blocks}"
        report.row(label, "ms", fused(line.line_attention, shape=shape), None, None, kv_bytes)
    report.row(f"{name}/line-alone", "ms", fused(line.line_attention, overlap=False), None, None, kv_bytes)
    if kind is None and max(lengths) <= cluster.LONGEST:
        report.row(f"{name}/cluster", "ms", fused(cluster.decode_attention), None, None, kv_bytes)


def stock_milliseconds(q, batches, caches, scale) -> float:
    """torch's scaled_dot_product_attention over K and V gathered beforehand (the gathering is not counted)."""
    pairs = []
    for batch, caches_of in zip(batches, caches):
        length = batch.context_lens_host[0]
        blocks = batch.block_tables[0, : -(-length // batch.block_size)].long()
        pairs.append(
            tuple(
                gather_tokens(c, blocks, length, q.dtype).transpose(0, 1).unsqueeze(0).contiguous() for c in caches_of
            )
        )
    query = q.transpose(0, 1).unsqueeze(0)  # [1, H, 1, D] of one request

    def work():
        for k, v in rotate(pairs, calls):
            torch.nn.functional.scaled_dot_product_attention(query, k, v, scale=scale, enable_gqa=True)

    calls = len(pairs) * -(-12 // len(pairs))
    return graph_milliseconds(work, calls)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
