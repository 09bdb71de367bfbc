"""A decoder layer, fused against unfused: launches and milliseconds per layer of a captured decode step.

Two depths of the same model give the cost of one layer as a difference. ``SITS_FUSED_DECODE``, ``SITS_PDL`` and
``SITS_KERNELS`` are the ablation switches.
"""

from __future__ import annotations

import os

import torch
from _common import Report, graph_milliseconds

VARIANTS = {
    "fused": {},
    "fused, no dependent launch": {"SITS_PDL": "0"},
    "a kernel for each operator": {"SITS_FUSED_DECODE": "0"},
    "norms, rotary and activation by PyTorch": {
        "SITS_FUSED_DECODE": "0",
        "SITS_KERNELS": "rms_norm=reference,add_rms_norm=reference,silu_mul=reference,rope_kv_write=reference",
    },
}


def add_options(parser):
    parser.add_argument("--model", default="llama-3-70b")
    parser.add_argument("--precision", default="int4-g32")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64])


def prepared(options, layers, batch, context=512, block_size=16):
    """A function that runs one decode step of a model of ``layers`` layers."""
    from sits.kernels.testing import paged_batch
    from sits.models.loading import load_model
    from sits.quant.kv import allocate_kv_cache

    name = f"synthetic:{options.model}?layers={layers}"
    model = load_model(name, dtype="bfloat16", device="cuda", quantization=options.precision).model
    step = paged_batch([context] * batch, [1] * batch, block_size, "cuda")
    config = model.config
    blocks = int(step.block_tables.max()) + 1
    cache = allocate_kv_cache(
        "auto", config.layers, blocks, block_size, config.kv_heads, config.head_dim, model.dtype, model.device
    )
    for pair in cache:
        for tensor in pair:
            tensor.normal_()
    tokens = torch.randint(0, config.vocab_size, (batch,), device="cuda")
    rows = torch.arange(batch, device="cuda")
    return lambda: model.forward(tokens, step, cache, rows)


def launches(work):
    """Kernels one call launches."""
    from torch.profiler import ProfilerActivity, profile

    work()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    return sum(
        event.count for event in profiler.key_averages() if "Memcpy" not in event.key and "Memset" not in event.key
    )


@torch.inference_mode()
def main():
    report = Report("layer", __doc__ or "", add_options)
    options = report.options
    name = options.model.replace("llama-3", "llama3")
    few, many = 2, 6
    for batch in options.batches:
        times = {}
        for variant, settings in VARIANTS.items():
            saved = dict(os.environ)
            os.environ.update(settings)
            try:
                short, long = prepared(options, few, batch), prepared(options, many, batch)
                count = (launches(long) - launches(short)) / (many - few)
                times[variant] = (graph_milliseconds(long) - graph_milliseconds(short)) / (many - few)
            finally:
                os.environ.clear()
                os.environ.update(saved)
            peer = times.get("fused") if variant != "fused" else None
            report.row(
                f"layer/{name}/{options.precision}/b{batch}/{variant}", "ms", times[variant], peer,
                "fused" if peer else None, launches=count,
            )  # fmt: skip
    report.save()


if __name__ == "__main__":
    main()
