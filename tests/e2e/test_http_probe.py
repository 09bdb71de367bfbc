"""Opening an endpoint: what it says of itself, what it rejects, and clear words when it cannot be used."""

import asyncio
import contextlib
import time

import pytest

from sits.bench.client import RequestSpec
from sits.bench.http import probe
from sits.bench.http.client import HttpClient, retry_after_seconds
from sits.bench.http.options import EndpointOptions
from sits.bench.http.pool import PoolOptions
from sits.bench.http.workers import WorkerClient
from sits.bench.mock.script import Script
from sits.bench.mock.server import MockServer, MockSettings
from sits.errors import InputError, UntrustedResultError


@contextlib.asynccontextmanager
async def mock(mode="normal", **settings):
    server = MockServer(MockSettings(script=Script(mode=mode, ttft=1, itl=0), log_requests=True, **settings))
    await server.start()
    try:
        yield server
    finally:
        await server.close()


def opened(mode="normal", path="", settings=None, **options):
    """(target info, client, one record, server) of an opened endpoint."""

    async def go():
        async with mock(mode, **(settings or {})) as server:
            url = f"http://127.0.0.1:{server.port}{path}"
            client = HttpClient(
                EndpointOptions(url, pool=PoolOptions(proxy="none"), first_token_timeout_s=1, **options)
            )
            try:
                info = await client.open()
                record = await client.send(RequestSpec("r", 8, prompt="hi", seed=1), time.monotonic_ns())
                return info, client, record, server
            finally:
                await client.close()

    return asyncio.run(asyncio.wait_for(go(), 20))


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/", "/v1/v1", "/v1/chat/completions"])
def test_base_url_in_every_form_users_paste(path):
    info, client, record, _ = opened(path=path)
    assert client.url.target == "/v1/chat/completions"
    assert record.ok
    assert info.name == "mock"
    assert info.max_context == 131072


@pytest.mark.parametrize("api", ["chat", "completions", "responses"])
def test_apis(api):
    info, _, record, server = opened(api=api)
    assert record.output_tokens == 8
    assert info.notes == []
    assert server.settings.requests[-1]["path"].endswith({"chat": "/chat/completions"}.get(api, f"/{api}"))


@pytest.mark.parametrize(
    ("mode", "gone", "there"),
    [
        ("strict", {"ignore_eos", "stream_options"}, {"max_tokens"}),
        ("strict_max_tokens", {"max_tokens"}, {"max_completion_tokens", "ignore_eos"}),
    ],
)
def test_rejected_fields_are_left_out_and_noted(mode, gone, there):
    info, _, record, server = opened(mode)
    body = server.settings.requests[-1]["body"]
    assert record.ok
    assert not gone & set(body)
    assert there <= set(body)
    assert len([note for note in info.notes if "rejects" in note]) == len(gone)
    # Learnt once, in the probe: the measured request is not sent twice.
    assert record.retries == 0


def test_prompt_length_is_calibrated_from_usage():
    client = opened()[1]
    assert client.text.calibrated

    async def go():
        async with mock() as server:
            fresh = HttpClient(EndpointOptions(f"http://127.0.0.1:{server.port}", pool=PoolOptions(proxy="none")))
            await fresh.open()
            records = [
                await fresh.send(RequestSpec("r", 1, prompt=fresh.text(tokens, salt)), time.monotonic_ns())
                for salt, tokens in enumerate((50, 400, 3000))
            ]
            await fresh.close()
            return [record.prompt_tokens for record in records]

    for wanted, got in zip((50, 400, 3000), asyncio.run(go())):
        assert abs(got - wanted) <= max(3, 0.05 * wanted)


def test_prompts_differ_from_the_first_word_on_except_for_the_shared_prefix():
    _, client, _, _ = opened()
    texts = {client.text(40, salt) for salt in range(500)}
    assert len({text.split()[0] + " " + text.split()[1] for text in texts}) > 400
    one, two = client.text(200, 1, prefix=100).split(), client.text(200, 2, prefix=100).split()
    shared = next(k for k, (a, b) in enumerate(zip(one, two)) if a != b)
    assert client.text.words(90) <= shared <= client.text.words(110)
    assert client.text(40, 7) == client.text(40, 7)


def test_notes_tell_what_limits_the_figures():
    assert any("no usage" in note for note in opened("no_usage")[0].notes)
    assert any("does not stream" in note for note in opened("not_stream")[0].notes)
    assert any("redirected" in note for note in opened("redirect")[0].notes)
    info, *_ = opened(settings={"models": ("a", "b")})
    assert info.name == "a"
    assert any("2 models" in note for note in info.notes)
    info, *_ = opened(model="other")
    assert any("does not list 'other'" in note for note in info.notes)


