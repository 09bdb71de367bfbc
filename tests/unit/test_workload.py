"""Workloads: exact lengths, prompts that share nothing by accident, files with clear errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.bench.lengths import Lengths
from sits.bench.sweep import parse_concurrency, parse_levels
from sits.bench.warmup import planned_lengths
from sits.bench.workload import DatasetWorkload, SyntheticWorkload, read_dataset
from sits.errors import InputError


def synthetic(length: str = "64", output: str = "8", **more: object) -> SyntheticWorkload:
    return SyntheticWorkload(Lengths.parse(length), Lengths.parse(output), **({"vocab_size": 49152} | more))  # type: ignore[arg-type]


@settings(max_examples=40)
@given(st.integers(1, 3000), st.integers(2, 200_000), st.integers(0, 10_000), st.integers(0, 2**31))
def test_prompts_have_exactly_the_length_and_ids_of_the_vocabulary(n: int, vocab: int, index: int, seed: int) -> None:
    spec = synthetic(str(n), vocab_size=vocab, seed=seed).request(index)
    assert spec.prompt_ids is not None
    assert len(spec.prompt_ids) == spec.prompt_tokens == n
    assert 0 <= min(spec.prompt_ids) <= max(spec.prompt_ids) < vocab


def test_a_prompt_longer_than_the_pool_is_exact_too() -> None:
    assert len(synthetic("400000").request(0).prompt_ids or []) == 400_000


def test_no_two_prompts_share_their_first_block() -> None:
    seen: set[tuple[int, ...]] = set()
    for seed in (0, 1):
        workload = synthetic(seed=seed)
        for phase in ("measure", "warmup", "cooldown"):
            for index in range(2000):
                ids = workload.request(index, phase).prompt_ids or []
                seen.add(tuple(ids[:16]))
    assert len(seen) == 2 * 3 * 2000


def test_the_same_seed_gives_the_same_requests() -> None:
    a, b = synthetic("10..90", seed=7), synthetic("10..90", seed=7)
    assert [a.request(k).prompt_ids for k in (5, 5000)] == [b.request(k).prompt_ids for k in (5, 5000)]


def test_a_shared_prefix_is_shared_and_the_rest_is_not() -> None:
    workload = synthetic("64", prefix_len=32)
    one, two = (workload.request(k).prompt_ids or [] for k in (0, 1))
    assert one[:32] == two[:32]
    assert one[32:] != two[32:]


def test_requests_are_clipped_to_the_context() -> None:
    workload = synthetic("normal:100:50", "64", max_context=128)
    for index in range(200):
        tokens, output = workload.lengths(index)
        assert tokens >= 1
        assert tokens + output <= 128
    assert workload.clipped > 0


@given(st.sampled_from(["7", "3..9", "normal:50:20", "lognormal:20:1"]), st.integers(0, 99))
def test_lengths_stay_in_their_bounds(text: str, seed: int) -> None:
    lengths = Lengths.parse(text)
    drawn = lengths.draw(np.random.default_rng(seed), 500)
    assert drawn.min() >= 1
    if lengths.largest is not None:
        assert drawn.max() <= lengths.largest
    assert Lengths.parse(str(lengths)) == lengths


@pytest.mark.parametrize(
    "text", ["0", "-5", "", "abc", "9..3", "0..4", "normal:0:1", "normal:5", "normal:5:0", "1e9"]
)
def test_bad_lengths_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        Lengths.parse(text)


def test_levels() -> None:
    assert parse_concurrency("8,1,4,4") == [1, 4, 8]
    assert parse_concurrency("1..12") == [1, 2, 4, 8, 12]
    assert parse_levels("0.5,2", "rate") == [0.5, 2]


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "a", "", "4..2", "1,,2", "inf", "nan"])
def test_bad_levels_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_concurrency(text)


def test_warm_up_lengths_are_clipped_to_the_context() -> None:
    assert planned_lengths("article", None) == [512, 512, 2048, 2048, 2048, 8192, 8192, 8192, 8192, 8192]
    assert planned_lengths("ladder", 2048) == [512, 1024, 2044]
    assert planned_lengths("ladder", 100) == [96]
    assert planned_lengths("none", 100) == []


def test_dataset_forms(tmp_path: Path) -> None:
    lines = tmp_path / "a.txt"
    lines.write_text("one\n\ntwo\n")
    assert [row["prompt"] for row in read_dataset(lines)] == ["one", "two"]
    objects = tmp_path / "a.jsonl"
    objects.write_text('{"prompt": "x", "output_tokens": 5}\n{"messages": [{"role": "user", "content": "hi"}]}\n')
    workload = DatasetWorkload(objects, Lengths.parse("9"))
    first, second, again = (workload.request(k) for k in range(3))
    assert (first.prompt, first.max_tokens, first.ignore_eos) == ("x", 5, False)
    assert (second.prompt, second.max_tokens) == (None, 9)
    assert second.messages == [{"role": "user", "content": "hi"}]
    assert again.prompt == "x"
    assert workload.describe()["reused"] is True


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.jsonl", '{"prompt": "x"}\nnope\n', "line 2"),
        ("a.jsonl", "[1]\n", "expected an object"),
        ("a.jsonl", '{"other": 1}\n', "no prompt"),
        ("a.jsonl", '{"prompt": "x", "max_tokens": 0}\n', "output length"),
        ("a.jsonl", '{"prompt": "x", "max_tokens": true}\n', "output length"),
        ("a.jsonl", '{"messages": []}\n', "messages"),
        ("a.json", "{", "not valid JSON"),
        ("a.txt", "\n\n", "holds no prompt"),
    ],
)
def test_bad_datasets_name_the_place(tmp_path: Path, name: str, text: str, says: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match=says):
        read_dataset(path)


def test_missing_or_binary_datasets(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        read_dataset(tmp_path / "none.jsonl")
    binary = tmp_path / "b.txt"
    binary.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(InputError, match="not UTF-8"):
        read_dataset(binary)
