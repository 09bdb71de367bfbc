"""Required bytes (from shapes) against observed bytes (GPM) of FP16/BF16 decode: Llama-3-8B and 70B, batch 1 and 64.

Run from the repository root: PYTHONPATH=src python3 benchmarks/gpu/traffic.py --out benchmarks/results
Bar: required / observed within 5% of 1. The 70B model is cut to 40 of its 80 layers (same shapes per layer) so that
it leaves room for KV; the required bytes are of the cut model. Every sequence has KV blocks of its own, else the
reads would come from the L2 cache.
"""

from __future__ import annotations

import argparse
import gc
import time

import torch
from _common import Report

from sits.engine.request import Request, RequestState
from sits.engine.runner import Runner, RunnerConfig
from sits.engine.sampling_params import SamplingParams
from sits.engine.step_batch import StepBatch
from sits.models.loading.load import load_model
from sits.telemetry.nvml import NvmlCollector
from sits.telemetry.samples import BandwidthSample
from sits.traffic.cards import get_card
from sits.traffic.model_shape import cut_to, get_shape
from sits.traffic.operators import Step, step_traffic
from sits.traffic.precision import StepPrecision

_BLOCK = 64


def decode_batch(batch: int, context: int) -> StepBatch:
    """``batch`` sequences at ``context`` cached tokens, each in its own blocks."""
    per_request = context // _BLOCK + 1
    requests = []
    for row in range(batch):
        request = Request(f"r{row}", [1] * (context + 1), SamplingParams())
        request.row = row
        request.num_computed = context
        request.blocks = [1 + row * per_request + i for i in range(per_request)]
        request.state = RequestState.RUNNING
        requests.append(request)
    return StepBatch(0, "traffic", requests, [1] * batch, batch, list(range(batch)))


def main() -> None:
    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--models", default="llama-3-8b:0,llama-3-70b:40", help="preset:layers, 0 = all")
        parser.add_argument("--seconds", type=float, default=3.0)

    report = Report("traffic", __doc__ or "", options)
    card = get_card(torch.cuda.get_device_name())
    for entry in report.options.models.split(","):
        name, _, cut = entry.partition(":")
        layers = int(cut or 0)
        shape = get_shape(name)
        shape = cut_to(shape, layers) if layers else shape
        suffix = f"?layers={layers}" if layers else ""
        loaded = load_model(f"synthetic:{name}{suffix}", dtype="bfloat16", device="cuda")
        config = RunnerConfig(_BLOCK, max_running=64, max_step_tokens=256, max_model_len=2048, kv_blocks=64 * 18 + 1)
        runner = Runner(loaded.model, config)
        for batch, context in ((1, 512), (64, 512), (64, 1024)):
            measure(report, runner, shape, card, name, batch, context)
        del runner, loaded
        gc.collect()
        torch.cuda.empty_cache()
    report.save()


def measure(report: Report, runner: Runner, shape, card, name: str, batch: int, context: int) -> None:
    """One case: run steps back to back for some seconds, compare with the counter over the same time."""
    step_batch = decode_batch(batch, context)
    for _ in range(5):
        runner.execute(step_batch).fetch()
    collector = NvmlCollector()
    collector.probe()
    collector.open()
    begin = time.perf_counter()
    while time.perf_counter() - begin < 0.6:  # the counter lags by up to 0.15 s: let it forget what was before
        runner.execute(step_batch).fetch()
    torch.cuda.synchronize()
    collector.sample()
    begin, steps = time.perf_counter(), 0
    while time.perf_counter() - begin < report.options.seconds:
        runner.execute(step_batch).fetch()
        steps += 1
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    windows = [item for item in collector.sample() if isinstance(item, BandwidthSample)]
    collector.close()
    traffic = step_traffic(shape, Step.decode(batch, context, StepPrecision()))
    required = traffic.bytes * steps / seconds / 1e9
    without_activations = (traffic.bytes - traffic.activation_bytes) * steps / seconds / 1e9
    observed = windows[0].observed_gbps if windows else None
    report.row(
        f"traffic/{name}/bf16/b{batch}/ctx{context}", "ratio", None if not observed else required / observed,
        required_gbps=required, observed_gbps=observed, ms_per_step=seconds / steps * 1e3, layers=shape.layers,
        without_activations=None if not observed else without_activations / observed,
        mabu_required=required / card.bandwidth_gbps, bar=0.05,
        within_bar=bool(observed) and abs(required / observed - 1) <= 0.05,
    )  # fmt: skip


if __name__ == "__main__":
    main()
