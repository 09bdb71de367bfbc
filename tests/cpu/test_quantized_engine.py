"""INT4 weights and an 8-bit KV cache through the engine: chunks, blocks and batching add no error of their own.

Tokens are not compared: a sum in another order flips a rounding step of K or V here and there, and thirty layers
carry that on, up to about half the quantisation noise itself. With an exact cache the same paths agree to 1e-4.
"""

from __future__ import annotations

import torch

from sits import LLM
from sits.engine.sampling_params import SamplingParams
from sits.models.teacher_forcing import teacher_forced_logits

PROMPTS = [
    "The capital of France is",
    "Licensed under the Apache License, Version 2.0 (the License); you may not use",
    "One, two, three, four,",
]


def test_engine_chooses_what_one_uninterrupted_pass_would():
    kv_dtype = "int8"
    options = {"quantization": "int4-g32", "kv_dtype": kv_dtype, "dtype": "float32", "device": "cpu"}
    with LLM("smollm2-135m", **options, max_step_tokens=8, max_running=4, kv_blocks=40, max_model_len=256) as llm:
        assert llm.card["linear_precisions"]["int4-g32-float"] == 120
        results = llm.generate(PROMPTS, SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True))
        for prompt, result in zip(PROMPTS, results):
            ids = llm.encode(prompt)
            produced = list(result.outputs[0].token_ids)
            text = [*ids, *produced[:-1]]
            exact, logits = (
                teacher_forced_logits(llm.model, text, kind)[len(ids) - 1 :] for kind in ("auto", kv_dtype)
            )
            noise = float((logits - exact).std())
            assert 0.01 < noise < 1.5  # of logits that spread over 40
            chosen = logits.gather(1, torch.tensor(produced).unsqueeze(1)).squeeze(1)
            assert bool((logits.max(-1).values - chosen < 4 * noise).all())
    assert "Paris" in results[0].outputs[0].text
