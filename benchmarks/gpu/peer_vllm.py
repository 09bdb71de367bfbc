"""The peer: vLLM on the same card, true shapes with dummy weights, measured as ``decode_step.py`` measures ours.

usage: peer_vllm.py llama-3-8b:int4-g32:1,16,64 llama-3-70b:int4-g32:1,16,64,128,256 --out FOLDER

Each case is ``preset:precision:batches`` (``preset@20`` cuts it to 20 layers, as ``--layers 20`` does ours) and gives
``FOLDER/peer_vllm_<preset>_<precision>.json``, which ``decode_step.py``, ``prefill.py`` and ``startup.py`` take with
``--peer``:
``{"<batch>": [ms per step, tokens/s, ms to the first token of all], "about": {...}}``.

An engine of vLLM takes minutes to start and seconds to measure, so the engines of all cases start side by side (each
in a process of its own, with just the KV cache its batches need) and are then measured one after another, the others
idle. vLLM keeps what it chooses by itself: torch.compile, graphs (captured for the measured batches), asynchronous
scheduling, its kernels and its attention backend. A case that does not start in vLLM's own process mode is started
once more with the engine inside the process that calls it. Where time is short, start one
large case alone: two side by side had both captured their graphs after three minutes and were not ready after four.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STEPS = 64
MAX_MODEL_LEN = 1024  # as ours


def context_of(batch: int) -> int:
    """Prompt tokens of a batch: the rule of ``decode_step.py``."""
    return 512 if batch <= 16 else 128


class Case:
    """One model, precision and list of batches; its files lie in ``work``."""

    def __init__(self, text: str, work: Path):
        self.text = text
        self.model, self.precision, batches = text.split(":")
        self.batches = sorted(int(batch) for batch in batches.split(","))
        self.model, _, layers = self.model.partition("@")
        self.layers = int(layers) if layers else None
        self.name = "_".join((self.model, *([layers] if layers else []), self.precision)).replace("-", "_")
        self.folder, self.log = work / f"model-{self.name}", work / f"{self.name}.log"
        self.ready, self.go, self.result = (work / f"{self.name}.{end}" for end in ("ready", "go", "json"))

    def write_config(self) -> tuple[str, int]:
        """Write config.json for vLLM; returns (dtype, bytes of KV cache the batches need)."""
        from sits.models.export import config_json
        from sits.models.presets import preset_config
        from sits.quant.compressed_tensors import quantization_config
        from sits.quant.precision import parse_precision

        config = preset_config(self.model, self.layers)
        dense = self.precision in ("bfloat16", "float16")
        dtype = self.precision if dense else "float16"
        data = config_json(config, dtype)
        if not dense:
            data["quantization_config"] = quantization_config({parse_precision(self.precision): []}, ["lm_head"])
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "config.json").write_text(json.dumps(data))
        tokens = max(batch * (context_of(batch) + STEPS + 32) for batch in self.batches) * 5 // 4
        return dtype, max(tokens, 4 * MAX_MODEL_LEN) * config.kv_bytes_per_token(2)


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.05)


def measure(case: Case, spawned: float, repeats: int, in_process: bool) -> None:
    """The child: start the engine, say so, wait to be asked, measure, write the result."""
    dtype, kv_bytes = case.write_config()
    # Its top-k sampler is compiled at start, a minute or more after the graphs; greedy decoding never calls it.
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    if in_process:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams, __version__

    llm = LLM(
        model=str(case.folder),
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype=dtype,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=max(case.batches),
        max_num_batched_tokens=8192,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=kv_bytes,
        gpu_memory_utilization=0.05,  # not used when the cache is given; the check at the start needs it to be free
        compilation_config={"cudagraph_capture_sizes": case.batches},
    )

    def run(batch: int, context: int, tokens: int) -> float:
        prompts: Any = [
            {"prompt_token_ids": [random.randrange(1000, 30000) for _ in range(context)]} for _ in range(batch)
        ]
        params = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0.0, detokenize=False)
        started = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - started

    run(1, 32, 1)
    first_token = time.time() - spawned
    case.ready.write_text(str(first_token))
    wait_for(case.go)
    found: dict[str, Any] = {}
    for batch in case.batches:
        context = context_of(batch)
        run(batch, 8 if batch >= 128 else context, 8)  # at large batches prompts take most of the time
        pairs, prompts_only = [], []
        for _ in range(repeats if batch < 128 else 1):
            long = run(batch, context, STEPS + 1)
            prompts_only.append(run(batch, context, 1))
            pairs.append(long - prompts_only[-1])
        if batch == 16:
            prompts_only += [run(batch, context, 1) for _ in range(2)]
        milliseconds = min(pairs) / STEPS * 1e3
        found[str(batch)] = [milliseconds, batch / milliseconds * 1e3, min(prompts_only) * 1e3]
        print(f"PEER {case.name} b{batch}: {milliseconds:.3f} ms a step, {found[str(batch)]}", flush=True)
    found["about"] = {
        "engine": f"vLLM {__version__}", "model": case.model, "layers": case.layers, "precision": case.precision,
        "dtype": dtype, "in_process": in_process, "start_to_first_token_s": first_token, "repeats": repeats,
    }  # fmt: skip
    case.result.write_text(json.dumps(found, indent=1))
    sys.stdout.flush()
    os._exit(0)  # the parent ends what the engine has started


def start(case: Case, options: argparse.Namespace, in_process: bool) -> subprocess.Popen[bytes]:
    command = [sys.executable, __file__, case.text, "--child", "--work", str(options.work)]
    command += ["--repeats", str(options.repeats), "--spawned", str(time.time())]
    command += ["--in-process"] if in_process else []
    with case.log.open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a child and the engine process it may have left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def card_and_driver() -> tuple[str, str]:
    """As ``_common.Report`` writes them, without opening the device here."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        line = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown", "unknown"
    name, _, driver = line.rpartition(",")
    return name.strip(), driver.strip()


