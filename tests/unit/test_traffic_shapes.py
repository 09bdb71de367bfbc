"""Traces, conversations, mixes and composed prompts: what is sent is what was asked for."""

import json
from itertools import pairwise

import pytest

from sits.bench.composed import PartMaker
from sits.bench.conversation import ConversationShape, ConversationWorkload
from sits.bench.http.prompts import WordText
from sits.bench.lengths import Lengths
from sits.bench.mix import MixWorkload, groups
from sits.bench.trace import TraceWorkload, read_trace
from sits.bench.workload import SyntheticWorkload
from sits.errors import InputError
from sits.spec.records import RequestRecord

IDS = PartMaker(vocab_size=32000, seed=1)
TEXT = PartMaker(text=WordText(), seed=1)


def mooncake(tmp_path):
    rows = [
        {"timestamp": 0, "input_length": 1100, "output_length": 10, "hash_ids": [0, 1, 2]},
        {"timestamp": 1500, "input_length": 1300, "output_length": 20, "hash_ids": [0, 1, 3]},
        {"timestamp": 500, "input_length": 600, "output_length": 30, "hash_ids": [7, 8]},
    ]
    path = tmp_path / "mooncake.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def azure(tmp_path):
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
        "2023-11-16 18:15:51.2225670,879,55\n"
    )
    return path


def test_mooncake_rows_are_sorted_scaled_and_share_prefixes(tmp_path):
    rows = read_trace(mooncake(tmp_path), speed=2.0)
    assert [row.offset_s for row in rows] == [0.0, 0.25, 0.75]
    assert [row.output_tokens for row in rows] == [10, 30, 20]
    workload = TraceWorkload(rows, IDS, "m")
    first, other, second = (workload.request(k).prompt_ids for k in range(3))
    assert [len(ids) for ids in (first, other, second)] == [1100, 600, 1300]
    assert first[:1024] == second[:1024]
    assert first[1024:1030] != second[1024:1030]
    assert first[:8] != other[:8]
    assert workload.describe()["prefix_sharing"] is True


def test_azure_times_and_lengths(tmp_path):
    rows = read_trace(azure(tmp_path))
    assert [row.offset_s for row in rows] == pytest.approx([0.0, 4.314579, 4.541977], abs=1e-5)
    assert [(row.input_tokens, row.output_tokens) for row in rows] == [(374, 44), (396, 109), (879, 55)]
    prompt = TraceWorkload(rows, TEXT, "a").request(0).prompt
    assert len(prompt.split()) == 374


def test_generic_columns_prompts_and_cuts(tmp_path):
    path = tmp_path / "t.jsonl"
    rows = [{"timestamp_ms": 1000 * k, "prompt": f"question {k}", "output_tokens": 3} for k in range(10)]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert len(read_trace(path, limit=4)) == 4
    assert len(read_trace(path, seconds=2.5)) == 3
    workload = TraceWorkload(read_trace(path), TEXT, "t")
    assert workload.request(3).prompt == "question 3"
    assert workload.request(3, "warmup").prompt != "question 3"


def test_trace_longer_than_the_context_is_clipped_and_counted(tmp_path):
    workload = TraceWorkload(read_trace(mooncake(tmp_path)), IDS, "m", max_context=1000)
    specs = [workload.request(k) for k in range(3)]
    assert all(spec.prompt_tokens + spec.max_tokens <= 1000 for spec in specs)
    assert workload.describe()["clipped"] == 2


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("t.jsonl", "", "no request"),
        ("t.jsonl", "{", "line 1"),
        ("t.jsonl", "[1]", "line 1: expected an object"),
        ("t.jsonl", '{"timestamp": 1}', "output length"),
        ("t.jsonl", '{"output_length": 1, "input_length": 1}', "no time"),
        ("t.jsonl", '{"timestamp": "noon", "input_length": 1, "output_length": 1}', "cannot read the time"),
        ("t.jsonl", '{"timestamp": 1, "input_length": 1.5, "output_length": 1}', "whole number"),
        ("t.jsonl", '{"timestamp": 1, "input_length": 1, "output_length": -1}', "whole number"),
        ("t.jsonl", '{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": 3}', "hash_ids"),
        ("t.csv", "TIMESTAMP,ContextTokens\n2023-01-01 00:00:00,5\n", "line 2: no output"),
    ],
)
def test_bad_traces_are_named_with_their_line(tmp_path, name, text, expected):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match=expected):
        read_trace(path)


def test_missing_trace_and_bad_speed(tmp_path):
    with pytest.raises(InputError, match="cannot read"):
        read_trace(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="speed"):
        read_trace(azure(tmp_path), speed=0)


