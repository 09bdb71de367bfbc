"""One step ahead of the device, on the real model: the same tokens as in turns, whatever ends or fails."""

from __future__ import annotations

import asyncio
import copy
import dataclasses

import pytest
import torch

from sits.engine.sampling_params import SamplingParams
from sits.errors import SitsError

PROMPTS = ["The capital of France is", "1, 2, 3, 4, 5, 6,", "Once upon a time there was", "word " * 40, "Hello"]


def answers(llm, prompts, params):
    return [
        [(one.token_ids, one.text, one.finish_reason, one.logprobs) for one in output.outputs]
        for output in llm.generate(prompts, params)
    ]


@pytest.fixture(scope="module")
def loaded(loaded):
    """The first layers of the real model: what is tested is the loop, which takes as many steps with fewer layers."""
    model = copy.copy(loaded.model)
    model.layers = model.layers[:5]
    model.config = dataclasses.replace(model.config, layers=5)
    return dataclasses.replace(loaded, model=model)


@pytest.fixture
def both(make_llm):
    """Engines in turns and one ahead, with the same options."""

    def make(**settings):
        return make_llm(overlap=False, **settings), make_llm(overlap=True, **settings)

    return make


KINDS = {
    "greedy": [SamplingParams(max_tokens=count) for count in (1, 2, 9, 16, 30)],
    "sampled": [SamplingParams(max_tokens=12, temperature=0.9, top_p=0.95, seed=seed, n=2) for seed in range(5)],
    "penalties beside greedy": [
        SamplingParams(max_tokens=14, frequency_penalty=1.0, repetition_penalty=1.3),
        *[SamplingParams(max_tokens=10)] * 3,
        SamplingParams(max_tokens=14, presence_penalty=1.5, temperature=0.8, top_k=20, seed=3),
    ],
    "logprobs": [SamplingParams(max_tokens=8, logprobs=count, temperature=0.5 * count, seed=1) for count in range(5)],
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_tokens_are_those_of_single_steps(both, kind):
    in_turns, ahead = both(kv_blocks=96, max_step_tokens=40, max_running=8)
    assert answers(in_turns, PROMPTS, KINDS[kind]) == answers(ahead, PROMPTS, KINDS[kind])
    assert in_turns.gauges()["output_tokens"] == ahead.gauges()["output_tokens"]


def test_stop_strings_and_tokens_end_in_flight(both):
    in_turns, ahead = both(kv_blocks=96)
    free = answers(in_turns, PROMPTS, SamplingParams(max_tokens=20, ignore_eos=True))
    params = [
        SamplingParams(max_tokens=20, ignore_eos=True, stop=[free[0][0][1][9:13], "zzz"]),
        SamplingParams(max_tokens=20, ignore_eos=True, stop=[free[1][0][1][3:5]], min_tokens=5),
        SamplingParams(max_tokens=20, ignore_eos=True, stop_token_ids=free[2][0][0][6:8]),
        SamplingParams(max_tokens=20, ignore_eos=True, stop_token_ids=free[3][0][0][1:2], min_tokens=6),
        SamplingParams(max_tokens=20, ignore_eos=True),
    ]
    expected = answers(in_turns, PROMPTS, params)
    assert answers(ahead, PROMPTS, params) == expected
    assert [answer[0][2] for answer in expected].count("stop") >= 2


def test_a_full_cache_preempts_and_loses_nothing(both):
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    in_turns, ahead = both(kv_blocks=9, watermark=0.0, max_running=8)
    assert answers(in_turns, PROMPTS, params) == answers(ahead, PROMPTS, params)
    assert ahead.gauges()["preemptions"] > 0


def test_the_prefix_index_never_holds_a_dropped_row(both):
    """End-of-text in the middle of a block, then the same prompts and their continuations again."""
    in_turns, ahead = both(kv_blocks=64)
    params = SamplingParams(max_tokens=30, stop_token_ids=list(range(20, 60)))
    for _ in range(2):
        expected, got = (answers(llm, PROMPTS, params) for llm in (in_turns, ahead))
        assert expected == got
    longer = [text + answer[0][1] for text, answer in zip(PROMPTS, expected)]
    assert answers(in_turns, longer, params) == answers(ahead, longer, params)
    ahead.worker.settle()
    assert ahead.gauges()["prefix_hit_tokens"] >= 32


def test_leaving_a_stream_in_flight_spares_the_others(make_llm):
    llm = make_llm(kv_blocks=64, overlap=True)
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    expected = answers(llm, PROMPTS[:2], params)

    async def leave(index: int) -> None:
        stream = llm.stream(PROMPTS[2], SamplingParams(max_tokens=400, ignore_eos=True))
        async for _ in stream:
            if index == 0:
                break
            index -= 1
        await stream.aclose()

    async def run() -> list:
        whole = asyncio.to_thread(answers, llm, PROMPTS[:2], params)
        return (await asyncio.gather(whole, *(leave(index) for index in range(4))))[0]

    assert [row[0][0] for row in asyncio.run(run())] == [row[0][0] for row in expected]
    llm.worker.settle()
    assert llm.gauges()["finished_cancelled"] == 4
    assert llm.gauges()["kv_blocks_used"] == 0


def test_bad_logits_end_their_request_and_its_row_in_flight_harms_nobody(make_llm, loaded, monkeypatch):
    llm = make_llm(kv_blocks=64, overlap=True, prefix_caching=False)
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    expected = answers(llm, PROMPTS[:2], params)
    forward = loaded.model.forward

    def broken(token_ids, batch, kv_cache, logits_rows):
        logits = forward(token_ids, batch, kv_cache, logits_rows)
        logits[batch.context_lens[: len(logits)] == 30] = torch.nan  # the third request, in the middle of its answer
        return logits

    monkeypatch.setattr(loaded.model, "forward", broken)
    bad = llm.make_requests([7] * 26, SamplingParams(max_tokens=50, ignore_eos=True))[0]
    llm.worker.submit(bad)
    assert answers(llm, PROMPTS[:2], params) == expected
    llm.worker.settle()
    assert bad.finish_reason == "error"
    assert "not finite" in (bad.error or "")
    assert bad.output_tokens == 4
    assert llm.gauges()["kv_blocks_used"] == 0
    assert answers(llm, PROMPTS[:2], params) == expected


def test_a_step_that_raises_fails_its_requests_and_the_engine_goes_on(make_llm, loaded, monkeypatch):
    llm = make_llm(kv_blocks=64, overlap=True)
    forward, calls = loaded.model.forward, []

    def broken(*arguments):
        calls.append(1)
        if len(calls) == 4:
            raise torch.OutOfMemoryError("tried to allocate 5 TiB")
        return forward(*arguments)

    monkeypatch.setattr(loaded.model, "forward", broken)
    with pytest.raises(SitsError, match="out of memory in a step of 1 tokens"):
        llm.generate([[1, 2, 3]], SamplingParams(max_tokens=20, ignore_eos=True))
    assert len(llm.generate([[1, 2, 3]], SamplingParams(max_tokens=5, ignore_eos=True))[0].outputs[0].token_ids) == 5


def test_work_between_steps_does_not_disturb_the_step_in_flight(make_llm):
    llm = make_llm(kv_blocks=64, overlap=True, max_running=4, max_step_tokens=16)
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    expected = answers(llm, PROMPTS[:1], params)

    async def run() -> list:
        whole = asyncio.create_task(asyncio.to_thread(answers, llm, PROMPTS[:1], params))
        for _ in range(3):
            await asyncio.to_thread(llm.warm_up)  # runs steps of its own
        return await whole

    assert asyncio.run(run()) == expected
