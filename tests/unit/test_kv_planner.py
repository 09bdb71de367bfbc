"""The KV planner: every position exactly once, equal shares, and the article's rule to the letter."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.errors import InputError
from sits.policy.kv_planner import (
    DecodePlan,
    DeviceLimits,
    HeadLayout,
    article_block_size,
    block_size,
    plan_decode,
    prefill_chunk,
    segments,
    share_of,
    splits_per_request,
    static_plan,
    tile_size,
)

H200 = DeviceLimits(multiprocessors=132, shared_memory=227 * 1024, shared_memory_per_multiprocessor=228 * 1024)
LLAMA70 = HeadLayout(64, 8, 128)

lengths = st.lists(st.integers(0, 3000), min_size=1, max_size=12)
plans = st.builds(
    DecodePlan,
    tile=st.sampled_from([16, 32, 64]),
    workers=st.integers(1, 300),
    min_share=st.integers(1, 5),
    stages=st.just(5),
    splits=st.sampled_from([0, 0, 1, 3, 8]),
)


@given(plans, lengths, st.integers(1, 4), st.sampled_from([0, 1, 100, 1000]))
def test_every_position_is_covered_exactly_once(plan, context_lens, kv_heads, window):
    spans = defaultdict(list)
    for segment in segments(plan, context_lens, kv_heads, window):
        assert segment.begin < segment.end
        spans[segment.request, segment.head].append((segment.begin, segment.end))
    for request, length in enumerate(context_lens):
        oldest = max(0, length - window) if window else 0
        for head in range(kv_heads):
            at = oldest
            for begin, end in sorted(spans[request, head]):
                assert begin == at
                at = end
            assert at == length


@given(plans.filter(lambda plan: plan.splits == 0), lengths, st.integers(1, 4))
def test_shares_differ_by_less_than_a_tile_from_the_best_possible(plan, context_lens, kv_heads):
    tiles = defaultdict(int)
    for segment in segments(plan, context_lens, kv_heads):
        tiles[segment.worker] += -(-segment.end // plan.tile) - segment.begin // plan.tile
    total = sum(tiles.values())
    best = -(-total // plan.workers)
    assert all(worker < plan.workers for worker in tiles)
    assert max(tiles.values(), default=0) <= max(best, plan.min_share)


@given(plans.filter(lambda plan: plan.splits == 0), lengths, st.integers(1, 4))
def test_a_worker_leaves_at_most_two_partial_results(plan, context_lens, kv_heads):
    partial = defaultdict(list)
    for segment in segments(plan, context_lens, kv_heads):
        whole = segment.begin == 0 and segment.end == context_lens[segment.request]
        partial[segment.worker].append(whole)
    for pieces in partial.values():
        assert all(pieces[1:-1])


def test_ragged_batch_is_spread_where_the_static_rule_is_not():
    context_lens = [131072] + [512] * 31
    planned, static = plan_decode(H200, LLAMA70, context_lens), static_plan(H200, LLAMA70, context_lens)

    def slowest(plan):
        tokens = defaultdict(int)
        for segment in segments(plan, context_lens, LLAMA70.kv_heads):
            tokens[segment.worker] += segment.end - segment.begin
        return max(tokens.values())

    assert slowest(planned) * 10 < slowest(static)
    splits = splits_per_request(planned, context_lens, LLAMA70.kv_heads)
    assert splits[0] > 20
    assert max(splits[1:]) <= 2


@pytest.mark.parametrize(
    ("shared_memory", "heads", "wanted"),
    [
        (227 * 1024, 64, 64),
        (227 * 1024, 8, 64),
        (227 * 1024, 2, 227),
        (227 * 1024, 1, 454),
        (10**9, 1, 512),
        (0, 1, 64),
    ],
)
def test_article_rule(shared_memory, heads, wanted):
    assert article_block_size(shared_memory, heads) == wanted


def test_article_rule_refuses_nonsense():
    with pytest.raises(InputError):
        article_block_size(1024, 0)


@given(st.sampled_from([32, 64, 80, 96, 128, 256]), st.sampled_from([1, 2, 4]), st.integers(32, 256))
def test_tiles_fit_twice_in_a_multiprocessor(head_dim, kv_bytes, kilobytes):
    device = DeviceLimits(100, kilobytes * 1024)
    layout = HeadLayout(8, 8, head_dim, kv_bytes)
    tile = tile_size(device, layout)
    assert tile in (16, 32, 64)
    in_flight = 2 * tile * layout.padded_dim * kv_bytes * 3
    assert tile == 16 or in_flight <= device.shared_total // 2
    assert tile % block_size(device, layout) == 0


def test_short_contexts_get_shorter_tiles():
    assert plan_decode(H200, LLAMA70, [8192]).tile == 64
    assert plan_decode(H200, LLAMA70, [512]).tile == 32
    assert plan_decode(H200, LLAMA70).tile == 64


def test_long_contexts_get_more_and_smaller_programs():
    plan = plan_decode(H200, LLAMA70, [131072])
    assert (plan.tile, plan.workers, plan.stages) == (32, 3 * 132, 5)
    eight_bit = plan_decode(H200, HeadLayout(64, 8, 128, 1), [131072])
    assert (eight_bit.tile, eight_bit.workers, eight_bit.stages) == (64, 2 * 132, 3)


def test_block_size_follows_the_mean_context():
    assert block_size(H200, LLAMA70, 256) == 16
    assert block_size(H200, LLAMA70, 32768) == 64


@given(st.integers(0, 10**6), st.integers(1, 1000), st.integers(1, 8))
def test_share_leaves_no_tile_undone(units, workers, min_share):
    assert share_of(units, workers, min_share) * workers >= units


def test_prefill_chunk():
    # 790 TFLOP/s, 4.42 TB/s, 4.5 bits: balance at 50 tokens; 16-bit weights at 179.
    assert prefill_chunk(790e12, 4.42e12, 4.5) == 256
    assert prefill_chunk(790e12, 4.42e12, 16) == 768
    with pytest.raises(InputError):
        prefill_chunk(0, 1, 1)