def talk(workload, index, output=5, fail_at=None):
    spec = workload.request(index)
    specs, pauses = [spec], []
    while True:
        record = RequestRecord(
            request_id=spec.request_id,
            t_due=0,
            t_sent=0,
            prompt_tokens=spec.prompt_tokens,
            output_tokens=output,
            status="error" if spec.turn == fail_at else "ok",
            text="an answer",
        )
        following = workload.follow_up(spec, record)
        if following is None:
            return specs, pauses
        pause, spec = following
        pauses.append(pause)
        specs.append(spec)


SHAPE = ConversationShape(
    Lengths("uniform", 2, 5), Lengths("fixed", 20), Lengths("fixed", 8), Lengths("fixed", 250), system=30
)


def test_each_turn_holds_the_whole_history_and_the_real_answer():
    specs, pauses = talk(ConversationWorkload(SHAPE, TEXT), 3)
    assert 2 <= len(specs) <= 5
    assert pauses == [0.25] * (len(specs) - 1)
    for before, after in pairwise(specs):
        assert after.messages[: len(before.messages)] == before.messages
        assert [m["role"] for m in after.messages[len(before.messages) :]] == ["assistant", "user"]
        assert after.messages[-2]["content"] == "an answer"
        assert after.session == before.session
        assert after.turn == before.turn + 1
        assert after.prompt_tokens == before.prompt_tokens + 5 + 20
    assert specs[0].messages[0]["role"] == "system"


def test_conversations_of_ids_grow_by_prefix():
    specs, _ = talk(ConversationWorkload(SHAPE, IDS), 3)
    for before, after in pairwise(specs):
        assert after.prompt_ids[: len(before.prompt_ids)] == before.prompt_ids
        assert len(after.prompt_ids) == after.prompt_tokens


def test_conversations_are_reproducible_distinct_and_share_only_the_system_prompt():
    one, again = (talk(ConversationWorkload(SHAPE, TEXT), 3)[0] for _ in range(2))
    assert [s.messages for s in one] == [s.messages for s in again]
    other = ConversationWorkload(SHAPE, TEXT).request(4)
    assert other.messages[0] == one[0].messages[0]
    assert other.messages[1] != one[0].messages[1]


def test_failure_and_full_context_end_a_conversation():
    workload = ConversationWorkload(SHAPE, TEXT)
    assert len(talk(workload, 3, fail_at=0)[0]) == 1
    small = ConversationWorkload(SHAPE, TEXT, max_context=70)
    assert len(talk(small, 3)[0]) == 1
    assert small.describe()["cut_by_context"] == 1
    assert workload._open == {}
    assert small._open == {}


def synthetic(length):
    return SyntheticWorkload(Lengths("fixed", length), Lengths("fixed", 4), vocab_size=1000)


def test_mix_keeps_its_shares_and_names_its_records():
    mix = MixWorkload({"short": (3.0, synthetic(10)), "long": (1.0, synthetic(500))}, seed=5)
    specs = [mix.request(k) for k in range(8000)]
    share = sum(spec.request_id.startswith("short/") for spec in specs) / len(specs)
    assert abs(share - 0.75) < 4 * (0.75 * 0.25 / 8000) ** 0.5
    assert all(spec.prompt_tokens == (10 if spec.request_id.startswith("short/") else 500) for spec in specs)
    assert [mix.request(k).request_id for k in range(50)] == [spec.request_id for spec in specs[:50]]
    records = [RequestRecord(request_id=spec.request_id, t_due=0, t_sent=0) for spec in specs[:100]]
    assert set(groups(records)) == {"short", "long"}


def test_mix_passes_follow_ups_to_the_part_they_belong_to():
    mix = MixWorkload({"talk": (1.0, ConversationWorkload(SHAPE, TEXT))})
    specs, _ = talk(mix, 0)
    assert len(specs) >= 2
    assert all(spec.request_id.startswith("talk/") for spec in specs)


def test_composed_text_keeps_equal_parts_equal():
    maker = PartMaker(text=WordText(), overhead=12, seed=1)
    from sits.bench.client import RequestSpec

    one = maker.fill(RequestSpec("a", 1), [(100, 5), (50, 1)])
    two = maker.fill(RequestSpec("b", 1), [(100, 5), (50, 2)])
    shared = [a == b for a, b in zip(one.prompt.split(), two.prompt.split())].index(False)
    assert shared >= 100
    assert len(one.prompt.split()) == 150 - 12
    assert one.prompt_tokens == 150
