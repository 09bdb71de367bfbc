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
        llm.worker.settle()
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


@pytest.mark.parametrize("kind", [{}, {"temperature": 0.8, "seed": 5}, {"frequency_penalty": 0.5}])
@pytest.mark.parametrize("cuda_graphs", [True, False])
def test_one_step_ahead_chooses_the_tokens_of_steps_in_turns(make_llm, kind, cuda_graphs):
    from sits import SamplingParams

    params = [SamplingParams(max_tokens=12 + 4 * row, ignore_eos=True, logprobs=1, **kind) for row in range(4)]
    in_turns, ahead = (make_llm(overlap=overlap, cuda_graphs=cuda_graphs) for overlap in (False, True))
    expected = in_turns.generate(prompts(4), params)
    agree(expected, ahead.generate(prompts(4), params), 30)


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_greedy_tokens_of_captured_steps_go_from_step_to_step_on_the_device(make_llm, rows):
    from sits import SamplingParams

    plain, checked = (SamplingParams(max_tokens=24, ignore_eos=True, logprobs=n) for n in (None, 1))
    ahead = make_llm(overlap=True)
    expected = make_llm(overlap=False).generate(prompts(rows), checked)
    compared = 0
    for _ in range(2):
        for one, other in zip(expected, ahead.generate(prompts(rows), plain)):
            pairs = list(zip(one.outputs[0].token_ids, other.outputs[0].token_ids))
            compared += next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
    assert compared >= 2 * 14 * rows


def test_ends_that_only_the_device_knows_drop_one_row(make_llm):
    from sits import SamplingParams

    llm = make_llm(overlap=True)
    free = llm.generate(prompts(4), SamplingParams(max_tokens=20, ignore_eos=True))
    stops = [SamplingParams(max_tokens=20, stop_token_ids=[output.outputs[0].token_ids[9]]) for output in free]
    stopped = 0
    for output, params in zip(llm.generate(prompts(4), stops), stops):
        answer = output.outputs[0].token_ids
        assert not set(answer[:-1]) & set(params.stop_token_ids)
        assert (answer[-1] in params.stop_token_ids) == (output.outputs[0].finish_reason == "stop")
        stopped += output.outputs[0].finish_reason == "stop"
    assert stopped >= 2  # a near tie may take an answer elsewhere
    llm.worker.settle()
    assert llm.core.scheduler.pool.used == 0