def tail(case: Case, lines: int = 25) -> str:
    return "\n".join(case.log.read_text(errors="replace").splitlines()[-lines:])


def start_all(cases: list[Case], options: argparse.Namespace, until: float) -> dict[Case, subprocess.Popen[bytes]]:
    """Start every engine; returns those that are ready at ``until``, tried again in-process if they failed."""
    running = {case: start(case, options, options.in_process) for case in cases}
    retried: set[Case] = set(cases) if options.in_process else set()
    while time.time() < until and not all(case.ready.exists() for case in running):
        time.sleep(0.2)
        for case, process in list(running.items()):
            if process.poll() is None or case.ready.exists():
                continue
            print(f"{case.text} did not start:\n{tail(case)}", flush=True)
            end(process)
            del running[case]
            if case not in retried:
                retried.add(case)
                case.log.unlink()
                running[case] = start(case, options, in_process=True)
    for case, process in list(running.items()):
        if not case.ready.exists():
            print(f"{case.text} was not ready in time:\n{tail(case)}", flush=True)
            end(process)
            del running[case]
        else:
            print(f"{case.text} ready after {float(case.ready.read_text()):.1f} s", flush=True)
    return running


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="+", metavar="preset:precision:batches")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--repeats", type=int, default=2, help="pairs of runs a batch (one from batch 128 up)")
    parser.add_argument("--seconds", type=float, default=560.0, help="give up what is not done by then")
    parser.add_argument("--start-seconds", type=float, default=330.0, help="leave out what has not started by then")
    parser.add_argument("--in-process", action="store_true", help="the engine inside the calling process")
    for hidden, kind in (("--work", Path), ("--spawned", float)):
        parser.add_argument(hidden, type=kind, help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    random.seed(0)
    if options.child:
        measure(Case(options.cases[0], options.work), options.spawned, options.repeats, options.in_process)
        return
    begun = time.time()
    options.work = Path(tempfile.mkdtemp(prefix="peer-vllm-"))
    options.out.mkdir(parents=True, exist_ok=True)
    running = start_all([Case(text, options.work) for text in options.cases], options, begun + options.start_seconds)
    beside, (card, driver) = len(options.cases) - 1, card_and_driver()
    for case, process in running.items():  # one after another: the rest wait without touching the device
        case.go.touch()
        try:
            process.wait(timeout=max(1.0, begun + options.seconds - time.time()))
        except subprocess.TimeoutExpired:
            print(f"{case.text} was not measured in time", flush=True)
        if case.result.exists():
            found = json.loads(case.result.read_text())
            found["about"] |= {"started_beside": beside, "card": card, "driver": driver}
            found["about"]["date"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            (options.out / f"peer_vllm_{case.name}.json").write_text(json.dumps(found, indent=1) + "\n")
        print("\n".join(line for line in tail(case, 200).splitlines() if line.startswith("PEER")), flush=True)
        if not case.result.exists():
            print(tail(case), flush=True)
        end(process)


if __name__ == "__main__":
    main()
