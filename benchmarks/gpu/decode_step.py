"""The whole decode step through the public engine: linears, attention, norms, sampling, scheduling.

Milliseconds per step = (time of 65 tokens - time of 1 token) / 64, the least of ``--repeats`` pairs, all requests in
one batch, greedy, no end-of-text: the way vLLM is measured beside it (``--peer`` takes that JSON:
``{"<batch>": [ms, ...]}``). ``device`` is the replay of the captured graph alone; the rest of a step is the host.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import torch
from _common import Report


def add_options(parser):
    parser.add_argument("--model", default="llama-3-70b", help="a synthetic preset, or a model name")
    parser.add_argument("--precision", default="int4-g32", help="int4-g32, fp8, bfloat16, float16")
    parser.add_argument("--dtype", default="bfloat16", help="activations")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64, 128, 256])
    parser.add_argument("--kv-dtype", default="auto")
    parser.add_argument("--int4-prefill", default="exact", choices=["exact", "fp8"])
    parser.add_argument("--step-tokens", type=int, default=8192, help="most tokens of one step")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--layers", type=int, help="cut the preset, for a quick check")
    parser.add_argument("--peer", type=Path, help="result of the peer")


def case_name(options):
    """How the model is called in rows and file names."""
    name = Path(options.model).stem.replace("llama-3", "llama3")
    return f"{name}-{options.layers}-layers" if options.layers else name


def open_engine(options, max_running, max_tokens):
    from sits import LLM

    name = options.model
    if not Path(name).exists() and not name.startswith("synthetic:"):
        name = f"synthetic:{name}" + (f"?layers={options.layers}" if options.layers else "")
    dense = options.precision in ("bfloat16", "float16")
    return LLM(
        name,
        dtype=options.precision if dense else options.dtype,
        quantization=None if dense else options.precision,
        kv_dtype=options.kv_dtype,
        max_model_len=max_tokens,
        max_running=max_running,
        max_step_tokens=options.step_tokens,
        prefix_caching=False,
        int4_prefill=options.int4_prefill,
    )


def run(llm, batch, context, tokens):
    """Seconds for a batch of fresh random prompts to get ``tokens`` tokens each."""
    from sits import SamplingParams

    prompts = [[random.randrange(3, llm.vocab_size) for _ in range(context)] for _ in range(batch)]
    started = time.perf_counter()
    llm.generate(prompts, SamplingParams(max_tokens=tokens, ignore_eos=True))
    return time.perf_counter() - started


def device_milliseconds(llm, rows):
    """Median replay time of the graphs captured for this many rows, longest context first; None without graphs."""
    graphs = getattr(llm.core.runner, "_graphs", None)
    captured = [entry for (bucket, _), entry in sorted(graphs._captured.items()) if bucket >= rows] if graphs else []
    if not captured:
        return None
    times = []
    for _ in range(20):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        captured[0].graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def step_bytes(llm, batch, context):
    """Weights but the embedding table, and the KV of every request. Of an INT4 weight held in several orders (one for
    small batches, one for larger), a step reads one."""
    model = llm.model
    config = model.config
    table = model.embedding.numel() * model.embedding.element_size()
    per_token = sum(k.nbytes + v.nbytes for k, v in llm.core.runner.kv_cache)
    per_token /= llm.core.runner.num_blocks * llm.options.block_size
    weights = model.weight_bytes() - (0 if config.tied_embeddings else table)
    for _, linear in model.linears():
        copies = [sum(t.nbytes for t in order.tensors()) for order in getattr(linear.packed, "layouts", {}).values()]
        weights -= sum(copies[1:])
    return weights + batch * context * per_token


def main():
    report = Report("decode_step", __doc__ or "", add_options)
    options = report.options
    random.seed(0)
    peers = json.loads(options.peer.read_text()) if options.peer else {}
    started = time.perf_counter()
    llm = open_engine(options, max(options.batches), 1024)
    loaded = time.perf_counter() - started
    name = case_name(options)
    report.name = f"decode_{name}_{options.precision}".replace("-", "_")
    print(
        f"engine ready in {loaded:.1f} s; kernels {getattr(getattr(llm.model, 'ops', None), 'chosen', {})}", llm.notes
    )
    weight_bytes = step_bytes(llm, 0, 0)  # before a second layout is made
    for batch in options.batches:
        context = 512 if batch <= 16 else 128
        run(llm, batch, context, 8)
        pairs = [run(llm, batch, context, 65) - run(llm, batch, context, 1) for _ in range(options.repeats)]
        milliseconds = min(pairs) / 64 * 1e3
        peer = peers.get(str(batch))
        read = weight_bytes + step_bytes(llm, batch, context + 32) - step_bytes(llm, 0, 0)
        report.row(
            f"{name}/{options.precision}/b{batch}/ctx{context}", "ms", milliseconds, peer[0] if peer else None,
            "vLLM 0.24" if peer else None, read,
            device_ms=device_milliseconds(llm, batch), tokens_per_s=batch / milliseconds * 1e3,
        )  # fmt: skip
    llm.close()
    report.save()


if __name__ == "__main__":
    main()
