"""What lies between client and server: TLS, proxies, IPv6, redirects, stale connections, timeouts, headers."""

import asyncio
import contextlib
import socket
import ssl
import time
from pathlib import Path

import pytest

from sits.bench.client import RequestSpec
from sits.bench.http.client import HttpClient
from sits.bench.http.options import EndpointOptions
from sits.bench.http.pool import PoolOptions
from sits.bench.mock.script import Script
from sits.bench.mock.server import MockServer, MockSettings
from sits.errors import InputError

CERTIFICATE = Path(__file__).parent / "tls" / "localhost.pem"  # a test key for localhost, good for nothing else
FAST = Script(ttft=1, itl=0)


@contextlib.asynccontextmanager
async def mock(host="127.0.0.1", ssl_context=None, **settings):
    server = MockServer(MockSettings(script=FAST, log_requests=True, **settings))
    await server.start(host, 0, ssl_context)
    try:
        yield server
    finally:
        await server.close()


@contextlib.asynccontextmanager
async def raw_server(handler):
    """A server of hand-written bytes."""
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def send(url, count=1, client=None, **options):
    pool = PoolOptions(environment={}, **options.pop("pool", {}))
    client = HttpClient(EndpointOptions(url, model="mock", probe=False, pool=pool, **options))
    try:
        records = [
            await client.send(RequestSpec(f"r{k}", 4, prompt="hello"), time.monotonic_ns()) for k in range(count)
        ]
        return records, client.transport.pool.opened, client.transport.stale_retries
    finally:
        await client.close()


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 20))


def server_tls():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return context


# -- TLS ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("pool", "kind"),
    [({"ca_file": str(CERTIFICATE)}, None), ({"verify_tls": False}, None), ({}, "tls")],
    ids=["own CA", "unverified", "untrusted"],
)
def test_tls(pool, kind):
    async def go():
        async with mock(ssl_context=server_tls()) as server:
            (record,), _, _ = await send(f"https://localhost:{server.port}", pool=pool)
            return record

    record = run(go())
    assert record.error_kind == kind
    if kind:
        assert "certificate" in record.error


def test_https_to_a_plain_port_and_http_to_a_tls_port():
    async def go():
        async with mock() as plain, mock(ssl_context=server_tls()) as tls:
            (first,), _, _ = await send(f"https://127.0.0.1:{plain.port}")
            (second,), _, _ = await send(f"http://127.0.0.1:{tls.port}", first_token_timeout_s=1)
            return first, second

    first, second = run(go())
    assert first.error_kind == "tls"
    assert second.status == "error"
    assert second.error_kind in ("closed", "protocol", "closed_midstream")


