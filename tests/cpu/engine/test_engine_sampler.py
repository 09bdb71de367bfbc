"""The sampler against plain references: exact masks, right frequencies, penalties by definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.engine.filters import keep_threshold
from sits.engine.request import Request
from sits.engine.sampler import Sampler
from sits.engine.sampling_params import SamplingParams

VOCAB = 400


def kept_by_definition(logits: np.ndarray, top_k: int, top_p: float, min_p: float) -> set[int]:
    order = sorted(range(len(logits)), key=lambda token: -logits[token])
    if top_k:
        last = logits[order[min(top_k, len(order)) - 1]]
        order = [token for token in order if logits[token] >= last]
    weights = np.exp(logits[order].astype(np.float64) - logits.max())
    probabilities = weights / weights.sum()
    kept, mass = [], 0.0
    for token, probability in zip(order, probabilities):
        if mass >= top_p and logits[token] < logits[kept[-1]]:
            break
        kept.append(token)
        mass += probability
    floor = logits.max() + (np.log(min_p) if min_p else -np.inf)
    return {token for token in kept if logits[token] >= floor}


@settings(max_examples=120, deadline=None)
@given(
    st.integers(0, 2**31),
    st.lists(
        st.tuples(
            st.sampled_from([0, 1, 2, 7, 50, 399, 400, 9999]),
            st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.1, 1e-6]),
            st.sampled_from([0.0, 0.01, 0.3, 1.0]),
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([0.3, 3.0]),
)
def test_masks_are_those_of_the_definition(seed, rows, spread):
    logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(seed)) * spread
    top_k, top_p, min_p = (torch.tensor(column) for column in zip(*rows))
    bounded = all(k > 0 or p >= 1 for k, p, _ in rows)
    largest = max(1, *(k for k, _, _ in rows)) if bounded else 0
    threshold = keep_threshold(logits, top_k, top_p.float(), min_p.float(), min(largest, VOCAB))
    for row, (k, p, m) in enumerate(rows):
        kept = set((logits[row] >= threshold[row]).nonzero().flatten().tolist())
        expected = kept_by_definition(logits[row].numpy(), k, p, m)
        # float32 sums may decide the last token of top-p differently, never more.
        assert kept == expected or (p < 1 and len(kept ^ expected) == 1), (k, p, m)


def test_ties_at_the_edge_are_all_kept():
    logits = torch.tensor([[3.0, 2.0, 2.0, 2.0, 1.0]])
    off = torch.tensor([1.0]), torch.tensor([0.0])
    assert int((logits >= keep_threshold(logits, torch.tensor([2]), *off, 2)).sum()) == 4


def test_a_flat_distribution_needs_more_than_the_head():
    logits = torch.zeros(1, 5000) + torch.linspace(0, 1e-3, 5000)
    threshold = keep_threshold(logits, torch.tensor([0]), torch.tensor([0.5]), torch.tensor([0.0]), 0)
    assert int((logits >= threshold).sum()) == pytest.approx(2500, abs=5)


def make_requests(count: int, params: SamplingParams, seed: int = 0) -> list[Request]:
    requests = []
    for index in range(count):
        request = Request(f"r{index}", [1, 2, 3], params)
        request.seed, request.row = seed + index, index
        requests.append(request)
    return requests


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.6, top_k=5),
        SamplingParams(temperature=1.5, top_p=0.8),
        SamplingParams(temperature=1.0, min_p=0.2),
    ],
)
def test_frequencies_are_the_probabilities(params):
    logits = torch.randn(12, generator=torch.Generator().manual_seed(1)) * 1.5
    count = 8000
    sampler = Sampler(12, count, torch.device("cpu"))
    tokens = sampler.sample(logits.repeat(count, 1), make_requests(count, params)).tokens
    scaled = logits / params.temperature
    kept = kept_by_definition(scaled.numpy(), params.top_k, params.top_p, params.min_p)
    mask = torch.tensor([token not in kept for token in range(12)])
    probabilities = scaled.masked_fill(mask, -torch.inf).softmax(-1).double()
    observed = torch.bincount(tokens, minlength=12).double()
    assert observed[mask].sum() == 0
    expected = probabilities[~mask] * count
    chi_square = float(((observed[~mask] - expected) ** 2 / expected).sum())
    # p = 0.0001 for each number of degrees of freedom that occurs here
    limits = {3: 21.1, 4: 23.5, 5: 25.7, 6: 27.9, 7: 29.9, 8: 31.8, 9: 33.7, 10: 35.6, 11: 37.4, 2: 18.4, 1: 15.1}
    assert chi_square < limits[len(kept) - 1]


def test_rows_of_one_batch_keep_their_own_parameters():
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(3))
    logits[3, 7] = torch.nan
    requests = [
        *make_requests(1, SamplingParams()),
        *make_requests(1, SamplingParams(temperature=5.0, top_k=1)),
        *make_requests(1, SamplingParams(temperature=1.0), seed=9),
        *make_requests(1, SamplingParams(temperature=1.0), seed=10),
    ]
    tokens = Sampler(VOCAB, 4, torch.device("cpu")).sample(logits.clone(), requests).fetch().tokens
    assert tokens[0] == int(logits[0].argmax())
    assert tokens[1] == int(logits[1].argmax())
    assert tokens[3] == -1
    alone = Sampler(VOCAB, 4, torch.device("cpu")).sample(logits[2:3].clone(), requests[2:3]).fetch().tokens
    assert tokens[2] == alone[0]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_greedy_rows_that_are_not_finite_get_minus_one(value):
    logits = torch.zeros(2, 8)
    logits[1] = value
    assert (
        Sampler(8, 2, torch.device("cpu")).sample(logits, make_requests(2, SamplingParams())).fetch().tokens[1] == -1
    )


def test_tokens_a_graph_has_chosen_are_taken_only_where_nothing_else_is_asked():
    logits = torch.arange(8.0).expand(2, 8).clone()
    sampler, chosen = Sampler(8, 2, torch.device("cpu")), torch.tensor([3, 4])
    plain = make_requests(2, SamplingParams())
    assert sampler.sample(logits, plain, greedy=chosen).tokens is chosen
    assert sampler.sample(logits, plain).tokens.tolist() == [7, 7]
    mixed = [plain[0], *make_requests(1, SamplingParams(logprobs=1))]
    assert sampler.sample(logits, mixed, greedy=chosen).tokens.tolist() == [7, 7]


def test_penalties_follow_their_definition_step_by_step():
    params = SamplingParams(repetition_penalty=1.5, presence_penalty=0.7, frequency_penalty=0.4)
    generator = torch.Generator().manual_seed(5)
    sampler = Sampler(20, 3, torch.device("cpu"))
    requests = make_requests(3, params)
    for step in range(12):
        if step == 6:  # a preempted request comes back in another's row
            requests[0].row, requests[2].row = requests[2].row, requests[0].row
        logits = torch.randn(3, 20, generator=generator)
        expected = []
        for row, request in zip(logits, requests):
            wanted = row.clone()
            for token in range(20):
                count = request.output_ids.count(token)
                if token in request.token_ids:
                    wanted[token] = wanted[token] / 1.5 if wanted[token] > 0 else wanted[token] * 1.5
                wanted[token] -= 0.7 * (count > 0) + 0.4 * count
            expected.append(int(wanted.argmax()))
        tokens = sampler.sample(logits, requests).fetch().tokens
        assert tokens == expected
        for request, token in zip(requests, tokens):
            request.token_ids.append(token)