@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"temperature": 0.9, "top_p": 0.9, "seed": 1},
        {"temperature": 0.9, "top_k": 20, "min_p": 0.05, "logprobs": 3, "min_tokens": 12, "stop_token_ids": [7]},
        {"presence_penalty": 1.0, "temperature": 0.5},
    ],
)
def test_handing_over_a_decode_step_never_waits_for_the_device(make_llm, kind):
    from sits import SamplingParams

    llm = make_llm(overlap=True)
    params = [SamplingParams(max_tokens=16, ignore_eos=True), SamplingParams(max_tokens=16, **kind)] * 2
    llm.generate(prompts(4), params)
    execute = llm.core.runner.execute

    def strict(batch):
        torch.cuda.set_sync_debug_mode("error" if batch.only_decodes else "default")
        try:
            return execute(batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    llm.core.runner.execute = strict
    assert len(llm.generate(prompts(4), params)) == 4


def test_bad_logits_end_one_request_with_graphs_and_a_step_ahead(make_llm, loaded):
    from sits import SamplingParams
    from sits.errors import SitsError

    llm = make_llm(overlap=True)
    good = llm.generate(prompts(2), SamplingParams(max_tokens=12, ignore_eos=True))
    row = 4242
    saved = loaded.model.embedding[row].clone()
    try:
        loaded.model.embedding[row] = torch.nan
        with pytest.raises(SitsError, match="not finite"):
            llm.generate([[5, 6, row, 7]], SamplingParams(max_tokens=12, ignore_eos=True))
    finally:
        loaded.model.embedding[row] = saved
    again = llm.generate(prompts(2), SamplingParams(max_tokens=12, ignore_eos=True))
    same = [a == b for x, y in zip(good, again) for a, b in zip(x.outputs[0].token_ids, y.outputs[0].token_ids)]
    assert sum(same) >= 18


@pytest.mark.parametrize("overlap", [False, True])
def test_pressure_on_the_gpu_loses_nothing(make_llm, overlap):
    from sits import SamplingParams

    llm = make_llm(kv_blocks=70, watermark=0.0, overlap=overlap)  # two of the longest requests fill it
    outputs = llm.generate(prompts(8) * 3, SamplingParams(max_tokens=40, ignore_eos=True))
    assert all(len(output.outputs[0].token_ids) == 40 for output in outputs)
    assert llm.gauges()["preemptions"] > 0


@pytest.mark.parametrize("vocabulary", [5000, 128256])
def test_sampling_on_the_gpu_is_that_of_the_cpu(vocabulary):
    from sits.engine.request import Request
    from sits.engine.sampler import Sampler
    from sits.engine.sampling_params import SamplingParams

    kinds = [
        SamplingParams(),
        SamplingParams(temperature=0.8),
        SamplingParams(temperature=1.2, top_k=20),
        SamplingParams(temperature=1.0, top_p=0.9),
        SamplingParams(temperature=1.0, min_p=0.05, repetition_penalty=1.3, frequency_penalty=0.5),
        SamplingParams(temperature=0.7, top_p=0.95, top_k=200),
        SamplingParams(temperature=2.0, top_p=0.5),
        SamplingParams(temperature=1.0, top_k=1),
    ]
    logits = torch.randn(len(kinds) * 20, vocabulary, generator=torch.Generator().manual_seed(0)) * 2
    logits[3, 11] = torch.nan
    chosen = []
    for device in ("cpu", "cuda"):
        requests = []
        for row in range(len(logits)):
            request = Request(f"r{row}", [1, 2, 3, row], kinds[row % len(kinds)])
            request.seed, request.row = row, row
            requests.append(request)
        sampler = Sampler(vocabulary, len(logits), torch.device(device))
        chosen.append(sampler.sample(logits.clone().to(device), requests).fetch().tokens)
    assert chosen[0][3] == chosen[1][3] == -1
    assert sum(a != b for a, b in zip(*chosen)) <= 4  # of 160: a number at the edge of two tokens may fall to either


def test_the_cache_is_sized_from_free_memory(make_llm):
    llm = make_llm(kv_blocks=None, max_running=64, memory_share=0.9)
    assert llm.core.scheduler.pool.capacity >= 64  # at least one whole context of 1024 tokens
    free, total = torch.cuda.mem_get_info()
    assert free > 0.05 * total


def test_activations_measured_on_an_excerpt_are_those_of_the_model():
    from sits.engine.runner import Runner, RunnerConfig
    from sits.models.excerpt import excerpt
    from sits.models.loading import load_model

    model = load_model(
        "synthetic:llama-3-8b?layers=6", dtype="bfloat16", device="cuda", quantization="int4-g32"
    ).model
    config = RunnerConfig(
        block_size=16, max_running=32, max_step_tokens=2048, max_model_len=1024, kv_blocks=64, cuda_graphs=False
    )

    class Whole(Runner):
        def _measure_activations(self):
            self.kv_cache = self._allocate(1)
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            self.warm_up([self.config.max_running])
            torch.cuda.synchronize()
            peak, self.kv_cache = torch.cuda.max_memory_allocated() - before, []
            return peak

    Runner(model, config)  # scratch buffers that stay exist from here on
    part, whole = Runner(model, config)._measure_activations(), Whole(model, config)._measure_activations()
    assert whole <= part * 1.02
    assert part <= whole * 1.02
    assert excerpt(model, [0]).layers[0] is model.layers[0]


def test_a_loaded_engine_answers_as_one_without_rehearsal(monkeypatch):
    from sits.engine.llm import LLM
    from sits.engine.rehearsal import Rehearsal
    from sits.engine.sampling_params import SamplingParams

    answers = []
    for rehearsed in (True, False):
        if not rehearsed:
            monkeypatch.setattr(Rehearsal, "begin", lambda self, model: None)
        with LLM(MODEL, quantization="int4-g32", max_model_len=256, max_running=20, kv_blocks=64) as llm:
            outputs = llm.generate([[5, 6, 7], list(range(9, 49))], SamplingParams(max_tokens=8, ignore_eos=True))
            answers.append([output.outputs[0].token_ids for output in outputs])
    assert answers[0] == answers[1]