# -- proxies -----------------------------------------------------------------------------------------------------
@contextlib.asynccontextmanager
async def proxy(seen):
    """Speaks CONNECT and absolute-form; remembers the request lines and credentials."""

    async def pump(reader, writer):
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
        with contextlib.suppress(Exception):
            writer.close()

    async def handle(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        line = head.split(b"\r\n", 1)[0].decode()
        seen.append((line, b"Proxy-Authorization: Basic dXNlcjpwQHNz" in head))
        method, target, _ = line.split(" ")
        if method == "CONNECT":
            host, _, port = target.rpartition(":")
            upstream_reader, upstream = await asyncio.open_connection(host, int(port))
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            host, _, port = target.removeprefix("http://").partition("/")[0].partition(":")
            upstream_reader, upstream = await asyncio.open_connection(host, int(port))
            path = "/" + target.removeprefix("http://").partition("/")[2]
            upstream.write(head.replace(target.encode(), path.encode(), 1))
        await asyncio.gather(pump(reader, upstream), pump(upstream_reader, writer))

    async with raw_server(handle) as port:
        yield port


@pytest.mark.parametrize("tls", [False, True])
def test_proxy(tls):
    seen = []

    async def go():
        async with mock(ssl_context=server_tls() if tls else None) as server, proxy(seen) as port:
            scheme = "https" if tls else "http"
            options = {"proxy": f"http://user:p%40ss@127.0.0.1:{port}", "verify_tls": False}
            return (await send(f"{scheme}://127.0.0.1:{server.port}", count=2, pool=options))[0]

    assert [record.error for record in run(go())] == [None, None]
    lines = [line for line, _ in seen]
    assert len(lines) == 1  # the connection through the proxy is kept
    assert lines[0].startswith("CONNECT 127.0.0.1:" if tls else "POST http://127.0.0.1:")
    assert all(authorised for _, authorised in seen)


def test_refused_tunnel_is_named():
    async def refuse(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
        writer.close()

    async def go():
        async with raw_server(refuse) as port:
            return (await send("https://example.invalid", pool={"proxy": f"http://127.0.0.1:{port}"}))[0][0]

    record = run(go())
    assert record.error_kind == "proxy"
    assert "407" in record.error


# -- addresses ---------------------------------------------------------------------------------------------------
def test_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 loopback here")

    async def go():
        async with mock("::1") as server:
            records, _, _ = await send(f"http://[::1]:{server.port}")
            return records[0], server.settings.requests[0]["headers"]["host"], server.port

    record, host, port = run(go())
    assert record.ok
    assert host == f"[::1]:{port}"


def test_nobody_listens_and_no_such_host():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    (refused,), _, _ = run(send(f"http://127.0.0.1:{port}"))
    (unknown,), _, _ = run(send("http://no-such-host.invalid"))
    assert (refused.error_kind, unknown.error_kind) == ("connect", "dns")
    assert str(port) in refused.error
    assert "no-such-host.invalid" in unknown.error


def test_connect_timeout():
    # A listener whose backlog is full drops further handshakes.
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(0)
        address = sock.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        (record,), _, _ = run(send(f"http://127.0.0.1:{address[1]}", pool={"connect_timeout_s": 0.3}))
        for filler in fillers:
            filler.close()
    assert (record.status, record.error_kind) == ("timeout", "timeout_connect")


# -- redirects ---------------------------------------------------------------------------------------------------
def redirecting(location):
    async def handle(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 307 T\r\nLocation: {location()}\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    return raw_server(handle)


def test_redirect_keeps_the_body_and_drops_the_key_on_another_host():
    async def go():
        async with mock() as server:
            target = f"http://localhost:{server.port}/v1/chat/completions"
            async with redirecting(lambda: target) as port:
                records, _, _ = await send(f"http://127.0.0.1:{port}", api_key="secret", headers={"X-Team": "red"})
            return records[0], server.settings.requests[0]

    record, request = run(go())
    assert record.ok
    assert request["body"]["messages"][0]["content"] == "hello"
    assert "authorization" not in request["headers"]
    assert "x-team" not in request["headers"]


def test_redirect_on_the_same_host_keeps_the_key():
    async def go():
        async with mock(api_key="secret") as server:
            (record,), _, _ = await send(
                f"http://127.0.0.1:{server.port}", api_key="secret", headers={"x-mock": "redirect"}
            )
            return record, len(server.settings.requests)

    record, requests = run(go())
    assert record.ok
    assert requests == 2


# -- connections -------------------------------------------------------------------------------------------------
def test_connections_are_reused_and_keep_alive_limits_respected():
    async def go():
        async with mock() as server, mock(keep_alive_requests=2) as limited:
            kept = await send(f"http://127.0.0.1:{server.port}", count=5)
            closed = await send(f"http://127.0.0.1:{limited.port}", count=5)
            return kept, closed

    (kept, opened, _), (closed, reopened, _) = run(go())
    assert all(record.ok for record in kept + closed)
    assert opened == 1
    assert 3 <= reopened <= 5


ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%b"
EVENTS = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


def closes_on_second(first_bytes):
    """Answers once per connection; on the second request it sends ``first_bytes`` and closes."""

    async def handle(reader, writer):
        for turn in range(2):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(x.split(b":")[1]) for x in head.split(b"\r\n") if x.lower().startswith(b"content-length")
            )
            await reader.readexactly(length)
            writer.write(first_bytes if turn else ANSWER % (len(EVENTS), EVENTS))
            await writer.drain()
        writer.close()

    return raw_server(handle)


def test_stale_connection_is_replaced_only_when_nothing_arrived():
    async def go(first_bytes):
        async with closes_on_second(first_bytes) as port:
            return await send(f"http://127.0.0.1:{port}", count=2)

    records, opened, stale = run(go(b""))
    assert [record.status for record in records] == ["ok", "ok"]
    assert (opened, stale) == (2, 1)
    records, opened, stale = run(go(b"HTTP/1.1 200 OK\r\nContent-"))
    assert [record.error_kind for record in records] == [None, "closed_midstream"]
    assert (opened, stale) == (1, 0)


def test_unasked_bytes_end_the_connection_and_harm_nobody():
    async def handle(reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(int(x.split(b":")[1]) for x in head.split(b"\r\n") if x.startswith(b"Content-Length"))
                await reader.readexactly(length)
                writer.write(ANSWER % (len(EVENTS), EVENTS) + b"HTTP/1.1 408 Request Timeout\r\n\r\n")
                await writer.drain()

    async def go():
        async with raw_server(handle) as port:
            return await send(f"http://127.0.0.1:{port}", count=3)

    assert [record.status for record in run(go())[0]] == ["ok"] * 3


def test_informational_answers_and_odd_framing():
    async def handle(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + ANSWER % (len(EVENTS), EVENTS))

    async def go():
        async with raw_server(handle) as port:
            return (await send(f"http://127.0.0.1:{port}"))[0][0]

    assert run(go()).ok


def test_request_timeout_and_cancel_keep_what_arrived():
    async def go():
        async with mock() as server:
            url = f"http://127.0.0.1:{server.port}"
            slow = {"x-mock": "ttft=1,itl=30,tokens=1000"}
            (timed,), _, _ = await send(url, headers=slow, request_timeout_s=0.3)
            client = HttpClient(EndpointOptions(url, model="mock", probe=False, headers=slow))
            task = asyncio.ensure_future(client.send(RequestSpec("c", 4, prompt="x"), time.monotonic_ns()))
            await asyncio.sleep(0.2)
            task.cancel()
            cancelled = await task
            await asyncio.sleep(0.05)
            running = server.counters.running
            await client.close()
            return timed, cancelled, running

    timed, cancelled, running = run(go())
    assert (timed.status, timed.error_kind) == ("timeout", "timeout_request")
    assert cancelled.status == "cancelled"
    assert timed.chunk_times_ns
    assert cancelled.chunk_times_ns
    assert running == 0  # the server saw both leave


def test_headers_reach_the_server_and_bad_ones_are_refused():
    async def go():
        async with mock() as server:
            url = f"http://127.0.0.1:{server.port}/v1/"
            await send(
                url, headers={"X-Tenant": "blue", "user-agent": "mine"}, api_key="k", extra_body={"top_p": 0.5}
            )
            return server.settings.requests[0]

    request = run(go())
    assert request["path"] == "/v1/chat/completions"
    assert request["headers"]["x-tenant"] == "blue"
    assert request["headers"]["user-agent"] == "mine"
    assert request["headers"]["authorization"] == "Bearer k"
    assert request["body"]["top_p"] == 0.5
    for headers in ({"Host": "x"}, {"bad name": "x"}, {"X": "a\r\nEvil: 1"}):
        with pytest.raises(InputError):
            EndpointOptions("http://x", headers=headers)
    with pytest.raises(InputError, match="line break"):
        EndpointOptions("http://x", api_key="abc\n")
