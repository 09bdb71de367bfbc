"""Decode attention over a paged cache: planned splits against the static rule and PyTorch's own attention.

Shapes are Llama-3-70B's: 64 query heads, 8 KV heads, head_dim 128. Rows count the bytes of K and V of all contexts,
scales included. ``--sweep`` also tries tiles, pipeline depths and programs per multiprocessor.
"""

from __future__ import annotations

import torch
from _common import DEVICE, Report, graph_milliseconds, rotate

from sits.kernels.kv_cache import gather_tokens
from sits.kernels.testing import empty_cache, paged_batch
from sits.kernels.triton.attention import decode_attention
from sits.kernels.triton.fused_decode import fused_rope_attention
from sits.policy.kv_planner import DecodePlan, DeviceLimits, HeadLayout, block_size, plan_decode, static_plan

HEADS, KV_HEADS, HEAD_DIM = 64, 8, 128
RAGGED = [131072, 65536, 32768] + [8192] * 8 + [2048] * 16 + [300] * 37
CASES = {
    "32768": [32768],
    "65536": [65536],
    "131072": [131072],
    "ragged": RAGGED,
    "b1/ctx512": [512],
    "b16/ctx512": [512] * 16,
    "b64/ctx128": [128] * 64,
    "b256/ctx128": [128] * 256,
}
SWEEP = ((64, 5, 2), (64, 4, 3), (32, 5, 3), (64, 4, 2))  # tile, pipeline stages, programs per multiprocessor
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


def main() -> None:
    report = Report("attention", __doc__ or "", lambda parser: parser.add_argument("--sweep", action="store_true"))
    properties = torch.cuda.get_device_properties(0)
    limits = DeviceLimits(
        properties.multi_processor_count,
        getattr(properties, "shared_memory_per_block_optin", 227 * 1024),
        getattr(properties, "shared_memory_per_multiprocessor", 228 * 1024),
    )
    scale = HEAD_DIM**-0.5
    for case, lengths in CASES.items():
        for kind_name, kind in KINDS.items():
            layout = HeadLayout(HEADS, KV_HEADS, HEAD_DIM, 2 if kind is None else 1)
            page = block_size(limits, layout, sum(lengths) / len(lengths))
            per_token = 2 * KV_HEADS * (HEAD_DIM * layout.kv_bytes + (0 if kind is None else 2))
            kv_bytes = sum(lengths) * per_token
            sets = max(2, min(12, int(3e8 // kv_bytes) + 1))
            calls = sets * -(-12 // sets)  # a dozen calls a graph: the replay's own cost must not count
            batches = [paged_batch(lengths, [1] * len(lengths), page, DEVICE, seed) for seed in range(sets)]
            caches = [random_cache(batch, kind) for batch in batches]
            q = torch.randn(len(lengths), HEADS, HEAD_DIM, device=DEVICE).half()

            def run(plan, q=q, batches=batches, caches=caches, calls=calls):
                for batch, (k, v) in rotate(list(zip(batches, caches)), calls):
                    decode_attention(q, k, v, batch.context_lens, batch.block_tables, scale, 0, plan)

            planned = graph_milliseconds(lambda: run(plan_decode(limits, layout, lengths)), calls)  # noqa: B023
            static = graph_milliseconds(lambda: run(static_plan(limits, layout, lengths)), calls)  # noqa: B023
            name = f"attention/decode/{case}" + ("" if kind is None else f"/{kind_name}")
            report.row(
                name, "ms", planned, static, "the same kernel, static splits", kv_bytes, speedup=static / planned
            )
            if kind is None and len(lengths) == 1:
                stock = stock_milliseconds(q, batches, caches, scale)
                report.row(f"{name}/stock", "ms", planned, stock, "torch SDPA on contiguous K and V", kv_bytes)
            if case.startswith("b"):
                qkv = torch.randn(len(lengths), (HEADS + 2 * KV_HEADS) * HEAD_DIM, device=DEVICE).half()
                angles = torch.rand(8192, HEAD_DIM, device=DEVICE)

                def fused(qkv=qkv, angles=angles, batches=batches, caches=caches, calls=calls):
                    for batch, (k, v) in rotate(list(zip(batches, caches)), calls):
                        fused_rope_attention(qkv, angles, k, v, batch, HEADS, KV_HEADS, HEAD_DIM, scale)

                report.row(f"{name}/fused-rope", "ms", graph_milliseconds(fused, calls), None, None, kv_bytes)
            if report.options.sweep and case in ("32768", "131072", "ragged"):
                for tile, stages, per in SWEEP:
                    plan = DecodePlan(tile, per * limits.multiprocessors, 1, stages)
                    try:
                        milliseconds = graph_milliseconds(lambda plan=plan: run(plan), calls)
                    except Exception as error:  # a variant that does not fit is a finding, not a failure
                        print(name, tile, stages, per, str(error)[:120])
                        continue
                    report.row(f"{name}/t{tile}s{stages}p{per}", "ms", milliseconds, None, None, kv_bytes)
            del caches, batches
    report.save()


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
