"""Parts of the endpoint client without a network: proxies, metrics pages, health verdicts, body styles, the timer."""

import asyncio
import time

import pytest

from sits.bench.client import RequestSpec
from sits.bench.http.address import Origin, find_proxy, parse_endpoint, parse_url
from sits.bench.http.bodies import BodyStyle
from sits.bench.http.health import HealthObserver, gated_latency_ms
from sits.bench.http.server_metrics import parse_metrics, summarise
from sits.bench.mock.metrics_page import Counters, render
from sits.bench.mock.script import Script, script_for
from sits.bench.timer import PreciseTimer
from sits.errors import InputError
from sits.spec.result import ClientHealth, Figure, LoadPoint

PROXY = {
    "http_proxy": "http://p:3128",
    "HTTPS_PROXY": "p2:3129",
    "no_proxy": "localhost, .corp.example,10.0.0.0/8,h:81",
}


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (Origin("http", "api.example", 80), ("p", 3128)),
        (Origin("https", "api.example", 443), ("p2", 3129)),
        (Origin("http", "localhost", 8000), None),
        (Origin("http", "x.corp.example", 80), None),
        (Origin("http", "notcorp.example", 80), ("p", 3128)),
        (Origin("http", "10.1.2.3", 80), None),
        (Origin("http", "h", 81), None),
        (Origin("http", "h", 82), ("p", 3128)),
    ],
)
def test_proxy_from_the_environment(origin, expected):
    proxy = find_proxy(origin, PROXY)
    assert (proxy and (proxy.host, proxy.port)) == expected


def test_explicit_proxy_and_unsupported_ones():
    origin = Origin("http", "localhost", 80)
    assert find_proxy(origin, PROXY, "http://other:1").host == "other"
    assert find_proxy(origin, PROXY, "none") is None
    assert find_proxy(Origin("http", "a", 80), {"http_proxy": "u:p%40@h:1"}).authorization == "Basic dTpwQA=="
    for text in ("socks5://h:1", "https://h:1"):
        with pytest.raises(InputError):
            find_proxy(origin, {}, text)


def test_endpoint_paths_and_queries():
    endpoint = parse_endpoint("https://h/openai/deployments/m?api-version=2", "chat")
    assert endpoint.url.target == "/openai/deployments/m/chat/completions?api-version=2"
    assert parse_endpoint("http://h/v1/completions").api == "completions"
    assert parse_endpoint("http://h/v1").root("/metrics").target == "/metrics"
    assert str(parse_url("http://h:80/a").join("//other/b")) == "http://other/b"


def test_metrics_sum_replicas_average_shares_and_survive_nonsense():
    page = """# HELP x
vllm:num_requests_running{engine="0"} 3
vllm:num_requests_running{engine="1"} 4.0
vllm:kv_cache_usage_perc{engine="0"} 0.2
vllm:kv_cache_usage_perc{engine="1"} 0.4
vllm:prompt_tokens_total{a="b c"} 1e3
vllm:num_requests_waiting NaN
broken line } 1
"""
    found = parse_metrics(page)
    assert found == {"running": 7.0, "kv_use": pytest.approx(0.3), "prompt_tokens_total": 1000.0}
    assert parse_metrics("") == {}
    for flavor in ("vllm", "sglang", "tgi", "sits"):
        assert parse_metrics(render(flavor, Counters(running=2, waiting=5), 8))["queue"] == 5


def test_summary_takes_growth_of_counters_and_drops_restarted_ones():
    rows = [
        (0.0, {"queue": 1.0, "prefix_queries_total": 100.0, "prefix_hits_total": 90.0, "preemptions_total": 9.0}),
        (1.0, {"queue": 5.0, "prefix_queries_total": 300.0, "prefix_hits_total": 140.0, "preemptions_total": 2.0}),
    ]
    found = summarise(rows)
    assert (found["queue_mean"], found["queue_max"]) == (3.0, 5.0)
    assert found["prefix_hit_rate"] == 0.25
    assert "preemptions" not in found
    assert summarise([]) == {}


