"""The engine on a GPU: captured graphs against single launches, padding, pressure, sampling on the device."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

MODEL = "synthetic:llama-3-8b?layers=2"


@pytest.fixture(scope="module")
def loaded():
    from sits.models.loading import load_model

    return load_model(MODEL, dtype="bfloat16", device="cuda")


@pytest.fixture
def make_llm(loaded):
    from sits.engine.llm import LLM

    engines = []

    def make(**settings):
        options = {"max_model_len": 1024, "max_running": 8, "kv_blocks": 400, "prefix_caching": False, **settings}
        engines.append(LLM.from_model(loaded.model, loaded.tokenizer, **options))
        return engines[-1]

    yield make
    for llm in engines:
        llm.close()
        llm.core.scheduler.check_integrity()
        assert llm.core.scheduler.pool.used == 0


def prompts(count):
    return [[(row * 7919 + i * 104729) % 100_000 for i in range(20 + 37 * row)] for row in range(count)]


def agree(expected, outputs, least):
    """Log-probabilities are equal within bf16 until the tokens part (random weights have near ties: a plan that cuts
    the context elsewhere may decide one of them otherwise); at least ``least`` tokens must be compared."""
    compared = 0
    for one, other in zip(expected, outputs):
        for mine, theirs in zip(one.outputs[0].logprobs, other.outputs[0].logprobs):
            if mine.token_id != theirs.token_id:
                break
            assert mine.logprob == pytest.approx(theirs.logprob, abs=0.1)
            compared += 1
    assert compared >= least


@pytest.mark.parametrize("rows", [1, 4, 8])
def test_graphs_choose_the_tokens_of_single_launches(make_llm, rows):
    from sits import SamplingParams

    params = SamplingParams(max_tokens=24, ignore_eos=True, logprobs=1)
    eager, captured = make_llm(cuda_graphs=False), make_llm()
    assert captured.core.runner.no_graphs_because is None, captured.notes
    expected = eager.generate(prompts(rows), params)
    for _ in range(2):  # the first run captures, the second replays what is there
        agree(expected, captured.generate(prompts(rows), params), 16 * rows)


@pytest.mark.parametrize("rows", [3, 5, 7])
def test_padding_rows_change_nothing(make_llm, rows):
    """Another batch shape rounds differently, so log-probabilities are compared until the tokens part."""
    from sits import SamplingParams

    params = SamplingParams(max_tokens=16, ignore_eos=True, logprobs=1)
    eager, captured = make_llm(cuda_graphs=False), make_llm(max_running=16)
    agree(eager.generate(prompts(rows), params), captured.generate(prompts(rows), params), 4 * rows)


def test_pressure_on_the_gpu_loses_nothing(make_llm):
    from sits import SamplingParams

    llm = make_llm(kv_blocks=70, watermark=0.0)  # two of the longest requests fill it
    outputs = llm.generate(prompts(8) * 3, SamplingParams(max_tokens=40, ignore_eos=True))
    assert all(len(output.outputs[0].token_ids) == 40 for output in outputs)
    assert llm.gauges()["preemptions"] > 0


def test_sampling_on_the_gpu_is_that_of_the_cpu():
    from sits.engine.request import Request
    from sits.engine.sampler import Sampler
    from sits.engine.sampling_params import SamplingParams

    kinds = [
        SamplingParams(),
        SamplingParams(temperature=0.8),
        SamplingParams(temperature=1.2, top_k=20),
        SamplingParams(temperature=1.0, top_p=0.9),
        SamplingParams(temperature=1.0, min_p=0.05, repetition_penalty=1.3, frequency_penalty=0.5),
    ]
    logits = torch.randn(len(kinds) * 20, 5000, generator=torch.Generator().manual_seed(0)) * 2
    logits[3, 11] = torch.nan
    chosen = []
    for device in ("cpu", "cuda"):
        requests = []
        for row in range(len(logits)):
            request = Request(f"r{row}", [1, 2, 3, row], kinds[row % len(kinds)])
            request.seed, request.row = row, row
            requests.append(request)
        sampler = Sampler(5000, len(logits), torch.device(device))
        chosen.append(sampler.sample(logits.clone().to(device), requests).fetch().tokens)
    assert chosen[0][3] == chosen[1][3] == -1
    assert sum(a != b for a, b in zip(*chosen)) <= 2  # a number at the edge of two tokens may fall to either


def test_the_cache_is_sized_from_free_memory(make_llm):
    llm = make_llm(kv_blocks=None, max_running=64, memory_share=0.9)
    assert llm.core.scheduler.pool.capacity >= 64  # at least one whole context of 1024 tokens
    free, total = torch.cuda.mem_get_info()
    assert free > 0.05 * total
