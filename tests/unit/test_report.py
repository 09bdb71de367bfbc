"""Reports: self-contained, well formed, safe with hostile names, small for huge runs, honest with empty ones."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.report.console import print_scorecard
from sits.report.format import duration, figure_text, interval_text, number, spread_text
from sits.report.html import render_report, run_names
from sits.report.svg import Scale, linear_ticks, log_ticks
from sits.spec.metrics import DEFINITIONS, point_metrics
from sits.spec.records import RequestRecord
from sits.spec.result import ArrivalCheck, Convergence, Figure, LoadPoint, Result, Target

HOSTILE = '<script>alert("x")</script>[bold]&'


def make_records(
    requests: int, tokens: int, point: int = 0, concurrency: int = 4, seed: int = 0
) -> list[RequestRecord]:
    rng = np.random.default_rng(seed)
    gaps = np.maximum(1, rng.lognormal(16, 0.3, (requests, tokens))).astype(np.int64)
    free, records = [0] * concurrency, []
    for k in range(requests):
        due = free[k % concurrency]
        times = np.cumsum(gaps[k]).tolist()
        free[k % concurrency] = due + times[-1]
        records.append(
            RequestRecord(
                request_id=str(k), t_due=due, t_sent=due, t_end=due + times[-1], chunk_times_ns=times,
                output_tokens=tokens, prompt_tokens=9, point=point,
            )
        )  # fmt: skip
    return records


def make_run(
    levels: tuple[int, ...] = (1, 4, 8), requests: int = 40, name: str = "model"
) -> tuple[Result, list[RequestRecord]]:
    records, points = [], []
    for index, level in enumerate(levels):
        mine = make_records(requests, 8, index, level, index)
        records += mine
        span = max(r.t_end for r in mine) / 1e9
        points.append(
            LoadPoint(
                index=index,
                mode="closed",
                concurrency=level,
                duration_s=span,
                steady_start_s=0.0,
                steady_end_s=span * 0.9,
                requests={"sent": requests, "ok": requests},
                metrics=point_metrics(mine, concurrency=level, slo={"ttft_ms": 100.0}),
                convergence=[
                    Convergence(
                        metric="tpot.p50",
                        status="converged",
                        tolerance_relative=0.05,
                        rounds=[9.0, 9.1, 9.2],
                        detail="fine",
                    )
                ],
                server={"kv_use": 0.5},
                arrivals=ArrivalCheck(process="poisson", target_rate=1.0, achieved_rate=1.1, ok=True),
            )
        )
    result = Result(
        run_id="run-1",
        created="2026-12-01T00:00:00+00:00",
        status="complete",
        command=["sits", "bench"],
        target=Target(kind="embedded", name=name, card={"dtype": "float32", "parameters": 135e6}),
        workload={"kind": "synthetic", "input_len": "8", "output_len": "8"},
        points=points,
        knee=1 if len(points) > 1 else None,
        definitions=dict(DEFINITIONS),
    )
    return result, records


class Page(HTMLParser):
    """Counts tags, keeps text, and finds anything that would be fetched."""

    VOID = frozenset({"meta", "br", "link", "img", "input", "hr"})

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.scripts = 0
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.fetched += [str(v) for k, v in attrs if k in ("src", "href", "data", "poster", "action")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data + " "


def checked(html: str) -> Page:
    page = Page(html)
    assert page.open == []
    assert page.fetched == []
    assert "@import" not in html
    assert "url(" not in html
    assert page.scripts == 1
    for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL):
        ElementTree.fromstring(svg)
        assert "nan" not in svg
        assert "inf" not in svg.lower().replace("information", "")
    return page


def test_a_report_is_one_file_with_everything_in_it() -> None:
    page = checked(render_report([make_run()]))
    for word in (
        "TLTB",
        "knee",
        "Distributions",
        "Timeline",
        "Environment",
        "float32",
        "converged",
        "nearest rank",
        "kv use",
    ):
        assert word in page.words, word


def test_several_results_stand_side_by_side() -> None:
    one, other = make_run(name="first"), make_run(name="second")
    page = checked(render_report([one, other]))
    assert "2 results" in page.words
    assert "first" in page.words
    assert "second" in page.words
    assert run_names([one[0], one[0]]) == ["first (run-1)", "first (run-1)"]


def test_hostile_text_stays_text() -> None:
    result, records = make_run(name=HOSTILE)
    result.warnings = [HOSTILE]
    result.target.card = {"dtype": HOSTILE, HOSTILE: HOSTILE}
    result.points[0].arrival = HOSTILE
    result.points[0].convergence[0].detail = HOSTILE
    result.environment.hardware = {"cpu": HOSTILE}
    result.workload = {"kind": HOSTILE}
    page = checked(render_report([(result, records), (result, records)]))
    assert 'alert("x")' in page.words
    stream = io.StringIO()
    print_scorecard(result, stream)
    assert HOSTILE in stream.getvalue().replace("\n", "")


@pytest.mark.parametrize("status", ["no_data", "partial", "invalid", "not_converged"])
def test_empty_runs_have_a_report_too(status: str) -> None:
    result, _ = make_run(levels=())
    result.status = status  # type: ignore[assignment]
    assert status.replace("_", " ") in checked(render_report([(result, [])])).words
    failed, _ = make_run(levels=(2,), requests=3)
    failed.points[0].metrics = point_metrics([], concurrency=2)
    checked(render_report([(failed, [])]))
    print_scorecard(failed, io.StringIO())


def test_failed_and_single_token_requests_have_a_timeline() -> None:
    result, records = make_run(levels=(2,), requests=6)
    records[0].status, records[0].chunk_times_ns, records[0].output_tokens = "error", [], 0
    records[1].chunk_times_ns, records[1].output_tokens = records[1].chunk_times_ns[:1], 1
    page = checked(render_report([(result, records)]))
    assert "failed" in page.words


def test_a_huge_run_is_drawn_from_a_sample() -> None:
    result, _ = make_run(levels=(50,), requests=4)
    html = render_report([(result, make_records(30_000, 4, 0, 50))])
    assert len(html) < 1_500_000
    assert "of 50 lanes" in checked(html).words


def test_console_fits_80_columns() -> None:
    result, _ = make_run(levels=(1, 2, 4, 8, 16, 32))
    stream = io.StringIO()
    print_scorecard(result, stream)
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert sum("Output tok/s" in line for line in lines) == 2  # the points go on in a second table
    assert any("concurrency 32" in line for line in lines)


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_any_number_can_be_shown(value: float) -> None:
    figure = Figure(value=value, unit="ms", ci_low=value, ci_high=value)
    for text in (number(value), duration(value), figure_text("ttft.p50", figure)):
        assert text
        assert "nan" not in text
    interval_text("ttft.p50", figure)
    spread_text("itl.p50", figure)


def test_numbers_read_well() -> None:
    assert [number(v) for v in (0, 0.012345, 1.0, 999.6, 12345.6, None)] == [
        "0",
        "0.0123",
        "1.00",
        "1,000",
        "12,300",
        "–",
    ]
    assert [duration(v) for v in (0.05, 12.34, 1840.0)] == ["50.0 us", "12.3 ms", "1.84 s"]
    figure = Figure(value=100.0, unit="ms", ci_low=98.0, ci_high=105.0)
    assert spread_text("ttft.p50", figure) == "±5%"
    assert interval_text("ttft.p50", figure) == "[98.0, 105]"


@given(st.floats(1e-6, 1e9), st.floats(1.01, 1e6), st.booleans())
def test_ticks_lie_inside_and_pixels_keep_order(low: float, ratio: float, log: bool) -> None:
    high = low * ratio
    ticks = log_ticks(low, high) if log else linear_ticks(low, high)
    assert ticks == sorted(ticks)
    assert len(ticks) <= 14
    assert all(low * (1 - 1e-6) <= t <= high * (1 + 1e-6) for t in ticks)
    scale = Scale(low, high, 0, 100, log)
    pixels = [scale(t) for t in ticks]
    assert pixels == sorted(pixels)
    assert all(-0.1 <= p <= 100.1 for p in pixels)
