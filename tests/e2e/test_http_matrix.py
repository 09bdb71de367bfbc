"""Every stream form and fault of the mock against the client: right figures or a clear failure, never in between."""

import asyncio
import time

import pytest

from sits.bench.client import RequestSpec
from sits.bench.http.client import HttpClient
from sits.bench.http.options import EndpointOptions
from sits.bench.mock.script import MODES
from sits.bench.mock.server import MockServer, MockSettings

TTFT, ITL, TOKENS = 8.0, 2.0, 16
FAILS = {
    "empty": "no_tokens",
    "error_midstream": "stream_error",
    "close_midstream": "closed_midstream",
    "end_midstream": "truncated",
    "reset_midstream": "closed_midstream",
    "hang_start": "timeout_first_token",
    "hang_headers": "timeout_first_token",
    "hang_midstream": "timeout_idle",
    "bad_json": "stream_error",
    "http_500": "http_500",
    "http_503": "http_503",
    "http_401": "http_401",
    "html": "not_api",
    "strict": "http_400",
    "strict_max_tokens": "http_400",
    "redirect_loop": "redirect",
    "not_http": "protocol",
}
WORKS = sorted(set(MODES) - set(FAILS))


async def ask(modes, api="chat", **options):
    """One request per mode at once (they are independent): ``{mode: record}``."""
    server = MockServer(MockSettings())
    port = await server.start()
    clients = {}
    for mode in modes:
        settings = EndpointOptions(
            f"http://127.0.0.1:{port}",
            api=api,
            model=f"mock:{mode},ttft={TTFT},itl={ITL}",
            probe=False,
            keep_text=True,
            first_token_timeout_s=0.5,
            idle_timeout_s=0.3,
            **options,
        )
        clients[mode] = HttpClient(settings)
    try:
        sends = [
            client.send(RequestSpec(mode, TOKENS, prompt="hello"), time.monotonic_ns())
            for mode, client in clients.items()
        ]
        return dict(zip(clients, await asyncio.gather(*sends)))
    finally:
        for client in clients.values():
            await client.close()
        await server.close()


@pytest.fixture(scope="module", params=["chat", "completions", "responses"])
def answers(request):
    return request.param, asyncio.run(ask(WORKS, request.param))


def expected_tokens(mode, api):
    if mode == "n2":
        return 2 * TOKENS
    return {"early_eos": TOKENS // 4, "ignore_max_tokens": 3 * TOKENS}.get(mode, TOKENS)


@pytest.mark.parametrize("mode", WORKS)
def test_stream_form_gives_every_token_once(answers, mode):
    api, records = answers
    record = records[mode]
    assert (record.status, record.error) == ("ok", None)
    assert record.output_tokens == expected_tokens(mode, api)
    assert record.token_source == ("chunks" if mode == "no_usage" else "usage")
    per_choice = record.output_tokens // record.choices
    counted = sum(record.chunk_tokens) if record.chunk_tokens else len(record.chunk_times_ns)
    assert counted == per_choice
    assert record.prompt_tokens == (None if mode == "no_usage" else 7 + 1)


@pytest.mark.parametrize("mode", sorted(set(WORKS) - {"not_stream"}))
def test_role_chunk_is_not_a_token(answers, mode):
    _, records = answers
    # The role chunk of role_first leaves at 0 ms, the first token at TTFT.
    assert records[mode].chunk_times_ns[0] >= (TTFT - 0.5) * 1e6


def test_several_tokens_a_chunk_are_stated(answers):
    _, records = answers
    for mode in ("multi_token", "continuous_usage"):
        # A busy machine may read two chunks at once, never half of one.
        assert all(tokens % 4 == 0 for tokens in records[mode].chunk_tokens)


def test_text_survives_cuts_in_characters(answers):
    _, records = answers
    assert records["split"].text == records["normal"].text
    assert "東京" in records["normal"].text


@pytest.mark.parametrize("api", ["chat", "completions", "responses"])
def test_faults_are_failures_with_their_kind(api):
    records = asyncio.run(ask(FAILS, api, retries=0))
    expected = dict(FAILS)
    if api == "responses":
        del expected["strict_max_tokens"], expected["strict"]  # max_output_tokens is the only name there
    assert {mode: records[mode].error_kind for mode in expected} == expected
    assert all(records[mode].status != "ok" and records[mode].error for mode in expected)
    assert all("timeout" in (records[m].status if m.startswith("hang") else "timeout") for m in expected)
    # What arrived before the fault is kept.
    assert len(records["close_midstream"].chunk_times_ns) >= 4


def test_retry_after_is_obeyed_and_counted_in_the_latency():
    async def run():
        server = MockServer()
        port = await server.start()
        client = HttpClient(EndpointOptions(f"http://127.0.0.1:{port}", model="m:http_429,ttft=1,itl=0", probe=False))
        records = [await client.send(RequestSpec(str(k), 4, prompt="x"), time.monotonic_ns()) for k in range(2)]
        await client.close()
        await server.close()
        return records

    for record in asyncio.run(run()):
        assert record.ok
        assert record.retries == 1
        assert record.chunk_times_ns[0] >= 50e6
