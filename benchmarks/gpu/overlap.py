"""The gap between steps: whole decode steps against the replay of their graph, in turns and one step ahead.

A whole step is the time from the end of a step to the end of the next, median over the decode-only steps of a run;
``device_ms`` replays the captured graph alone (forward and greedy tokens); the gap is what the host and the copies
add. ``late_us``: how long after the end of a step the next was handed over (mean; 0 = always before).
Rows: ``ours`` one step ahead, ``peer`` in turns. Also the same for sampled tokens (temperature, top-p).
"""

from __future__ import annotations

import random
import statistics
import time
from itertools import pairwise

import torch
from _common import Report
from decode_step import device_milliseconds

from sits.spec.events import EventKind


def add_options(parser):
    parser.add_argument("--model", default="synthetic:llama-3-8b")
    parser.add_argument("--layers", type=int, help="cut the preset, for a quick check")
    parser.add_argument("--precision", default="int4-g32", help="or none, for the 16-bit model")
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--tokens", type=int, default=65)


def measure(llm, prompts, params):
    """(median ms of a decode step, mean us by which steps were handed over late, tokens of each prompt)."""
    llm.core.log.clear()
    outputs = llm.generate(prompts, params)
    llm.worker.settle()
    begins, ends, rows = {}, {}, {}
    for event in llm.core.log.events():
        if event.kind is EventKind.STEP_BEGIN:
            begins[event.entity], rows[event.entity] = event.time_ns, event.value
        elif event.kind is EventKind.STEP_END:
            ends[event.entity] = event.time_ns
    steps = [name for name in begins if rows[name] == len(prompts)][2:]  # every prompt decodes
    pairs = list(pairwise(steps))
    whole = statistics.median(ends[b] - ends[a] for a, b in pairs) / 1e6
    late = statistics.mean(max(0, begins[b] - ends[a]) for a, b in pairs) / 1e3
    return whole, late, [output.outputs[0].token_ids for output in outputs]


def same_share(one, other):
    """Share of tokens before the first difference of each prompt (near ties may fall either way)."""
    equal = 0
    for a, b in zip(one, other):
        equal += next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), len(a))
    return equal / sum(map(len, one))


def main():
    from sits import LLM, SamplingParams
    from sits.models.loading import load_model

    report = Report("overlap", __doc__ or "", add_options)
    options = report.options
    started = time.perf_counter()
    name = options.model + (f"?layers={options.layers}" if options.layers else "")
    quantization = None if options.precision == "none" else options.precision
    loaded = load_model(name, dtype=options.dtype, device="cuda", max_context=1024, quantization=quantization)
    print(f"loaded in {time.perf_counter() - started:.1f} s", flush=True)
    settings = {"max_running": max(options.batches), "max_step_tokens": 8192, "prefix_caching": False}
    kinds = {
        "greedy": {},
        "sampled": {"temperature": 0.8, "top_p": 0.95, "seed": 1},
    }
    random.seed(0)
    vocabulary = loaded.model.config.vocab_size
    found = {}
    for overlap in (False, True):
        llm = LLM.from_model(loaded.model, loaded.tokenizer, max_context=1024, overlap=overlap, **settings)
        for batch in options.batches:
            generator = random.Random(batch)
            context = 512 if batch <= 16 else 128
            prompts = [[generator.randrange(3, vocabulary) for _ in range(context)] for _ in range(batch)]
            for kind, extra in kinds.items():
                params = SamplingParams(max_tokens=options.tokens, ignore_eos=True, **extra)
                measure(llm, prompts, params)
                tries = [measure(llm, prompts, params) for _ in range(2)]
                device = device_milliseconds(llm, batch)
                found[overlap, batch, kind] = (*min(tries, key=lambda one: one[0]), device)
                print(overlap, batch, kind, *found[overlap, batch, kind][:2], device, flush=True)
        llm.close()
        del llm
        torch.cuda.empty_cache()
    model = options.model.removeprefix("synthetic:").replace("llama-3", "llama3")
    for batch in options.batches:
        context = 512 if batch <= 16 else 128
        for kind in kinds:
            turns, ahead = found[False, batch, kind], found[True, batch, kind]
            case = f"overlap/{model}/{options.precision}/b{batch}/ctx{context}" + (
                "" if kind == "greedy" else f"/{kind}"
            )
            report.row(
                case, "ms", ahead[0], turns[0], "one step after the other",
                device_ms=ahead[3], gap_us=(ahead[0] - (ahead[3] or 0)) * 1e3,
                gap_us_in_turns=(turns[0] - (turns[3] or 0)) * 1e3, late_us=ahead[1], late_us_in_turns=turns[1],
                same_tokens=same_share(turns[2], ahead[2]),
            )  # fmt: skip
    report.save()


if __name__ == "__main__":
    main()
