"""The gap between steps: whole decode steps against the replay of their graph, in turns and one step ahead.

A whole step is the time from the end of a step to the end of the next, median over the decode-only steps of a run;
``device_ms`` replays the captured graph alone (forward and greedy tokens); the gap is what the host and the copies
add. ``late_us``: how long after the end of a step the next was handed over (mean; 0 = always before); ``latest_us``
the longest, and ``collecting_ms`` the longest pause of Python's garbage collector in the same run.
Rows: ``ours`` one step ahead, ``peer`` in turns. Also the same for sampled tokens (temperature alone, and top-p).
"""

from __future__ import annotations

import gc
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
    """Median ms of a decode step, by how much steps were handed over late, garbage collection, tokens."""
    llm.core.log.clear()
    pauses, since = [0.0], [0.0]

    def watch(phase, _):
        if phase == "start":
            since[0] = time.perf_counter()
        else:
            pauses.append((time.perf_counter() - since[0]) * 1e3)

    gc.callbacks.append(watch)
    outputs = llm.generate(prompts, params)
    llm.worker.settle()
    gc.callbacks.remove(watch)
    begins, ends, rows = {}, {}, {}
    for event in llm.core.log.events():
        if event.kind is EventKind.STEP_BEGIN:
            begins[event.entity], rows[event.entity] = event.time_ns, event.value
        elif event.kind is EventKind.STEP_END:
            ends[event.entity] = event.time_ns
    steps = [name for name in begins if rows[name] == len(prompts)][2:]  # every prompt decodes
    pairs = list(pairwise(steps))
    whole = statistics.median(ends[b] - ends[a] for a, b in pairs) / 1e6
    late = [max(0, begins[b] - ends[a]) / 1e3 for a, b in pairs]
    return {
        "whole": whole,
        "late_us": statistics.mean(late),
        "latest_us": max(late),
        "collecting_ms": max(pauses),
        "tokens": [output.outputs[0].token_ids for output in outputs],
    }


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
        "temperature": {"temperature": 0.8, "seed": 1},
        "top_p": {"temperature": 0.8, "top_p": 0.95, "seed": 1},
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
                best = min(tries, key=lambda one: one["whole"]) | {"device_ms": device_milliseconds(llm, batch)}
                found[overlap, batch, kind] = best
                print(overlap, batch, kind, {k: v for k, v in best.items() if k != "tokens"}, flush=True)
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
            more = {key: ahead[key] for key in ("device_ms", "late_us", "latest_us", "collecting_ms")}
            gaps = [(one["whole"] - (one["device_ms"] or 0)) * 1e3 for one in (ahead, turns)]
            report.row(
                case, "ms", ahead["whole"], turns["whole"], "one step after the other",
                gap_us=gaps[0], gap_us_in_turns=gaps[1], late_us_in_turns=turns["late_us"],
                same_tokens=same_share(turns["tokens"], ahead["tokens"]), **more,
            )  # fmt: skip
    report.save()


if __name__ == "__main__":
    main()
