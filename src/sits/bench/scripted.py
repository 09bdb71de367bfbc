"""A target without a model: answers with scripted timing. For trying the tool and for tests.

``sits bench --model scripted:ttft=20ms,itl=5ms`` needs nothing but the base install.
"""

from __future__ import annotations

import asyncio
import random
import re
import time

from sits.bench.client import RequestSpec, TargetInfo
from sits.errors import InputError
from sits.spec.records import ERROR, RequestRecord

PREFIX = "scripted:"
_DEFAULTS = {"ttft": 20.0, "itl": 5.0, "jitter": 0.0, "load": 0.0, "drift": 0.0, "fail": 0.0, "context": 8192.0}
_TERM = re.compile(r"^([a-z]+)=([0-9.]+)(ms|s)?$")


class ScriptedClient:
    """Times in ms. ``jitter`` is the relative deviation of each gap, ``load`` the growth of a gap per further
    request in flight, ``drift`` its growth per request ever sent, ``fail`` the share of requests that fail."""

    def __init__(self, script: str = "", seed: int = 0):
        self.values = dict(_DEFAULTS)
        for term in filter(None, script.removeprefix(PREFIX).split(",")):
            match = _TERM.match(term.strip())
            if match is None or match[1] not in self.values:
                raise InputError(
                    f"cannot read {term.strip()!r} of the scripted target",
                    f"Terms are {', '.join(_DEFAULTS)}, such as scripted:ttft=20ms,itl=5ms",
                )
            try:
                self.values[match[1]] = float(match[2]) * (1000.0 if match[3] == "s" else 1.0)
            except ValueError:
                raise InputError(f"{match[2]!r} of the scripted target is not a number") from None
        self._random = random.Random(seed)
        self._in_flight = 0
        self._sent = 0

    async def open(self) -> TargetInfo:
        return TargetInfo(
            "embedded",
            "scripted",
            card={"architecture": "none", "script": {k: v for k, v in self.values.items() if v != _DEFAULTS[k]}},
            max_context=int(self.values["context"]),
            vocab_size=32000,
            notes=["a scripted target was measured, not a model"],
        )

    async def send(self, request: RequestSpec, t_due: int) -> RequestRecord:
        sent = time.monotonic_ns()
        self._in_flight += 1
        self._sent += 1
        values = self.values
        record = RequestRecord(
            request_id=request.request_id,
            t_due=t_due,
            t_sent=sent,
            prompt_tokens=request.prompt_tokens,
            requested_output_tokens=request.max_tokens,
        )
        try:
            slower = (1 + values["load"] * (self._in_flight - 1)) * (1 + values["drift"] * self._sent)
            if self._random.random() < values["fail"]:
                await asyncio.sleep(values["ttft"] / 1e3)
                record.status, record.error, record.error_kind = ERROR, "scripted failure", "scripted"
                return record
            at, times = (sent - t_due) / 1e6 + values["ttft"] * slower, []
            for _ in range(request.max_tokens):
                times.append(round(at * 1e6))
                at += values["itl"] * slower * max(0.05, self._random.gauss(1.0, values["jitter"]))
            await asyncio.sleep(max(0.0, (t_due + times[-1] - time.monotonic_ns()) / 1e9))
            record.chunk_times_ns, record.output_tokens, record.finish_reason = times, len(times), "length"
            return record
        finally:
            record.t_end = max(
                time.monotonic_ns(), t_due + (record.chunk_times_ns[-1] if record.chunk_times_ns else 0)
            )
            self._in_flight -= 1

    async def snapshot(self) -> dict[str, float]:
        return {}

    async def close(self) -> None:
        pass
