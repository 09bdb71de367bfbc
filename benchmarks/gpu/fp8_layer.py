"""What an FP8 layer of Llama-3-70B is made of: products by scaling, row kernels, prompts, layers.

Results are checked by tests/gpu/test_fp8_kernels.py; here only the fused layer against the unfused one is. Weights
are rotated so that no product finds its weight in the L2 cache; row kernels read what the kernel before them left
there, so their inputs are not rotated.
"""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from functools import partial

import torch
from _common import DEVICE, Report, graph_milliseconds
from layer import prepared
from linears import random_codes

from sits.kernels import int4_linear
from sits.kernels.cuda import rows as cuda_rows
from sits.kernels.cuda.small import make_fp8
from sits.kernels.fp8 import quantize_rows
from sits.kernels.fp8_product import scaled_product, unscaled_product
from sits.kernels.testing import empty_cache, paged_batch, relative_error
from sits.kernels.triton import activation, norm, rope, sampling
from sits.kernels.triton import attention as paged
from sits.models import fused_fp8

SHAPES = {"qkv": (10240, 8192), "o": (8192, 8192), "gate_up": (57344, 8192), "down": (8192, 28672)}
LAYERS, PROMPT = 80, 8192
PARTS = ("rows", "argmax", "layer", "dequantise", "products", "attention", "prompt")


def add_options(parser):
    parser.add_argument("--batches", type=int, nargs="+", default=[128, 256])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))


def chain(count, function, *arguments):
    """Milliseconds of one of ``count`` equal calls in a graph."""

    def work():
        for _ in range(count):
            function(*arguments)

    return graph_milliseconds(work, count)


