"""Prefill of 8192 tokens (16 prompts of 512) to the first token of each, through the public engine."""

from __future__ import annotations

import json
import random

from _common import Report
from decode_step import add_options, case_name, open_engine, run


def main():
    report = Report("prefill", __doc__ or "", add_options)
    options = report.options
    random.seed(0)
    peers = json.loads(options.peer.read_text()) if options.peer else {}
    llm = open_engine(options, 16, 1024)
    name = case_name(options)
    report.name = f"prefill_{name}_{options.precision}".replace("-", "_")
    for _ in range(2):
        run(llm, 16, 512, 1)
    seconds = min(run(llm, 16, 512, 1) for _ in range(3))
    peer = peers.get("16")
    how = "-fp8-prompts" if options.int4_prefill == "fp8" else ""
    if options.step_tokens != 8192:
        how += f"-by-{options.step_tokens}"
    report.name += how.replace("-", "_")
    report.row(
        f"{name}/{options.precision}{how}/prefill8192", "s", seconds, peer[2] / 1e3 if peer else None,
        "vLLM 0.24" if peer else None, tokens_per_s=8192 / seconds,
    )  # fmt: skip
    llm.close()
    report.save()


if __name__ == "__main__":
    main()
