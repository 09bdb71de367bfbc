"""Seconds from the start of a process to its first token, synthetic weights made on the device, in phases.

Twice: ``start/<model>/<precision>`` with every cache of compiled kernels empty (a new home folder), then ``.../warm``
with what the first start left on disk. Python's and torch's own files are in the page cache both times (this process
has read them). The phases are wall time of the child's main thread; what overlaps them in other threads is not shown.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _common import Report

# The child. Loading is timed by a wrapper around the loader, so that the way in is the public one.
PROGRAM = """
import json, sys, time
spawned, name, quantization, dtype, max_running, profile = json.loads(sys.argv[1])
phases, last = {}, spawned
def phase(label):
    global last
    now = time.time()
    phases[label] = round(now - last, 3)
    last = now
phase("interpreter")
import torch
phase("import torch")
from sits import LLM, SamplingParams
from sits.models import loading
phase("import sits")
torch.zeros(1, device="cuda")
torch.cuda.synchronize()
phase("CUDA context")
def timed_load(*arguments, **named):
    loaded = load_model(*arguments, **named)
    torch.cuda.synchronize()
    phase("load and quantise")
    return loaded
load_model, loading.load_model = loading.load_model, timed_load
if profile:
    import cProfile
    profiler = cProfile.Profile()
    profiler.enable()
llm = LLM(name, dtype=dtype, quantization=quantization, max_model_len=1024, max_running=max_running)
phase("engine")
llm.generate([list(range(5, 37))], SamplingParams(max_tokens=1, ignore_eos=True))
phase("first token")
if profile:
    import pstats
    profiler.disable()
    pstats.Stats(profiler, stream=sys.stderr).sort_stats("cumulative").print_stats(60)
import os
print(json.dumps({"seconds": last - spawned, "phases": phases}), flush=True)
os._exit(0)
"""


def add_options(parser):
    parser.add_argument("--model", default="llama-3-70b", help="a synthetic preset, with ?layers=N to cut it")
    parser.add_argument("--precision", default="int4-g32", help="int4-g32, fp8, bfloat16, float16")
    parser.add_argument("--dtype", default="bfloat16", help="activations")
    parser.add_argument("--max-running", type=int, help="engine option; the engine's own choice if left out")
    parser.add_argument("--profile", action="store_true", help="a third start under cProfile, printed")
    parser.add_argument("--peer", type=Path, help="result of peer_vllm.py (used if that engine started alone)")


def start(options, home: Path, profile: bool = False) -> dict | None:
    """One process to its first token; None when it fails (its errors go to stderr)."""
    dense = options.precision in ("bfloat16", "float16")
    dtype, quantization = (options.precision, None) if dense else (options.dtype, options.precision)
    environment = {**os.environ, "HOME": str(home), "SITS_CACHE": str(home / "sits")}
    environment["TRITON_CACHE_DIR"] = str(home / "triton")
    arguments = [time.time(), f"synthetic:{options.model}", quantization, dtype, options.max_running, profile]
    command = [sys.executable, "-c", PROGRAM, json.dumps(arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"seconds"')]
    return json.loads(lines[-1]) if lines else None


def main():
    report = Report("startup", __doc__ or "", add_options)
    options = report.options
    import torch

    torch.cuda.empty_cache()
    name = options.model.replace("llama-3", "llama3")
    report.name = f"startup_{name}_{options.precision}".replace("-", "_")
    peer = None
    if options.peer:
        about = json.loads(options.peer.read_text())["about"]
        peer = about["start_to_first_token_s"] if about["started_beside"] == 0 else None
    with tempfile.TemporaryDirectory() as home:
        for label in ("", "/warm"):
            found = start(options, Path(home)) or {"seconds": None, "phases": {}}
            report.row(
                f"start/{name}/{options.precision}{label}", "s", found["seconds"], None if label else peer,
                "vLLM 0.24" if peer and not label else None, phases=found["phases"],
            )  # fmt: skip
        if options.profile:
            start(options, Path(home), profile=True)
    report.save()


if __name__ == "__main__":
    main()
