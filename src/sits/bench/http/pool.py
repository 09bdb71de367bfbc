"""Connections by origin: opened on demand without a cap, reused newest first, through proxies and TLS."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from sits.bench.http.address import Origin, Proxy, find_proxy
from sits.bench.http.connection import Connection, Failure

_DEFAULT_KEEP_ALIVE_S = 55.0  # many load balancers cut at 60 s


@dataclass(slots=True)
class PoolOptions:
    """How connections are made."""

    connect_timeout_s: float = 10.0
    verify_tls: bool = True
    ca_file: str | None = None
    proxy: str | None = None  # None: from the environment; "none": never
    keep_alive: bool = True
    environment: dict[str, str] | None = None


@dataclass(slots=True)
class _Route:
    proxy: Proxy | None
    addresses: list[tuple[Any, ...]] = field(default_factory=list)
    idle: deque[Connection] = field(default_factory=deque)


class Pool:
    """Hands out connections. No limit: a cap would silently turn open loop into closed loop."""

    def __init__(self, options: PoolOptions):
        self.options = options
        self.opened = 0
        self._routes: dict[Origin, _Route] = {}
        self._open: set[Connection] = set()
        self._tls: ssl.SSLContext | None = None

    def idle(self, origin: Origin) -> Connection | None:
        """A connection that can be used at once, or None."""
        route = self._routes.get(origin)
        if route is None:
            return None
        now = time.monotonic_ns()
        while route.idle:
            connection = route.idle.pop()
            limit = connection.keep_alive_s if connection.keep_alive_s is not None else _DEFAULT_KEEP_ALIVE_S
            if connection.closed or connection.transport.is_closing():
                continue
            if now - connection.idle_since_ns > limit * 1e9:
                connection.transport.close()
                continue
            return connection
        return None

    def through_proxy(self, origin: Origin) -> Proxy | None:
        """The proxy of an origin whose requests need absolute-form (plain http through a proxy)."""
        return self._route(origin).proxy if origin.scheme == "http" else None

    async def connect(self, origin: Origin) -> Connection:
        """A new connection. Raises :class:`Failure` of kind ``connect``, ``dns``, ``tls`` or ``timeout_connect``."""
        route = self._route(origin)
        try:
            async with asyncio.timeout(self.options.connect_timeout_s):
                return await self._connect(origin, route)
        except TimeoutError:
            where = route.proxy.host if route.proxy else origin.authority
            limit = self.options.connect_timeout_s
            raise Failure("timeout_connect", f"no connection to {where} within {limit:g} s") from None

    def close(self) -> None:
        """Close every connection, busy ones included."""
        for connection in list(self._open):
            connection.abort()
        self._open.clear()
        self._routes.clear()

    async def _connect(self, origin: Origin, route: _Route) -> Connection:
        loop = asyncio.get_running_loop()
        host, port = (route.proxy.host, route.proxy.port) if route.proxy else (origin.host, origin.port)
        if not route.addresses:
            route.addresses = await _resolve(host, port)
        context = self._context() if origin.scheme == "https" else None
        direct = context if route.proxy is None else None
        last: Failure | None = None
        for family, address in list(route.addresses):
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.setblocking(False)
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await loop.sock_connect(sock, address)
                if route.proxy is not None and origin.scheme == "https":
                    await _open_tunnel(loop, sock, origin, route.proxy)
                    direct = context
                connection = Connection(self._release, self._open.discard)
                server_name = origin.host if direct is not None else None
                await loop.create_connection(
                    lambda c=connection: c, sock=sock, ssl=direct, server_hostname=server_name
                )  # type: ignore[misc]
            except ssl.SSLError as error:
                sock.close()
                raise _tls_failure(origin, error) from None
            except OSError as error:
                sock.close()
                last = Failure("connect", f"cannot connect to {host} port {port}: {_reason(error)}")
                continue
            except BaseException:
                sock.close()
                raise
            if route.addresses[0] != (family, address):
                route.addresses.remove((family, address))
                route.addresses.insert(0, (family, address))
            self.opened += 1
            self._open.add(connection)
            connection.origin = origin
            return connection
        route.addresses = []
        assert last is not None
        raise last

    def _release(self, connection: Connection) -> None:
        if not self.options.keep_alive:
            connection.transport.close()
            return
        route = self._routes.get(connection.origin)
        if route is not None:
            route.idle.append(connection)

    def _route(self, origin: Origin) -> _Route:
        route = self._routes.get(origin)
        if route is None:
            proxy = find_proxy(origin, self.options.environment, self.options.proxy)
            route = self._routes[origin] = _Route(proxy)
        return route

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            context = ssl.create_default_context(cafile=self.options.ca_file)
            context.set_alpn_protocols(["http/1.1"])
            if not self.options.verify_tls:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            self._tls = context
        return self._tls


async def _resolve(host: str, port: int) -> list[tuple[Any, ...]]:
    loop = asyncio.get_running_loop()
    try:
        rows = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise Failure("dns", f"cannot resolve host {host!r}: {error.strerror}") from None
    except UnicodeError:
        raise Failure("dns", f"host {host!r} is not a valid name") from None
    return [(row[0], row[4]) for row in rows]


async def _open_tunnel(loop: asyncio.AbstractEventLoop, sock: socket.socket, origin: Origin, proxy: Proxy) -> None:
    """CONNECT through an HTTP proxy on a raw socket; TLS follows on the same socket."""
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    lines = [f"CONNECT {host}:{origin.port} HTTP/1.1", f"Host: {host}:{origin.port}"]
    if proxy.authorization:
        lines.append(f"Proxy-Authorization: {proxy.authorization}")
    await loop.sock_sendall(sock, "\r\n".join(lines).encode() + b"\r\n\r\n")
    answer = b""
    while b"\r\n\r\n" not in answer:
        # One byte at a time would be exact; a proxy sends nothing after its head before we speak TLS.
        piece = await loop.sock_recv(sock, 4096)
        answer += piece
        if not piece or len(answer) > 65536:
            raise Failure("proxy", f"the proxy {proxy.host}:{proxy.port} closed the tunnel")
    status = answer.split(b"\r\n", 1)[0].split(b" ", 2)
    if len(status) < 2 or not status[1].startswith(b"2"):
        text = b" ".join(status[1:]).decode("latin-1")[:100]
        raise Failure("proxy", f"the proxy {proxy.host}:{proxy.port} refused the tunnel: {text}")


def _reason(error: OSError) -> str:
    """The system's words; event loops put the address in front of them."""
    return os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)


def _tls_failure(origin: Origin, error: ssl.SSLError) -> Failure:
    if isinstance(error, ssl.SSLCertVerificationError):
        return Failure("tls", f"the certificate of {origin.authority} is not trusted: {error.verify_message}")
    return Failure("tls", f"no TLS with {origin.authority}: {error.reason or error}")
