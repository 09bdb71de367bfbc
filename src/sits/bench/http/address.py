"""Where to connect: endpoint URLs, the three API paths, and proxies from the environment."""

from __future__ import annotations

import base64
import ipaddress
import os
import urllib.request
from dataclasses import dataclass, replace
from urllib.parse import SplitResult, urljoin, urlsplit

from sits.errors import InputError

API_PATHS = {"chat": "/chat/completions", "completions": "/completions", "responses": "/responses"}
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Origin:
    """Scheme, host and port: what a connection belongs to."""

    scheme: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """``host[:port]`` as the Host header has it; IPv6 in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


@dataclass(frozen=True, slots=True)
class Url:
    """An absolute http(s) URL; ``target`` is path and query."""

    origin: Origin
    target: str

    def join(self, location: str) -> Url:
        """The URL a Location header means. Raises ``InputError`` when it is not http(s)."""
        return parse_url(urljoin(str(self), location), "redirect target")

    def __str__(self) -> str:
        return f"{self.origin}{self.target}"


def parse_url(text: str, what: str = "endpoint") -> Url:
    """Parse an absolute http or https URL. Raises ``InputError`` that names the fault."""
    text = text.strip()
    if "://" not in text:
        raise InputError(f"{what} {text!r} has no scheme", f"Write http://{text or 'host:port'} or https://...")
    try:
        parts: SplitResult = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise InputError(f"{what} {text!r} is not a URL: {error}") from None
    if parts.scheme not in _DEFAULT_PORTS:
        raise InputError(f"{what} {text!r} is not http or https")
    if not parts.hostname:
        raise InputError(f"{what} {text!r} names no host")
    if parts.username is not None:
        raise InputError(f"{what} carries a user name or password", "Use --api-key-env or --header instead")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if any(ord(c) <= 32 or ord(c) > 126 for c in target):
        raise InputError(f"{what} {text!r} has characters that must be percent-encoded")
    return Url(Origin(parts.scheme, parts.hostname, port or _DEFAULT_PORTS[parts.scheme]), target)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An OpenAI-compatible server: ``base`` ends before ``/chat/completions``, usually in ``/v1``."""

    base: Url
    api: str

    @property
    def url(self) -> Url:
        """Where generation requests go."""
        return self.at(API_PATHS[self.api])

    def at(self, path: str) -> Url:
        """A URL below the base (``/models``, ...); a query of the base is kept."""
        prefix, _, query = self.base.target.partition("?")
        return replace(self.base, target=prefix.rstrip("/") + path + (f"?{query}" if query else ""))

    def root(self, path: str) -> Url:
        """A URL at the server's root (``/metrics``), beside ``/v1``."""
        prefix = self.base.target.partition("?")[0].rstrip("/").removesuffix("/v1")
        return replace(self.base, target=prefix + path)


def parse_endpoint(text: str, api: str = "chat") -> Endpoint:
    """An endpoint from what users paste: with or without ``/v1``, a trailing slash, or the full API path."""
    if api not in API_PATHS:
        raise InputError(f"unknown API {api!r}", f"Use one of {', '.join(API_PATHS)}")
    url = parse_url(text)
    path, _, query = url.target.partition("?")
    path = path.rstrip("/")
    for known, suffix in sorted(API_PATHS.items(), key=lambda item: -len(item[1])):
        if path.endswith(suffix):
            path, api = path.removesuffix(suffix), known
            break
    while path.endswith("/v1/v1"):
        path = path.removesuffix("/v1")
    if not path:
        path = "/v1"
    return Endpoint(replace(url, target=path + (f"?{query}" if query else "")), api)


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy and the value of its Proxy-Authorization header."""

    host: str
    port: int
    authorization: str | None = None


def find_proxy(
    origin: Origin, environment: dict[str, str] | None = None, explicit: str | None = None
) -> Proxy | None:
    """The proxy for ``origin``: the explicit one, or http_proxy/https_proxy/all_proxy unless no_proxy covers it.

    Raises ``InputError`` for proxies we cannot speak to (SOCKS, TLS to the proxy).
    """
    env = dict(os.environ) if environment is None else environment
    lowered = {key.lower(): value for key, value in env.items() if key.lower().endswith("_proxy") and value}
    text = explicit
    if text is None:
        if _bypassed(origin, lowered.get("no_proxy", "")):
            return None
        text = lowered.get(f"{origin.scheme}_proxy") or lowered.get("all_proxy")
    if not text or text == "none":
        return None
    parts = urlsplit(text if "://" in text else f"http://{text}")
    if parts.scheme != "http" or not parts.hostname:
        raise InputError(
            f"proxy {parts.scheme}://{parts.hostname} is not supported", "Only plain http:// proxies are"
        )
    authorization = None
    if parts.username is not None:
        unquote = urllib.request.unquote  # type: ignore[attr-defined]
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = "Basic " + base64.b64encode(pair.encode()).decode()
    return Proxy(parts.hostname, parts.port or 80, authorization)


def _bypassed(origin: Origin, no_proxy: str) -> bool:
    host = origin.host.lower()
    for entry in (piece.strip().lower() for piece in no_proxy.split(",")):
        if not entry:
            continue
        name, _, port = entry.rpartition(":") if entry.count(":") == 1 else (entry, "", "")
        if port and port != str(origin.port):
            continue
        name = (name or entry).strip("[]").lstrip("*").lstrip(".")
        if entry == "*" or host == name or (name and host.endswith("." + name)):
            return True
        try:
            if ipaddress.ip_address(host) in ipaddress.ip_network(name, strict=False):
                return True
        except ValueError:
            continue
    return False