@pytest.mark.parametrize(
    ("mode", "error", "expected"),
    [
        ("http_500", UntrustedResultError, "HTTP 500"),
        ("http_401", InputError, "--api-key-env"),
        ("not_http", InputError, "not HTTP"),
        ("html", InputError, "web page"),
        ("redirect_loop", InputError, "redirect"),
        ("hang_headers", UntrustedResultError, "within 1 s"),
        ("error_midstream", UntrustedResultError, "the engine died"),
        ("empty", UntrustedResultError, "without a single token"),
    ],
)
def test_unusable_endpoint_is_refused_with_reason(monkeypatch, mode, error, expected):
    monkeypatch.setattr(probe, "_PAUSES_S", (0.0, 0.0))
    with pytest.raises(error) as caught:
        opened(mode)
    assert expected in str(caught.value)


def test_probe_outlasts_a_server_that_fails_now_and_then(monkeypatch):
    monkeypatch.setattr(probe, "_PAUSES_S", (0.0, 0.0, 0.0))
    info, *_ = opened(model="mock:http_500,fault_rate=0.4")
    assert any("failed some" in note for note in info.notes)


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "ftp://x",
        "http://",
        "http://[::1",
        "http://host:99999",
        "http://user:pw@host",
        "http://h/a b",
    ],
)
def test_bad_urls(url):
    with pytest.raises(InputError):
        HttpClient(EndpointOptions(url))


def test_wrong_path_and_dead_port():
    with pytest.raises(InputError, match="404"):
        opened(path="/nowhere", model="m")
    with pytest.raises(InputError, match="Is the server running"):
        asyncio.run(HttpClient(EndpointOptions("http://127.0.0.1:9")).open())


def test_retry_after_forms():
    assert retry_after_seconds("1.5", 0) == 1.5
    assert retry_after_seconds("Thu, 01 Jan 1970 00:00:10 GMT", 4) == 6
    assert retry_after_seconds("Thu, 01 Jan 1970 00:00:10 GMT", 40) == 0
    assert retry_after_seconds("soon", 0) is None
    assert retry_after_seconds("", 0) is None


@pytest.mark.parametrize("flavor", ["vllm", "sglang", "tgi", "sits"])
def test_metrics_page_of_each_server(flavor):
    async def go():
        async with mock(metrics_flavor=flavor) as server:
            client = HttpClient(EndpointOptions(f"http://127.0.0.1:{server.port}", pool=PoolOptions(proxy="none")))
            await client.open()
            before = await client.snapshot()
            await client.close()
            return before

    found = asyncio.run(go())
    assert {"running", "queue"} <= set(found)
    assert flavor == "tgi" or "kv_use" in found


def test_worker_processes_share_the_load_and_survive_a_death():
    async def go():
        async with mock() as server:
            options = EndpointOptions(f"http://127.0.0.1:{server.port}", pool=PoolOptions(proxy="none"))
            client = WorkerClient(options, 2)
            await client.open()
            now = time.monotonic_ns()
            specs = [RequestSpec(f"r{k}", 4, prompt="x") for k in range(20)]
            first = await asyncio.gather(*(client.send(spec, now) for spec in specs))
            slow = RequestSpec("slow", 4, prompt="x", extra={"model": "mock:ttft=5,itl=20,tokens=500"})
            tasks = [asyncio.ensure_future(client.send(slow, time.monotonic_ns())) for _ in range(3)]
            await asyncio.sleep(0.3)
            client._workers[0].child.kill()
            tasks[0].cancel()  # the first went to the worker that dies or to the other one
            await asyncio.sleep(0.1)
            tasks[1].cancel()
            tasks[2].cancel()
            second = await asyncio.gather(*tasks)
            third = await client.send(specs[0], time.monotonic_ns())
            await client.close()
            return first, second, third

    first, second, third = asyncio.run(asyncio.wait_for(go(), 30))
    assert [record.request_id for record in first] == [f"r{k}" for k in range(20)]
    assert all(record.ok and record.output_tokens == 4 for record in first)
    assert {record.worker for record in first} == {1, 2}
    assert {record.status for record in second} <= {"cancelled", "error"}
    assert any(record.error_kind == "client_process" or record.status == "cancelled" for record in second)
    assert third.ok
    assert third.worker == 2
