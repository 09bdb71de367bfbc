"""Bytes and FLOPs against counts done by hand, published parameter counts, and laws that must hold for any shape."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.errors import InputError
from sits.traffic.capacity import meets_slo, prefill_ms, scorecard
from sits.traffic.cards import CARDS, find_card, get_card
from sits.traffic.model_shape import PRESETS, ModelShape, get_shape
from sits.traffic.operators import Step, kv_bytes_per_token, memory_needed_gb, operators, step_traffic
from sits.traffic.precision import StepPrecision, weight_bytes
from sits.traffic.predict import Efficiency, predict_step

ROOFLINE = Efficiency(
    bandwidth=dict.fromkeys(("int4", "fp8", "int8", "bf16", "fp32", "attention", "elementwise"), 1.0),
    compute=dict.fromkeys(("int4", "fp8", "int8", "bf16", "fp32", "attention", "elementwise"), 1.0),
    overlap=200.0, matrix_launch_us=0.0, other_launch_us=0.0, step_us=0.0, sequence_us=0.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "parameters", "kv_kib"),
    [  # counts on the meta device by transformers; KV in BF16
        ("llama-3-8b", 8_030_261_248, 128),
        ("llama-3-70b", 70_553_706_496, 320),
        ("qwen2-57b-a14b", 57_408_658_944, 56),
        ("phi-3-mini", 3_821_079_552, 384),
        ("smollm2-135m", 134_515_008, 22.5),
    ],
)
def test_presets_match_the_published_counts(name, parameters, kv_kib):
    shape = PRESETS[name]
    assert shape.parameters() == pytest.approx(parameters, rel=1e-3)  # norms and biases are left out
    assert kv_bytes_per_token(shape, StepPrecision()) == kv_kib * 1024


def test_required_bytes_of_a_step_by_hand():
    """Two layers, done with pencil: weights once, the KV of two contexts once, one new token each."""
    shape = ModelShape("toy", 2, 8, 2, 1, 4, 16, 32)
    step = Step((10, 20), (), StepPrecision())
    traffic = step_traffic(shape, step)
    per_layer = 8 * (8 + 2 * 4) + 8 * 8 + 3 * 8 * 16
    assert traffic.weight_bytes == 2 * (2 * per_layer + 32 * 8)
    assert traffic.kv_read_bytes == 2 * 2 * 4 * (10 + 20) * 2  # layers x (K, V) x kv_size x contexts x bytes
    assert traffic.kv_write_bytes == 2 * 2 * 4 * 2 * 2
    matmul = 2 * 2 * (2 * per_layer + 32 * 8)
    attention = 2 * 4 * 8 * (11 + 21)
    assert traffic.flops == pytest.approx(matmul + attention + 4 * 2 * 32 + 2 * 2 * 5 * 16)


def test_int4_counts_its_scales():
    assert weight_bytes("int4-g32") == 0.5625
    assert weight_bytes("int4-g128") == 0.5 + 2 / 128
    assert weight_bytes("int4-g32-asym") == 0.5 + 2.5 / 32
    assert weight_bytes("q4_1") == 0.625
    with pytest.raises(InputError, match="unknown weight precision"):
        weight_bytes("int3")


def test_expected_expert_coverage():
    shape = get_shape("qwen2-57b-a14b")
    assert shape.expected_experts(1) == 8
    assert shape.expected_experts(2) == pytest.approx(64 * (1 - (7 / 8) ** 2))
    assert shape.expected_experts(10_000) == pytest.approx(64)
    one, many = (step_traffic(shape, Step.decode(batch, 1)).weight_bytes for batch in (1, 1000))
    active = 14.25e9 - 2 * 151936 * 3584  # the published active count includes embeddings and head
    assert one == pytest.approx(2 * (active + 151936 * 3584), rel=0.02)
    assert many == pytest.approx(2 * (57.4e9 - 151936 * 3584), rel=0.01)


def test_sliding_window_bounds_what_attention_reads():
    shape = get_shape("phi-3-mini")
    short, long = (step_traffic(shape, Step.decode(1, context)).kv_read_bytes for context in (2047, 100_000))
    assert short == long


def test_prefill_attention_counts_causal_pairs():
    shape = ModelShape("toy", 1, 8, 2, 2, 4, 16, 32)
    whole = next(o for o in operators(shape, Step((), ((100, 0),))) if o.name == "attention").flops
    parts = [
        next(o for o in operators(shape, Step((), (c,))) if o.name == "attention").flops for c in ((60, 0), (40, 60))
    ]
    assert whole == 4 * 8 * 100 * 101 / 2
    assert sum(parts) == pytest.approx(whole)  # chunking changes no arithmetic


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(PRESETS)), st.integers(1, 300), st.integers(1, 40_000),
    st.sampled_from(["bf16", "fp8", "int4-g32"]), st.sampled_from(["bf16", "fp8", "int8"]), st.sampled_from(CARDS),
)  # fmt: skip
def test_laws_of_any_step(name, batch, context, weights, kv, card):
    shape, precision = PRESETS[name], StepPrecision(weights, kv)
    step = Step.decode(batch, context, precision)
    prediction = predict_step(shape, step, card)
    assert math.isfinite(prediction.step_ms)
    assert sum(prediction.pieces().values()) == pytest.approx(prediction.step_ms)
    assert sum(prediction.limit_pieces().values()) == pytest.approx(prediction.limit_ms)
    assert predict_step(shape, step, card, ROOFLINE).step_ms >= prediction.limit_ms * (1 - 1e-9)
    more = predict_step(shape, Step.decode(batch + 1, context, precision), card)
    longer = predict_step(shape, Step.decode(batch, context + 1, precision), card)
    assert more.step_ms >= prediction.step_ms
    assert longer.step_ms >= prediction.step_ms - 1e-12
    fewer = step_traffic(shape, Step.decode(batch, context, StepPrecision("int4-g32", "fp8")))
    assert fewer.bytes <= step_traffic(shape, Step.decode(batch, context)).bytes


def test_tensor_parallel_shares_traffic_and_pays_for_communication():
    shape, card = get_shape("llama-3-70b"), get_card("H100")
    one, four = (Step.decode(8, 1000, devices=n) for n in (1, 4))
    assert step_traffic(shape, four).weight_bytes == pytest.approx(step_traffic(shape, one).weight_bytes / 4)
    assert step_traffic(shape, four).kv_read_bytes == pytest.approx(step_traffic(shape, one).kv_read_bytes / 4)
    pieces = predict_step(shape, four, card).pieces()
    assert pieces["communication"] > 160 * card.link_latency_us / 1e3 * 0.99
    assert predict_step(shape, one, card).step_ms > predict_step(shape, four, card).step_ms
    assert memory_needed_gb(shape, StepPrecision(), 0, 4) == pytest.approx(
        memory_needed_gb(shape, StepPrecision(), 0) / 4
    )


def test_graphs_off_costs_small_models_most():
    card = get_card("H200")
    small, large = get_shape("smollm2-135m"), get_shape("llama-3-70b")

    def slowdown(shape: ModelShape) -> float:
        step = Step.decode(1, 500)
        return predict_step(shape, step, card, graphs=False).step_ms / predict_step(shape, step, card).step_ms

    assert slowdown(small) > slowdown(large) >= 1.0


def test_card_from_config_json_and_from_ours():
    config = {
        "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 128, "vocab_size": 320, "tie_word_embeddings": True,
    }  # fmt: skip
    ours = {
        "architecture": "llama", "layers": 2, "hidden_size": 64, "heads": 4, "kv_heads": 2, "head_dim": 16,
        "intermediate_size": 128, "vocab_size": 320, "tied_embeddings": True, "parameters": 1,
    }  # fmt: skip
    assert ModelShape.from_card(config, "m") == ModelShape.from_card(ours, "m")
    with pytest.raises(InputError, match="lacks layers, hidden_size"):
        ModelShape.from_card({"heads": 4})
    with pytest.raises(InputError, match="not a number"):
        ModelShape.from_card({**ours, "layers": "many"})


def test_card_names_as_drivers_write_them():
    for text, name in {
        "NVIDIA H200": "H200", "NVIDIA H100 80GB HBM3": "H100", "NVIDIA H100 PCIe": "H100-PCIe",
        "NVIDIA L40S": "L40S", "NVIDIA A100-SXM4-40GB": "A100-40GB",
        "NVIDIA GeForce RTX 4090": "RTX4090", "AMD Instinct MI300X": "MI300X",
    }.items():  # fmt: skip
        found = find_card(text)
        assert found is not None
        assert found.name == name
    assert find_card("NVIDIA T400") is None
    with pytest.raises(InputError, match="Known: H200"):
        get_card("nonsense")


def test_slo_answer_orders_by_fewest_gpus_and_says_why_not():
    rows = meets_slo(get_shape("llama-3-70b"), get_card("H100"), {"itl_ms": 40.0, "ttft_ms": 2000.0}, 4096, 2000)
    assert rows[0]["meets"]
    assert rows[0]["devices"] == min(row["devices"] for row in rows if row["meets"])
    alone = next(row for row in rows if row["precision"] == "bf16" and row["devices"] == 1)
    assert (alone["fits"], alone["why"]) == (False, "does not fit in memory")
    strict = meets_slo(get_shape("llama-3-70b"), get_card("L40S"), {"itl_ms": 0.5}, 4096, 2000)
    assert not any(row["meets"] for row in strict)


def test_scorecard_holds_together():
    shape, card = get_shape("llama-3-8b"), get_card("H200")
    board = scorecard(shape, Step.decode(16, 1000), card, 512)
    assert board["itl_ms"] >= board["itl_limit_ms"]
    assert board["tokens_per_s"] == pytest.approx(16e3 / board["itl_ms"])
    assert 0 < board["mabu_required"] < board["required_of_achievable"] <= 1
    assert board["ttft_ms"] == prefill_ms(shape, 512, StepPrecision(), card)


def test_impossible_steps_are_refused():
    for wrong in (
        lambda: Step(()),
        lambda: Step((1,), devices=0),
        lambda: Step((), ((0, 3),)),
        lambda: ModelShape("m", 0, 8, 2, 1, 4, 16, 32),
        lambda: ModelShape("m", 1, 8, 2, 1, 4, 16, 32, experts=4),
    ):
        with pytest.raises(InputError):
            wrong()
