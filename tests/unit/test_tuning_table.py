"""The measured table: order, fallbacks, and a re-tuned table before the shipped one."""

import json

import pytest

from sits.kernels import tuning


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SITS_CACHE", str(tmp_path))
    tuning.load_table.cache_clear()
    yield
    tuning.load_table.cache_clear()


def test_shipped_table_is_read_and_names_what_exists():
    steps = tuning.load_table("NVIDIA H200")["linear_int4"]["*"]
    assert steps[-1][0] is None
    assert {name for _, name in steps} <= {"wgmma", "triton", "humming", "dense"}


def test_choice_by_batch_and_what_is_available():
    every = {"wgmma", "dense", "triton"}
    assert tuning.choose("linear_int4", "NVIDIA H200", 1, (64, 64), every, "triton") == "wgmma"
    assert tuning.choose("linear_int4", "NVIDIA H200", 4096, (64, 64), every, "triton") == "dense"
    assert tuning.choose("linear_int4", "NVIDIA H200", 64, (64, 64), every, "triton") == "wgmma"
    assert tuning.choose("linear_int4", "NVIDIA H200", 1, (64, 64), {"dense"}, "triton") == "dense"
    assert tuning.choose("linear_int4", "Some Card", 1, (64, 64), every, "triton") == "triton"


def test_retuned_table_comes_first_and_shapes_before_the_rest():
    file = tuning.user_file("NVIDIA H200")
    file.parent.mkdir(parents=True)
    choices = {"linear_int4": {"64x32": [[4, "triton"], [None, "humming"]], "*": [[None, "wgmma"]]}}
    file.write_text(json.dumps({"card": "NVIDIA H200", "choices": choices}))
    names = {"wgmma", "humming", "triton"}
    assert tuning.choose("linear_int4", "NVIDIA H200", 4, (64, 32), names, "x") == "triton"
    assert tuning.choose("linear_int4", "NVIDIA H200", 5, (64, 32), names, "x") == "humming"
    assert tuning.choose("linear_int4", "NVIDIA H200", 5, (1, 1), names, "x") == "wgmma"


def test_damaged_table_is_ignored():
    file = tuning.user_file("NVIDIA H200")
    file.parent.mkdir(parents=True)
    file.write_text("{")
    assert "linear_int4" in tuning.load_table("NVIDIA H200")


def test_steps_merge_neighbours_and_end_open():
    times = {1: {"a": 1.0, "b": 2.0}, 8: {"a": 1.0, "b": 2.0}, 64: {"a": 3.0, "b": 2.0}}
    assert tuning.steps_from_times(times) == [[8, "a"], [None, "b"]]
    assert tuning.steps_from_times({}) == []
