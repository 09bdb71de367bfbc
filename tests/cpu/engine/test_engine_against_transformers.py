"""Greedy tokens are those of transformers, however the engine batches, cuts, reuses and repeats the work.

transformers reads each prompt with our answer in one pass. If our token is its most likely one at every place, its
own greedy answer is the same, by induction over the places; that is far cheaper than generating with it.
"""

from __future__ import annotations

import pytest

from sits.engine.sampling_params import SamplingParams

STORY = (
    "A ferry crosses the strait eleven times a day. In the morning it carries bread, newspapers and the children of "
    "the eastern islands to school; at noon it waits for the tide; in the evening it brings everyone home again."
)
QUESTIONS = [
    "The capital of France is",
    "Once upon a time",
    "def fibonacci(n):",
    "1, 2, 3, 4, 5,",
    "The three most important things in life are",
    "Water boils at",
    "Dear Sir or Madam,",
    "In the year 2050, people will",
    "The recipe needs flour, sugar and",
    "She opened the door and saw",
]
# Lengths from 3 to about 75 tokens; the second ten share a prefix of several blocks.
PROMPTS = QUESTIONS + [f"{STORY} {question}" for question in QUESTIONS]
TOKENS = 64


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("all at once", {"max_running": 20, "max_step_tokens": 1024, "kv_blocks": 400}),
        # Prompts in chunks of at most 24 tokens, a third of the blocks that are wanted, and a shared prefix.
        (
            "chunked, preempted, prefix-hit",
            {"max_running": 16, "max_step_tokens": 40, "kv_blocks": 56, "block_size": 8, "watermark": 0.0},
        ),
    ],
)
def test_greedy_tokens_are_those_of_transformers(make_llm, reference_logits, name, settings):
    llm = make_llm(**settings)
    outputs = llm.generate(PROMPTS, SamplingParams(max_tokens=TOKENS, ignore_eos=True))
    gauges = llm.gauges()
    if name != "all at once":
        assert gauges["preemptions"] > 3
        assert gauges["prefix_hit_tokens"] > 100
    for output in outputs:
        answer = output.outputs[0].token_ids
        assert len(answer) == TOKENS
        logits = reference_logits(output.prompt_ids + answer)[len(output.prompt_ids) - 1 : -1]
        best = logits.amax(-1)
        ours = logits.gather(1, logits.new_tensor(answer).long().unsqueeze(1)).squeeze(1)
        # Equal, or a tie: within the rounding of float32 sums in another order.
        assert float((best - ours).max()) < 1e-4, output.prompt
        different = (logits.argmax(-1) != logits.new_tensor(answer).long()).sum()
        assert int(different) <= 1, output.prompt


def test_a_question_with_a_one_word_answer(make_llm):
    question = [{"role": "user", "content": "What is the capital of France? Answer with one word."}]
    assert "Paris" in make_llm(kv_blocks=32).chat(question, SamplingParams(max_tokens=12)).text