def eager(function, *arguments, rounds=5):
    """Least milliseconds between events of one call, host and device together."""
    function(*arguments)
    times = []
    for _ in range(rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        function(*arguments)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return min(times)


def row_kernels(report, options):
    gain = torch.ones(8192, device=DEVICE, dtype=torch.bfloat16)
    for rows in (64, 128, 256, PROMPT):
        x, residual = (torch.randn(rows, 8192, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
        gate_up = torch.randn(rows, 57344, device=DEVICE, dtype=torch.bfloat16)
        cases = {
            "add+norm+quantise/triton": (norm.add_rms_norm_fp8, x, residual, gain, 1e-5),
            "add+norm/triton": (norm.add_rms_norm, x, residual, gain, 1e-5),
            "quantise/triton": (activation.quantize_fp8, x),
            "silu+quantise/triton": (activation.quantize_fp8, gate_up, True),
            "silu/triton": (activation.silu_mul, gate_up),
        }
        for chunks in (1, 2, 4):
            cases[f"add+norm+quantise/cuda{chunks}"] = (cuda_rows.norm, x, residual, gain, 1e-5, True, chunks)
            cases[f"add+norm/cuda{chunks}"] = (cuda_rows.norm, x, residual, gain, 1e-5, False, chunks)
            cases[f"quantise/cuda{chunks}"] = (cuda_rows.quantize, x, False, chunks)
        row_scale = torch.rand(rows, device=DEVICE)
        scales, wide_scales = ((row_scale, torch.rand(columns, device=DEVICE)) for columns in (8192, 57344))
        for chunks in (1, 2):
            cases[f"add+norm+quantise/sums/cuda{chunks}"] = (
                cuda_rows.norm, x, residual, gain, 1e-5, True, chunks, scales,
            )  # fmt: skip
        for chunks in (4, 5, 7, 8):
            cases[f"silu+quantise/cuda{chunks}"] = (cuda_rows.quantize, gate_up, True, chunks)
            cases[f"silu+quantise/sums/cuda{chunks}"] = (cuda_rows.quantize, gate_up, True, chunks, wide_scales)
        qkv, qkv_scales = gate_up[:, :10240].contiguous(), (row_scale, wide_scales[1][:10240])
        cases["scale qkv/cuda"] = (cuda_rows.scale_rows, qkv, qkv_scales, None, torch.bfloat16)
        for name, call in cases.items():
            report.row(f"rows/{name}/b{rows}", "us", chain(20 if rows < 1000 else 4, *call) * 1e3)
        if rows == 256:
            os.environ["SITS_PDL"] = "0"
            for name in ("add+norm+quantise/cuda2", "silu+quantise/cuda7"):
                report.row(f"rows/{name}/b{rows}/no dependent launch", "us", chain(20, *cases[name]) * 1e3)
            del os.environ["SITS_PDL"]


def argmax(report, options):
    def peer(logits):
        return logits.float().max(-1)

    for rows in (1, 16, 256):
        for dtype in (torch.bfloat16, torch.float32):
            logits = torch.randn(rows, 128256, device=DEVICE).to(dtype)
            ours, theirs = (chain(4, function, logits) * 1e3 for function in (sampling.argmax_finite, peer))
            report.row(f"argmax/{str(dtype)[6:]}/b{rows}", "us", ours, theirs, "torch .float().max()")


def over(weights, function, *arguments):
    """One call for each weight; ``arguments`` are q, its scale, and what comes after the weight's two tensors."""
    q, scale, *rest = arguments
    for weight in weights:
        function(q, scale, *weight, *rest)


def products(report, options):
    total = defaultdict(float)
    for name, (outputs, inputs) in SHAPES.items():
        copies = max(2, int(2e8 // (outputs * inputs)) + 1)
        weights = [quantize_rows(torch.randn(outputs, inputs, device=DEVICE) * 0.02) for _ in range(copies)]
        for rows in (*options.batches, PROMPT):
            q, scale = quantize_rows(torch.randn(rows, inputs, device=DEVICE))
            found = {}
            found["torch per tensor"] = chain(1, over, weights, unscaled_product, q, scale) / copies
            found["torch row-wise"] = chain(1, over, weights, scaled_product, q, scale, torch.bfloat16) / copies
            for kind, milliseconds in found.items():
                total[kind, rows] += milliseconds * LAYERS
                flops = 2.0 * rows * outputs * inputs / milliseconds / 1e9
                report.row(
                    f"product/{name}/{kind}/b{rows}", "ms", milliseconds, None, None, outputs * inputs,
                    tflops=round(flops),
                )  # fmt: skip
        del weights
    for (kind, rows), milliseconds in sorted(total.items(), key=lambda item: item[0][1]):
        report.row(f"products/llama3-70b/{kind}/b{rows}", "ms", milliseconds)


def dequantise(report, options):
    for name, shape in SHAPES.items():
        packed = int4_linear.make_layout("wgmma", random_codes(*shape), torch.bfloat16, name == "gate_up")
        milliseconds = chain(3, make_fp8, packed)
        report.row(f"dequantise/{name}", "ms", milliseconds, None, None, packed.nbytes + shape[0] * shape[1])


def whole_layer(report, options):
    class Settings:
        model, precision = "llama-3-70b", "fp8"

    most = fused_fp8.MOST_UNSCALED
    for batch in options.batches:
        times, logits = {}, {}
        for variant in ("fused", "row-wise", "unfused"):
            os.environ["SITS_FUSED_FP8"] = "0" if variant == "unfused" else "1"
            fused_fp8.MOST_UNSCALED = 0 if variant == "row-wise" else most
            steps = []
            for layers in (2, 6):
                torch.manual_seed(1)  # the same tokens and cache for both
                steps.append(prepared(Settings, layers, batch, 160))
            logits[variant] = steps[0]().clone()
            times[variant] = (graph_milliseconds(steps[1]) - graph_milliseconds(steps[0])) / 4
            del steps
        del os.environ["SITS_FUSED_FP8"]
        fused_fp8.MOST_UNSCALED = most
        for peer in ("row-wise", "unfused"):
            error = relative_error(logits["fused"], logits[peer])
            name = f"layer/llama3-70b/fp8/b{batch}/ctx160" + ("/over row-wise" if peer == "row-wise" else "")
            report.row(name, "ms", times["fused"], times[peer], peer, logits_differ=error)
            if not error < 0.15:  # e4m3 codes that another last bit moves make 2 to 8 % in random weights
                sys.exit("the fused layer computes something else")


def attention(report, options):
    """Prompts of 8192 tokens in all through the engine's operators: 64 query heads, 8 KV heads."""
    sdpa = partial(torch.nn.functional.scaled_dot_product_attention, is_causal=True, enable_gqa=True)
    cos_sin = torch.rand(PROMPT, 128, device=DEVICE)
    qkv = torch.randn(PROMPT, 10240, device=DEVICE, dtype=torch.bfloat16)
    for count, length in ((16, 512), (1, 8192)):
        batch = paged_batch([length] * count, [length] * count, 16, DEVICE)
        k, v = empty_cache(batch, 8, 128, torch.bfloat16)
        q = rope.rope_kv_write(qkv, cos_sin, k, v, batch, 64, 8, 128)
        name, flop = f"prefill/{count}x{length}", count * 2.0 * length * length * 128 * 64
        report.row(f"{name}/rope+write", "ms", eager(rope.rope_kv_write, qkv, cos_sin, k, v, batch, 64, 8, 128))
        milliseconds = eager(paged.attention, q, k, v, batch, 0.088)
        report.row(f"{name}/attention", "ms", milliseconds, tflops=round(flop / milliseconds / 1e9))
        wide = q.view(count, length, 64, 128).transpose(1, 2)
        key, value = (torch.randn(count, 8, length, 128, device=DEVICE, dtype=q.dtype) for _ in range(2))
        for kind in ("FLASH_ATTENTION", "CUDNN_ATTENTION"):
            try:
                with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, kind)):
                    milliseconds = eager(sdpa, wide, key, value)
            except (RuntimeError, TypeError) as error:
                print(kind, str(error)[:200])
                continue
            report.row(f"{name}/sdpa {kind}", "ms", milliseconds, tflops=round(flop / milliseconds / 1e9))


def prompt(report, options):
    """A whole layer over 8192 new tokens, FP8 and INT4: two depths of the model give one layer."""
    from sits.models.loading import load_model
    from sits.quant.kv import allocate_kv_cache

    step = paged_batch([512] * 16, [512] * 16, 16, DEVICE)
    rows = torch.arange(511, PROMPT, 512, device=DEVICE)
    tokens = torch.randint(0, 128256, (PROMPT,), device=DEVICE)
    blocks = int(step.block_tables.max()) + 1
    for precision, setting in (("fp8", "exact"), ("int4-g32", "exact"), ("int4-g32", "fp8")):
        os.environ["SITS_INT4_PREFILL"] = setting
        times = []
        for layers in (2, 4):
            name = f"synthetic:llama-3-70b?layers={layers}"
            model = load_model(name, dtype="bfloat16", device="cuda", quantization=precision).model
            cache = allocate_kv_cache("auto", layers, blocks, 16, 8, 128, model.dtype, model.device)
            times.append(eager(model.forward, tokens, step, cache, rows))
            del model, cache
        layer = (times[1] - times[0]) / 2
        report.row(f"prompt/llama3-70b/{precision}/{setting}/layer", "ms", layer, seconds_of_80=layer * LAYERS / 1e3)


@torch.inference_mode()
def main():
    report = Report("fp8_layer", __doc__ or "", add_options)
    options = report.options
    parts = (row_kernels, argmax, whole_layer, dequantise, products, attention, prompt)
    for name, function in zip(PARTS, parts):
        if name in options.parts:
            started = time.monotonic()
            function(report, options)
            print(f"-- {name}: {time.monotonic() - started:.1f} s", flush=True)
    report.save()


if __name__ == "__main__":
    main()
