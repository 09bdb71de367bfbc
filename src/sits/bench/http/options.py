"""Everything that can be set about an endpoint and the way it is driven."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sits.bench.http.pool import PoolOptions
from sits.errors import InputError

_FORBIDDEN_HEADERS = {"host", "content-length", "transfer-encoding", "connection", "expect", "upgrade", "te"}


@dataclass(slots=True)
class EndpointOptions:
    """Times in seconds. A timeout of None means none."""

    url: str
    api: str = "chat"
    model: str | None = None  # None: the first one /v1/models lists
    api_key: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    pool: PoolOptions = field(default_factory=PoolOptions)
    request_timeout_s: float | None = 600.0
    first_token_timeout_s: float | None = 300.0
    idle_timeout_s: float | None = 60.0  # between two reads once the answer has begun
    max_redirects: int = 5
    retries: int = 3  # after 429/503 with Retry-After, and only then
    max_retry_after_s: float = 30.0
    compression: bool = False  # ask for gzip; off, because compressing proxies hold tokens back
    keep_text: bool = False
    extra_body: dict[str, Any] = field(default_factory=dict)
    chunk_usage: bool = False  # ask for running usage: exact tokens per chunk, more work for the server
    probe: bool = True

    def __post_init__(self) -> None:
        for name, value in self.headers.items():
            if name.lower() in _FORBIDDEN_HEADERS:
                raise InputError(f"header {name!r} is set by the client itself")
            if not name or not all(c.isalnum() or c in "!#$%&'*+-.^_`|~" for c in name) or not name.isascii():
                raise InputError(f"{name!r} is not a valid header name")
            if any(ord(c) < 32 or ord(c) == 127 or ord(c) > 255 for c in value):
                raise InputError(f"the value of header {name!r} has control or non-Latin-1 characters")
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable()):
            raise InputError("the API key has characters no header can carry", "Is there a line break at its end?")
