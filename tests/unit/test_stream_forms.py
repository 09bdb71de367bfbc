"""Planned mock answers read in virtual time: the figures must be the scripted ones to the microsecond."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.bench.http.answer import Answer
from sits.bench.http.token_log import TokenLog
from sits.bench.mock.plan import Asked, plan_answer
from sits.bench.mock.script import MODES, Script
from sits.spec.metrics import latency_series
from sits.spec.records import RequestRecord

MS = 1_000_000
TOKENS = 32
BROKEN = {"empty", "error_midstream", "close_midstream", "end_midstream", "reset_midstream", "bad_json", "html"}
BROKEN |= {"hang_start", "hang_headers", "hang_midstream", "not_stream", "redirect", "redirect_loop", "not_http"}
COMPRESSED = {"gzip", "deflate"}  # the connection unpacks these, not the answer
FORMS = sorted(name for name in set(MODES) - BROKEN - COMPRESSED if not name.startswith(("http_", "strict")))


def read(mode, api="chat", tokens=TOKENS, cut=None):
    """The record of a planned answer; ``cut`` splits every frame into pieces of that many bytes."""
    asked = Asked(api, "m", True, tokens, True, 10)
    plan = plan_answer(Script(mode=mode, ttft=20.0, itl=5.0), asked)
    loop = asyncio.new_event_loop()
    try:
        answer = Answer(api, loop.create_future(), 0, keep_text=True)
        answer.on_head(200, {k.encode(): v.encode() for k, v in plan.headers.items()}, 0)
        for offset, body in plan.frames:
            for start in range(0, len(body), cut or len(body)):
                answer.on_body(body[start : start + (cut or len(body))], offset)
        answer.on_end(plan.ending_ns)
        assert answer.future.result() is None
        log = answer.log
    finally:
        loop.close()
    times, counts, total, source = log.settle()
    return RequestRecord(
        request_id=mode,
        t_due=0,
        t_sent=0,
        t_end=plan.ending_ns,
        chunk_times_ns=times,
        chunk_tokens=counts,
        output_tokens=total,
        token_source=source,
        first_visible_ns=log.first_visible,
        choices=log.choices,
        finish_reason=log.finish_reason,
        text="".join(log.text),
    )


@pytest.mark.parametrize("api", ["chat", "completions", "responses"])
@pytest.mark.parametrize("mode", FORMS)
def test_itl_and_tpot_are_exact_in_every_form(mode, api):
    if (mode, api) == ("n2", "responses"):
        pytest.skip("the responses API has no choices")
    series = latency_series([read(mode, api)])
    assert series["tpot"].values == pytest.approx([5.0], abs=0.05)
    assert series["itl"].values.mean() == pytest.approx(5.0, abs=0.05)
    expected = 35.0 if mode == "coalesced" and api == "responses" else 30.0 if mode == "coalesced" else 20.0
    assert series["ttft"].values == pytest.approx(
        [expected], abs=1.0 if mode == "split" else 5.1 * (mode == "coalesced")
    )


@given(st.sampled_from(sorted(set(FORMS) - {"big_event", "coalesced"})), st.integers(1, 70), st.integers(1, 40))
@settings(max_examples=120, deadline=None)
def test_figures_do_not_depend_on_how_reads_cut_the_stream(mode, cut, tokens):
    whole, pieces = read(mode, tokens=tokens), read(mode, tokens=tokens, cut=cut)
    assert pieces.chunk_times_ns == whole.chunk_times_ns
    assert (pieces.output_tokens, pieces.chunk_tokens, pieces.text) == (
        whole.output_tokens,
        whole.chunk_tokens,
        whole.text,
    )


def test_reasoning_moves_only_the_first_visible_token():
    record = read("reasoning_content")
    assert record.chunk_times_ns[0] == 20 * MS
    assert record.first_visible_ns == (20 + 16 * 5) * MS
    assert read("only_reasoning").first_visible_ns is None
    assert read("tool_calls").first_visible_ns == 20 * MS


def test_role_chunk_and_empty_choices_are_no_tokens():
    for mode in ("role_first", "empty_choices"):
        assert read(mode).chunk_times_ns[0] == 20 * MS


def test_two_choices_count_double_but_keep_their_gaps():
    record = read("n2")
    assert (record.choices, record.output_tokens, len(record.chunk_times_ns)) == (2, 64, 32)


def log_of(sizes, blanks=(), total=None, gap=5 * MS):
    log = TokenLog()
    for index, size in enumerate(sizes):
        log.token(20 * MS + index * gap, size, True)
    for at in blanks:
        log.blank(at)
    log.counts.output = total
    return log


def test_end_of_sequence_token_is_placed_where_it_arrived():
    times, tokens, total, _ = log_of([3] * 8, blanks=[60 * MS], total=9).settle()
    assert (len(times), tokens, total) == (9, None, 9)
    assert times[-1] == 60 * MS


def test_missing_usage_counts_chunks_and_says_so():
    assert log_of([1] * 5).settle()[1:] == (None, 5, "chunks")


@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(1, 200))
@settings(max_examples=200, deadline=None)
def test_total_is_always_shared_out_whole(sizes, total):
    times, tokens, counted, source = log_of(sizes, total=total).settle()
    shares = tokens or [1] * len(times)
    assert (sum(shares), counted, source) == (total, total, "usage")
    assert len(times) == len(shares)
    assert min(shares) >= 1
    assert times == sorted(times)
    assert times[0] == 20 * MS


def test_longer_chunks_get_more_of_the_tokens():
    _, tokens, _, _ = log_of([4, 40, 4], total=12).settle()
    assert tokens[1] > tokens[0] == tokens[2]
