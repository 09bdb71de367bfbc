"""Seconds from the start of a process to its first token, synthetic weights made on the device."""

from __future__ import annotations

import subprocess
import sys
import time

from _common import Report
from decode_step import add_options

PROGRAM = """
import sys
from sits import LLM, SamplingParams
llm = LLM(sys.argv[1], dtype=sys.argv[3], quantization=sys.argv[2] or None, max_model_len=1024)
llm.generate([list(range(5, 37))], SamplingParams(max_tokens=1, ignore_eos=True))
print("first token", flush=True)
sys.stdout.flush()
import os
os._exit(0)
"""


def main():
    report = Report("startup", __doc__ or "", add_options)
    options = report.options
    import torch

    torch.cuda.empty_cache()
    name = options.model.replace("llama-3", "llama3")
    report.name = f"startup_{name}_{options.precision}".replace("-", "_")
    dense = options.precision in ("bfloat16", "float16")
    dtype, quantization = (options.precision, "") if dense else (options.dtype, options.precision)
    for label in ("first", "again"):  # the second start finds compiled kernels on disk
        command = [sys.executable, "-c", PROGRAM, f"synthetic:{options.model}", quantization, dtype]
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - started
        process.wait()
        report.row(f"start/{name}/{options.precision}" + ("" if label == "again" else "/cold-cache"), "s",
                   seconds if "first token" in line else None)  # fmt: skip
    report.save()


if __name__ == "__main__":
    main()
