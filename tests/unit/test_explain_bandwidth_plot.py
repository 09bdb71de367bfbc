"""The memory-traffic chart of the report."""

from __future__ import annotations

from sits.report.explain_bandwidth import bandwidth_plot


def row(s: float, device: str, observed: float | None, required: float | None = None) -> dict:
    return {"s": s, "device": device, "observed_gbps": observed, "model_required_gbps": required, "peak_gbps": 100.0}


def test_devices_of_one_tick_are_added_and_named():
    rows = [row(0.0, "a", 10.0), row(0.01, "b", 20.0), row(0.25, "a", 30.0), row(0.26, "b", 5.0)]
    chart = bandwidth_plot(rows)
    assert "observed" in chart
    assert "theoretical peak" in chart
    assert "required" not in chart


def test_an_estimate_alone_is_drawn_as_required():
    chart = bandwidth_plot([row(0.0, "vllm", None, 5.0), row(0.5, "vllm", None, 6.0)])
    assert "required" in chart
    assert "observed" not in chart
    assert "peak" not in chart  # nothing was observed: a peak beside it would mislead


def test_nothing_measured_draws_nothing():
    assert bandwidth_plot([]) == ""
    assert bandwidth_plot([row(0.0, "a", None)]) == ""
    assert bandwidth_plot([{"device": "a", "observed_gbps": 3.0}]) == ""
