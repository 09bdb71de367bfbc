"""The linears of a decoder layer by kernel and batch: what the measured table is made from.

Weights are rotated so that no launch finds its weight in the L2 cache. ``total`` sums the four linears over all
layers. Also writes ``tuning.json`` in the form of ``sits.kernels.tuning``.
"""

from __future__ import annotations

import json
from collections import defaultdict

import torch
from _common import DEVICE, Report, graph_milliseconds

from sits.kernels import int4_linear, tuning
from sits.kernels.cuda import rows as cuda_rows
from sits.kernels.cuda.wgmma_linear import wgmma_linear
from sits.kernels.cuda.wgmma_shape import MAX_NORM_ROWS
from sits.kernels.fp8 import quantize_rows
from sits.kernels.fp8_product import scaled_product
from sits.kernels.fp8_rows import quantize_fp8
from sits.kernels.tuning.measure import can_run
from sits.quant.int4 import Int4Codes

MODELS = {
    "llama3-70b": (80, {"qkv": (10240, 8192), "o": (8192, 8192), "gate_up": (57344, 8192), "down": (8192, 28672)}),
    "llama3-8b": (32, {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}),
}


def add_options(parser):
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128, 256])
    parser.add_argument(
        "--kernels", nargs="+", default=["wgmma", "wgmma-e4m3", "humming", "triton", "dense", "fp8", "cublas"]
    )
    parser.add_argument("--dtype", default="bfloat16")


def random_codes(rows, columns):
    q = torch.randint(0, 16, (rows, columns), dtype=torch.uint8, device=DEVICE)
    scale = (torch.rand(rows, columns // 32, device=DEVICE) * 0.01 + 1e-3).half().float()
    return Int4Codes(q, scale, scale * -8, 32)


def make_weights(kernel, shape, dtype):
    """Enough copies of a weight for 300 MB, in a kernel's layout, and the bytes one use reads."""
    rows, columns = shape
    per_weight = {"fp8": 1.0, "cublas": 2.0}.get(kernel, 0.5625)
    copies = max(2, min(16, int(3e8 // (rows * columns * per_weight)) + 1))
    made = []
    for _ in range(copies):
        if kernel == "cublas":
            made.append(torch.randn(rows, columns, device=DEVICE, dtype=dtype))
        elif kernel == "fp8":
            made.append(quantize_rows(torch.randn(rows, columns, device=DEVICE, dtype=dtype)))
        else:
            layouts = int4_linear.layouts_for(kernel.removesuffix("-e4m3"), random_codes(rows, columns), dtype)
            made += layouts.values()
    return made, rows * columns * per_weight


def apply(kernel, x, weight):
    if kernel == "cublas":
        return torch.nn.functional.linear(x, weight)
    if kernel == "fp8":
        q, scale = quantize_fp8(x)
        return scaled_product(q, scale, *weight, x.dtype)
    if kernel == "humming":
        return int4_linear.humming.linear(x, weight)
    if kernel == "wgmma":
        return int4_linear._own().linear(x, weight, None)
    if kernel == "wgmma-e4m3":
        q, scale = cuda_rows.quantize(x, silu=False, e4m3_order=True)
        y = torch.empty(x.shape[0], weight.rows, dtype=x.dtype, device=x.device)
        return wgmma_linear(weight, q, y, x_scale=scale)
    if kernel == "dense":
        return int4_linear._own().dense_linear(x, weight, None)
    return int4_linear.portable.int4_linear(x, weight)


def usable(kernel, batch):
    if kernel == "wgmma-e4m3":
        return 16 < batch <= MAX_NORM_ROWS and can_run("wgmma", batch)
    return kernel in ("fp8", "cublas") or can_run(kernel, batch)


@torch.inference_mode()
def main():
    report = Report("linears", __doc__ or "", add_options)
    options = report.options
    dtype = getattr(torch, options.dtype)
    choices = {}
    for model in options.models:
        layers, shapes = MODELS[model]
        total: dict[tuple[str, int], float] = defaultdict(float)
        total_bytes: dict[str, float] = defaultdict(float)
        for name, shape in shapes.items():
            times: dict[int, dict[str, float]] = defaultdict(dict)
            for kernel in options.kernels:
                if not any(usable(kernel, batch) for batch in options.batches):
                    continue
                weights, nbytes = make_weights(kernel, shape, dtype)
                total_bytes[kernel] += nbytes * layers
                for batch in options.batches:
                    if not usable(kernel, batch):
                        continue
                    x = torch.randn(batch, shape[1], device=DEVICE, dtype=dtype)

                    def work(x=x, weights=weights, kernel=kernel):
                        for weight in weights:
                            apply(kernel, x, weight)

                    try:
                        milliseconds = graph_milliseconds(work, len(weights))
                    except RuntimeError as error:
                        print(model, name, kernel, batch, str(error)[:200])
                        continue
                    total[kernel, batch] += milliseconds * layers
                    if kernel not in ("fp8", "cublas", "wgmma-e4m3"):  # which are not the same numbers
                        times[batch][kernel] = milliseconds
                    report.row(f"linear/{model}/{name}/{kernel}/b{batch}", "ms", milliseconds, None, None, nbytes)
                del weights
            choices[f"{shape[0]}x{shape[1]}"] = tuning.steps_from_times(times)
        for (kernel, batch), milliseconds in total.items():
            best = min(value for (_, other), value in total.items() if other == batch)
            report.row(
                f"linears/{model}/{kernel}/b{batch}", "ms", milliseconds, best, "fastest kernel", total_bytes[kernel]
            )
    report.save()
    table = {"card": torch.cuda.get_device_name(), "choices": {"linear_int4": choices}}
    (report.options.out / "tuning.json").write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
