"""Sampling parameters, engine options, noise: small things that must be right."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.engine.noise import derive_seed, mix, uniform
from sits.engine.sampling_params import SamplingParams
from sits.errors import InputError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -3),
        ("max_tokens", 2.5),
        ("max_tokens", True),
        ("min_tokens", -1),
        ("min_tokens", 1000),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", "hot"),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 11),
        ("frequency_penalty", math.inf),
        ("seed", 1.5),
        ("stop", [""]),
        ("stop", [3]),
        ("stop_token_ids", [-1]),
        ("logprobs", 21),
        ("n", 0),
    ],
)
def test_every_bad_value_names_its_parameter(name, value):
    with pytest.raises(InputError, match=name):
        SamplingParams(**{name: value})


def test_convenient_forms():
    params = SamplingParams(stop="END", stop_token_ids=[1, 2], temperature=1)
    assert params.stop == ("END",)
    assert params.stop_token_ids == (1, 2)
    assert not params.greedy
    assert SamplingParams(stop=None).stop == ()
    assert SamplingParams(top_p=0.5).filtered is False  # greedy: nothing to filter
    assert SamplingParams(temperature=1, min_p=0.1).filtered


def test_completions_of_one_prompt_have_their_own_seeds():
    params = SamplingParams(n=3, seed=5)
    assert [params.for_completion(i).seed for i in range(3)] == [5, 6, 7]
    assert params.for_completion(2).n == 1
    assert SamplingParams(n=2).for_completion(1).seed is None


@given(st.integers(-(2**63), 2**64 - 1), st.integers(0, 10**6))
def test_noise_is_a_function_of_seed_and_counter_on_the_float32_grid(seed, counter):
    value = uniform(seed, counter)
    assert 0.0 <= value < 1.0
    assert value == uniform(seed, counter)
    assert value * 2**23 == int(value * 2**23)


def test_noise_is_uniform_and_independent_between_neighbours():
    draws = [uniform(seed, counter) for seed in range(50) for counter in range(200)]
    bins = [0] * 20
    for value in draws:
        bins[int(value * 20)] += 1
    expected = len(draws) / 20
    assert sum((count - expected) ** 2 / expected for count in bins) < 43.8  # chi-square, 19 degrees, p = 0.001
    mean = sum(draws) / len(draws)
    for shift in (1, 200):  # the next counter of a seed, the next seed at a counter
        pairs = list(zip(draws, draws[shift:]))
        covariance = sum((a - mean) * (b - mean) for a, b in pairs) / len(pairs)
        assert abs(covariance * 12) < 0.035  # 3.5 standard errors of a correlation of 10000 pairs
    assert len({derive_seed(0, i) for i in range(1000)}) == 1000
    assert mix(0) == 0 != mix(1)
