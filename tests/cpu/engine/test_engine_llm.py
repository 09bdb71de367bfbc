"""The Python API on the real model: streaming, cancelling, stopping, seeds, n, and what goes wrong."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

import pytest
import torch

from sits.engine.sampling_params import SamplingParams
from sits.errors import InputError, SitsError
from sits.garbage import FrozenHeap


def test_streamed_pieces_are_the_generated_text(make_llm):
    llm = make_llm(kv_blocks=64)
    params = SamplingParams(max_tokens=14, n=2, temperature=0.9, seed=4)
    whole = llm.generate("The weather in Reykjavík is", params)[0]

    async def read() -> tuple[list[str], list[list[int]], list[str | None]]:
        texts, ids, reasons = ["", ""], [[], []], [None, None]
        async for chunk in llm.stream("The weather in Reykjavík is", params):
            texts[chunk.index] += chunk.text
            ids[chunk.index] += chunk.token_ids
            reasons[chunk.index] = chunk.finish_reason
        return texts, ids, reasons

    texts, ids, reasons = asyncio.run(read())
    assert texts == [output.text for output in whole.outputs]
    assert ids == [output.token_ids for output in whole.outputs]
    assert reasons == ["length", "length"]
    assert texts[0] != texts[1]


def test_leaving_a_stream_cancels_it(make_llm):
    llm = make_llm(kv_blocks=64)

    async def read_three() -> None:
        stream = llm.stream("Tell me a very long story.", SamplingParams(max_tokens=400, ignore_eos=True))
        count = 0
        async for _ in stream:
            count += 1
            if count == 3:
                break
        await stream.aclose()

    asyncio.run(read_three())
    deadline = time.monotonic() + 20
    while llm.gauges()["running"] and time.monotonic() < deadline:
        time.sleep(0.02)
    gauges = llm.gauges()
    assert gauges["finished_cancelled"] == 1
    assert gauges["kv_blocks_used"] == 0
    assert gauges["output_tokens"] < 100


def test_closing_a_cpu_engine_thaws_nobody_elses_heap(make_llm):
    heap = FrozenHeap()
    llm = make_llm(kv_blocks=64)
    frozen = gc.get_freeze_count()
    llm.close()
    llm.close()
    assert gc.get_freeze_count() == frozen > 0
    heap.release()
    assert gc.get_freeze_count() == 0


def test_closing_answers_those_who_still_wait(make_llm):
    llm = make_llm(kv_blocks=64)
    caught: list[Exception] = []

    def ask() -> None:
        try:
            llm.generate("Hello", SamplingParams(max_tokens=400, ignore_eos=True))
        except SitsError as error:
            caught.append(error)

    asker = threading.Thread(target=ask)
    asker.start()
    while not llm.gauges()["output_tokens"]:
        time.sleep(0.01)
    llm.close()
    asker.join(20)
    assert not asker.is_alive()
    assert "closed" in str(caught[0])
    with pytest.raises(SitsError, match="closed"):
        llm.generate("Hello")


def test_stop_strings_and_stop_tokens(make_llm):
    llm = make_llm(kv_blocks=64)
    free = llm.generate("1, 2, 3, 4, 5, 6,", SamplingParams(max_tokens=16))[0].outputs[0]
    assert " 9, 1" in free.text
    cut = llm.generate("1, 2, 3, 4, 5, 6,", SamplingParams(max_tokens=16, stop=["zzz", "9, 1"]))[0].outputs[0]
    assert cut.text == free.text[: free.text.index("9, 1")]
    assert cut.finish_reason == "stop"
    token = free.token_ids[4]
    ended = llm.generate("1, 2, 3, 4, 5, 6,", SamplingParams(max_tokens=16, stop_token_ids=[token]))[0].outputs[0]
    assert ended.token_ids == free.token_ids[: free.token_ids.index(token) + 1]
    longer = llm.generate("1, 2, 3, 4, 5, 6,", SamplingParams(max_tokens=12, min_tokens=10, stop_token_ids=[token]))[
        0
    ].outputs[0]
    assert token not in longer.token_ids[:10]  # forbidden, not merely ignored
    assert len(longer.token_ids) >= 10


def test_a_seed_chooses_the_same_tokens_alone_and_in_company(make_llm):
    llm = make_llm(kv_blocks=128, prefix_caching=False)
    seeded = SamplingParams(max_tokens=10, temperature=1.0, top_p=0.95, seed=11)
    others = SamplingParams(max_tokens=6, temperature=1.3, top_k=40, repetition_penalty=1.2)
    alone = llm.generate("My favourite colour is", seeded)[0].outputs[0].token_ids
    crowd = llm.generate(["Hello there", "My favourite colour is", "In 1969"], [others, seeded, others])
    assert crowd[1].outputs[0].token_ids == alone
    again = llm.generate(["Hello there"] * 2, others)
    assert again[0].outputs[0].token_ids != again[1].outputs[0].token_ids  # no seed: each its own


def test_logprobs_are_of_the_model_and_ordered(make_llm, reference_logits):
    llm = make_llm(kv_blocks=32)
    params = SamplingParams(max_tokens=5, temperature=0.7, seed=1, logprobs=3, repetition_penalty=1.3)
    output = llm.generate("The sun is", params)[0]
    answer = output.outputs[0]
    expected = reference_logits(output.prompt_ids + answer.token_ids)[len(output.prompt_ids) - 1 : -1].log_softmax(-1)
    for row, token, entry in zip(expected, answer.token_ids, answer.logprobs):
        assert entry.token_id == token
        assert entry.logprob == pytest.approx(float(row[token]), abs=1e-3)
        top = row.topk(3)
        assert [token for token, _ in entry.top] == top.indices.tolist()
        assert [value for _, value in entry.top] == pytest.approx(top.values.tolist(), abs=1e-3)


def test_n_completions_share_the_prompt(make_llm):
    llm = make_llm(kv_blocks=64)
    output = llm.generate("word " * 60, SamplingParams(max_tokens=4, n=3, temperature=1.0, seed=2))[0]
    assert len(output.outputs) == 3
    assert llm.gauges()["prefix_hit_tokens"] >= 2 * 48


def test_penalties_avoid_repetition(make_llm):
    llm = make_llm(kv_blocks=64)
    prompt = "one one one one one one one one"
    plain = llm.generate(prompt, SamplingParams(max_tokens=12, ignore_eos=True))[0].outputs[0].token_ids
    params = SamplingParams(max_tokens=12, ignore_eos=True, frequency_penalty=2.0, presence_penalty=2.0)
    varied = llm.generate(prompt, params)[0].outputs[0].token_ids
    assert len(set(varied)) > len(set(plain))


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "prompt is empty"),
        ([], "prompt is empty"),
        ([5, -1], "token 1 of the prompt is -1"),
        ([49152], "not an id from 0 to 49151"),
        ([1] * 600, "600 tokens, but the context holds 512"),
    ],
)
def test_bad_prompts_are_input_errors(make_llm, prompt, message):
    with pytest.raises(InputError, match=message):
        make_llm(kv_blocks=64).generate([prompt] if prompt == [] else prompt)


def test_bad_options_are_input_errors(make_llm):
    with pytest.raises(InputError, match="Did you mean kv_blocks"):
        make_llm(kv_block=3)
    with pytest.raises(InputError, match="context of 8192"):
        make_llm(max_model_len=10**6)
    with pytest.raises(InputError, match="there is room for"):
        make_llm(kv_blocks=10**9)
    with pytest.raises(InputError, match="at least 1"):
        make_llm(kv_blocks=0)
    with pytest.raises(InputError, match="unknown KV cache dtype"):
        make_llm(kv_dtype="int3")


def test_a_small_cache_limits_the_context_and_says_so(make_llm):
    llm = make_llm(kv_blocks=4)
    assert any("context limited to 64 of 512" in note for note in llm.notes)
    with pytest.raises(InputError, match="context holds 64"):
        llm.generate([[1] * 64])


def test_logits_that_are_not_finite_name_the_request_and_spare_the_others(make_llm, loaded, monkeypatch):
    llm = make_llm(kv_blocks=64)
    good = llm.generate("The capital of France is", SamplingParams(max_tokens=8))[0].text
    forward = loaded.model.forward

    def broken(token_ids, batch, kv_cache, logits_rows):
        logits = forward(token_ids, batch, kv_cache, logits_rows)
        if 777 in token_ids.tolist():
            logits[-1] = torch.nan
        return logits

    monkeypatch.setattr(loaded.model, "forward", broken)
    with pytest.raises(SitsError, match=r"request-\d+ failed: .*not finite"):
        llm.generate([[777, 5, 6]])
    assert llm.generate("The capital of France is", SamplingParams(max_tokens=8))[0].text == good


def test_a_step_that_raises_fails_its_requests_and_the_engine_goes_on(make_llm, loaded, monkeypatch):
    llm = make_llm(kv_blocks=64)

    def broken(*_):
        raise torch.OutOfMemoryError("tried to allocate 5 TiB")

    monkeypatch.setattr(loaded.model, "forward", broken)
    with pytest.raises(SitsError, match="out of memory in a step of 3 tokens"):
        llm.generate([[1, 2, 3]])
    monkeypatch.undo()
    assert llm.generate([[1, 2, 3]], SamplingParams(max_tokens=2))[0].outputs[0].finish_reason == "length"


def test_text_loss_is_that_of_transformers(make_llm, loaded, reference_logits):
    text = "The quick brown fox jumps over the lazy dog."
    ids = loaded.tokenizer.encode(text)
    expected = torch.nn.functional.cross_entropy(reference_logits(ids)[:-1], torch.tensor(ids[1:]))
    assert make_llm(kv_blocks=16).text_loss(text) == pytest.approx(float(expected), abs=1e-4)
