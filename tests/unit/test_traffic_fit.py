"""The prediction model against measured steps: our results where there are some, earlier measurements else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sits.traffic import fitted
from sits.traffic.cards import get_card
from sits.traffic.fit import fit, relative_errors, summary
from sits.traffic.fit_report import with_tables
from sits.traffic.measured import MeasuredStep, fingerprint, parse_case, read_results
from sits.traffic.model_shape import get_shape
from sits.traffic.operators import Step
from sits.traffic.precision import StepPrecision
from sits.traffic.predict import Efficiency, predict_step

ROOT = Path(__file__).parents[2]
FOLDERS = {"result": ROOT / "benchmarks/results", "earlier measurement": ROOT / "benchmarks/earlier"}
MEDIAN_BAR, WORST_BAR = 0.08, 0.20


@pytest.mark.parametrize("key", sorted(fitted.entries()))
def test_prediction_error_of_every_fitted_engine_is_within_the_bar(key):
    """Worked out afresh from the result files with the parameters that ship; dense models, one card."""
    entry = fitted.entries()[key]
    rows = [row for row in read_results(FOLDERS[entry["kind"]]) if row.key == key and row.dense]
    assert len(rows) == entry["error"]["rows"], (
        "fitted.json is older than the results: run python -m sits.traffic.fit"
    )
    errors = summary(relative_errors(rows, fitted.load_efficiency(entry)))
    assert errors["median"] <= MEDIAN_BAR
    assert errors["worst"] <= WORST_BAR
    assert errors["median"] == pytest.approx(entry["error"]["median"], abs=1e-6)


def test_provenance_names_the_files_that_are_there():
    for entry in fitted.entries().values():
        for name, digest in entry["sources"].items():
            found = next(FOLDERS[entry["kind"]].rglob(name))
            assert fingerprint(found) == digest, f"{name} changed: run python -m sits.traffic.fit"


def test_the_docs_print_the_errors_of_the_fits_that_ship():
    document = (ROOT / "docs/explain.md").read_text()
    assert with_tables(document, fitted.entries()) == document, (
        "run python -m sits.traffic.fit_report docs/explain.md"
    )


def test_fit_recovers_the_parameters_that_made_the_data():
    truth = replace(Efficiency(), bandwidth={**Efficiency().bandwidth, "bf16": 0.8}, step_us=700.0)
    rows = []
    for model in ("llama-3-8b", "llama-3-70b"):
        for batch in (1, 4, 16, 64):
            shape, step = get_shape(model), Step.decode(batch, 256)
            ms = predict_step(shape, step, get_card("H200"), truth).step_ms
            rows.append(MeasuredStep(f"{model}/{batch}", "toy", "H200", ms, shape, step, "toy.json"))
    found = fit(rows)
    assert found.bandwidth["bf16"] == pytest.approx(0.8, rel=0.04)
    assert np.max(np.abs(relative_errors(rows, found))) < 0.02


def test_no_fit_claims_more_than_the_hardware():
    shape, step = get_shape("llama-3-8b"), Step.decode(1, 256)
    limit = predict_step(shape, step, get_card("H200")).limit_ms
    rows = [MeasuredStep("x", "toy", "H200", limit / 3, shape, step, "toy.json")] * 6
    assert max(fit(rows).bandwidth["bf16"], fit(rows).compute["bf16"]) <= 1.0


def test_cases_as_the_benchmarks_write_them():
    shape, step = parse_case("llama3-70b/int4-g32/b16/ctx512")
    assert (shape.name, len(step.contexts), step.contexts[0]) == ("llama-3-70b", 16, 512)
    assert step.precision == StepPrecision("int4-g32")
    _, chunk = parse_case("llama3-70b/fp8/prefill8192")
    assert chunk.prefill == ((512, 0),) * 16
    assert parse_case("llama3-70b/fp8/b1/prefill8192")[1].prefill == ((8192, 0),)
    assert parse_case("llama3-8b/bf16/kv-fp8/b1/ctx128")[1].precision.kv == "fp8"
    for other in ("attention/decode/131072", "start/llama3-70b/int4-g32", "llama3-8b/bf16/b1/ctx128/ablation-x", ""):
        assert parse_case(other) is None


def test_result_files_of_another_form_are_passed_over(tmp_path):
    row = {"case": "llama3-8b/bf16/b1/ctx128", "unit": "ms", "ours": 4.0, "peer": 5.0, "peer_name": "vllm"}
    gbps = {**row, "unit": "GB/s"}
    (tmp_path / "a.json").write_text(json.dumps({"card": "NVIDIA H200", "rows": [row, gbps, "junk"]}))
    (tmp_path / "b.json").write_text("not json")
    (tmp_path / "c.json").write_text("[1]")
    (tmp_path / "d.json").write_text(json.dumps({"card": "Unknown", "rows": [row]}))
    found = read_results(tmp_path)
    assert [(r.engine, r.ms, r.key) for r in found] == [("sits", 4.0, "H200/sits"), ("vllm", 5.0, "H200/vllm")]


def test_an_unfitted_card_borrows_shares_and_says_so():
    if not fitted.entries():
        pytest.skip("nothing fitted yet")
    assert "borrowed" in fitted.efficiency_for(get_card("MI300X")).origin
    assert "CPU" in fitted.efficiency_for(get_card("CPU")).origin