def level(ttft=20.0, slip=0.1, rate=1000.0):
    metrics = {
        "ttft.p99": Figure(value=ttft, unit="ms", n=9),
        "throughput.output": Figure(value=rate, unit="tok/s", n=9),
    }
    now = time.monotonic_ns()
    point = LoadPoint(index=0, mode="open", started_ns=now, duration_s=0.0, metrics=metrics)
    point.client = ClientHealth(slip_p99_ms=slip)
    return point


def judge(point, share=0.1, **options):
    async def go():
        observer = HealthObserver(workers=lambda start, end: [(0.1, share)], **options)
        await observer.begin(None)
        await observer.end(point, [])

    asyncio.run(go())
    return point


def test_health_verdicts():
    assert judge(level()).client.verdict == "ok"
    late = judge(level(slip=1.1))
    assert (late.status, late.client.verdict) == ("invalid", "client_bound")
    assert "1.10 ms late" in late.client.advice
    assert "something else" in late.client.advice
    assert judge(level(slip=1.1), slo={"ttft_ms": 500.0}).client.verdict == "ok"
    assert judge(level(ttft=1.0, slip=0.2)).client.verdict == "ok"  # a fifth of a ms is the machine's resolution
    busy = judge(level(), share=0.95)
    assert busy.status == "invalid"
    assert "95% of a core" in busy.client.advice
    partial = level(slip=9.0)
    partial.status = "partial"
    assert judge(partial).status == "partial"


def test_gated_latency_is_the_tightest_objective_else_the_measured_tail():
    assert gated_latency_ms(level(), {"ttft_ms": 100.0, "e2e_ms": 50.0}) == 50.0
    assert gated_latency_ms(level(), {"itl_ms": 5.0}) == 20.0
    assert gated_latency_ms(LoadPoint(index=0, mode="open"), {}) is None


def test_body_style_learns_only_what_the_message_names():
    style = BodyStyle("chat", "m")
    assert style.adapt("Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
    assert style.limit_field == "max_completion_tokens"
    assert not style.adapt("the model does not exist")
    assert style.adapt("Unrecognized request argument supplied: ignore_eos")
    assert style.dropped >= {"ignore_eos"}
    assert style.adapt("extra fields not permitted")
    body = style.encode(RequestSpec("r", 5, prompt="x"))
    assert b"max_completion_tokens" in body
    assert b"ignore_eos" not in body


def test_token_ids_need_the_completions_api():
    with pytest.raises(InputError, match="--api completions"):
        BodyStyle("chat", "m").encode(RequestSpec("r", 1, prompt_ids=[1, 2]))
    assert b"[1,2]" in BodyStyle("completions", "m").encode(RequestSpec("r", 1, prompt_ids=[1, 2]))


def test_mock_scripts():
    script = script_for("m:crlf,itl=3", "ttft=9,mode=cr", Script(tokens=4))
    assert (script.mode, script.itl, script.ttft, script.tokens) == ("crlf", 3.0, 9.0, 4)
    for text in ("nope", "itl=x", "speed=1", "itl=-1"):
        with pytest.raises(InputError):
            Script().override(text)


def test_timer_fires_in_order_never_early_and_honours_cancel():
    async def go():
        timer, fired = PreciseTimer(), []
        start = time.monotonic_ns()
        for delay in (3, 1, 2, 0):
            timer.call_at_ns(
                start + delay * 1_000_000, lambda d=delay: fired.append((d, time.monotonic_ns() - start))
            )
        timer.call_at_ns(start + 1_500_000, fired.append, "cancelled").cancel()
        await timer.sleep_until(start + 5_000_000)
        timer.close()
        timer.close()
        return fired

    fired = asyncio.run(go())
    assert [delay for delay, _ in fired] == [0, 1, 2, 3]
    assert all(at >= delay * 1_000_000 for delay, at in fired)
