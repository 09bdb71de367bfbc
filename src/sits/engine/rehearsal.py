"""Steps on the first layer of a model while the other layers still load.

All layers of a model run the same kernels, so what a step compiles, it compiles at its first layer. A GPU engine
would otherwise compile after loading: seconds in which the device does nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading

import torch

from sits.engine.options import EngineOptions, choose_int4_prefill, runner_config
from sits.engine.request import Request
from sits.engine.runner import Runner
from sits.engine.sampler import Sampler
from sits.engine.sampling_params import SamplingParams
from sits.engine.warm_up import decode_step, prefill_step
from sits.models.llama import LlamaModel

logger = logging.getLogger(__name__)

PARTS = ("prompts", "one row", "all rows", "random tokens")  # they share few kernels, and compiling takes one thread
_SHORT_PROMPT = 32


class Rehearsal:
    """``begin`` is the loader's ``on_first_layer``; ``end`` waits for what it started. Nothing depends on it."""

    def __init__(self, options: EngineOptions):
        self._options = options
        self._threads: list[threading.Thread] = []

    def begin(self, model: LlamaModel) -> None:
        """Start threads that run the steps an engine begins with on a model of one layer, one for each part."""
        choose_int4_prefill(
            model, self._options, 0
        )  # before there are threads: it changes which kernels they compile
        for part in PARTS:
            thread = threading.Thread(
                target=self._run, args=(model, part), name=f"sits-rehearsal-{part}", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def end(self) -> None:
        """Wait for the threads."""
        for thread in self._threads:
            thread.join()

    def _run(self, model: LlamaModel, part: str) -> None:
        device = torch.cuda.device(model.device) if model.device.type == "cuda" else contextlib.nullcontext()
        try:
            with device:
                rehearse(model, self._options, part)
        except Exception as error:  # whatever it is, the engine meets it again and reports it
            logger.debug("the rehearsal of %s failed: %s", part, error)


def rehearse(model: LlamaModel, options: EngineOptions, part: str) -> None:
    """Run the steps of one of ``PARTS``, or choose a token as a request with a temperature does."""
    sizes = runner_config(options, model.device.type, options.max_model_len or model.max_context)
    config = dataclasses.replace(sizes, cuda_graphs=False)  # a capture would fail over what the loader launches
    if part == "random tokens":
        request = Request("rehearsal", [0], SamplingParams(temperature=1.0, top_p=0.9))
        sampler = Sampler(model.config.vocab_size, 1, model.device)
        sampler.sample(torch.zeros(1, model.config.vocab_size, device=model.device), [request]).fetch()
        return
    if part == "prompts":
        counts = sorted({min(_SHORT_PROMPT, config.max_step_tokens, config.max_model_len), config.max_step_tokens})
        steps = [prefill_step(count, config.max_model_len, config.max_running, config.block_size) for count in counts]
    else:
        steps = [decode_step(1 if part == "one row" else config.max_running, 2, config.block_size)]
    runner = _OneBlockRunner(model, config)
    for step in steps:
        runner.execute(step).fetch()


class _OneBlockRunner(Runner):
    """With no cache but the scratch block: it measures nothing."""

    def _choose_blocks(self) -> int:
        return 0
