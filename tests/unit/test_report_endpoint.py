"""What reports say of endpoint runs: labels of chunked gaps, the search, the server's curves, the mix."""

import io

from sits.report.console import print_scorecard
from sits.report.endpoint import search_lines
from sits.report.html import render_report
from sits.spec.result import ClientHealth, Figure, LoadPoint, Result, Target


def result(**point):
    figures = {"itl.p50": Figure(value=5.0, unit="ms", n=9), "ttft.p50": Figure(value=20.0, unit="ms", n=9)}
    figures |= point.pop("metrics", {})
    level = LoadPoint(index=0, mode="closed", concurrency=2, metrics=figures, **point)
    return Result(run_id="r", created="2026-01-01T00:00:00+00:00", status="complete", points=[level], target=TARGET)


TARGET = Target(kind="endpoint", name="m", url="http://h", api="chat")


def console(found):
    stream = io.StringIO()
    print_scorecard(found, stream)
    return stream.getvalue()


def test_gaps_of_chunks_are_labelled_as_such():
    assert "ITL p50 (per chunk)" in console(result(tokens_per_chunk=4.0))
    assert "ITL p50 (per chunk)" in render_report([(result(tokens_per_chunk=4.0), [])])
    assert "per chunk" not in console(result())


def test_first_visible_token_is_shown_where_it_comes_later():
    later = {"ttft_visible.p50": Figure(value=90.0, unit="ms", n=9)}
    assert "TTFT visible p50" in console(result(metrics=later))
    same = {"ttft_visible.p50": Figure(value=20.0, unit="ms", n=9)}
    assert "TTFT visible" not in console(result(metrics=same))


def test_search_is_told_in_words_and_steps():
    found = result()
    steps = [{"level": 4.0, "verdict": "pass", "attainment": 1.0, "ci_low": 0.99, "ci_high": 1.0}]
    found.search = {
        "over": "rate",
        "objectives": {"ttft_ms": 500.0},
        "attainment": 0.99,
        "highest_passing": 4.0,
        "lowest_failing": 4.2,
        "outcome": "found",
        "steps": steps,
    }
    (line,) = search_lines(found)
    assert "ttft 500 ms: 4 req/s; 4.2 req/s fails" in line.replace("4.00", "4").replace("4.20", "4.2")
    assert "Highest load" in " ".join(console(found).split())
    assert "<h2>Search</h2>" in render_report([(found, [])])
    found.search |= {"highest_passing": None, "outcome": "never_passed"}
    assert search_lines(found)[0].startswith("No load was found")
    found.search = None
    assert search_lines(found) == []


def test_server_curves_and_mix_parts_are_in_the_report_and_no_raw_rows():
    rows = [{"s": float(k), "running": k, "queue": 0, "kv_use": 0.1 * k} for k in range(6)]
    found = result(server={"running_max": 5.0, "timeline": rows}, parts={"a<b": {"requests": 3, "ttft.p50": 9.0}})
    page = render_report([(found, [])])
    assert "running over time" in page
    assert "KV cache use over time" in page
    assert "a&lt;b" in page
    assert "Parts of the mix" in page
    assert "timeline" not in page.split("Inside the target")[1].split("</details>")[0]


def test_load_generator_line():
    health = ClientHealth(verdict="ok", cpu_share=0.03, loop_lag_p99_ms=0.2, slip_p99_ms=0.1)
    assert "Load generator: 3% of a core" in console(result(client=health))
    assert "Load generator" not in console(result())
