"""The embedded engine as a benchmark target: token times are stamped on the engine thread, not by a reader."""

from __future__ import annotations

import asyncio
from time import monotonic_ns
from typing import TYPE_CHECKING

from sits.bench.client import RequestSpec, TargetInfo
from sits.engine.options import EngineOptions
from sits.engine.request import CANCELLED, FAILED, Request
from sits.engine.sampling_params import SamplingParams
from sits.errors import InputError, SitsError
from sits.spec import records
from sits.spec.records import RequestRecord

if TYPE_CHECKING:
    from pathlib import Path

    from sits.engine.llm import LLM


class EmbeddedClient:
    """Implements ``sits.bench.client.Client`` over an :class:`LLM` in this process."""

    def __init__(self, model: str, options: EngineOptions | None = None):
        self.model = model
        self.options = options or EngineOptions()
        self._llm: LLM | None = None

    @property
    def llm(self) -> LLM:
        """The engine; only after :meth:`open`."""
        if self._llm is None:
            raise SitsError("the embedded client is not open", "Call open() first")
        return self._llm

    async def open(self) -> TargetInfo:
        """Load the model. Raises ``InputError`` when that cannot work."""
        from sits.engine.llm import LLM

        if self._llm is None:
            self._llm = await asyncio.to_thread(LLM, self.model, options=self.options)
        llm = self._llm
        runner = llm.core.runner
        engine = {
            "device": str(runner.device),
            "kv_blocks": llm.core.scheduler.pool.capacity,
            "block_size": self.options.block_size,
            "kv_bytes": runner.kv_bytes,
            "max_running": llm.core.scheduler.config.max_running,
            "max_step_tokens": llm.core.scheduler.config.max_step_tokens,
            "prefix_caching": self.options.prefix_caching,
            "cuda_graphs": runner.no_graphs_because is None,
            "overlap": llm.core.overlap,
        }
        return TargetInfo(
            kind="embedded",
            name=self.model,
            card={**llm.card, "engine": engine},
            max_context=llm.core.scheduler.config.max_model_len,
            vocab_size=llm.vocab_size,
            notes=list(llm.notes),
        )

    async def send(self, request: RequestSpec, t_due: int) -> RequestRecord:
        """Carry out one request; the record says what failed."""
        record = RequestRecord(
            request_id=request.request_id,
            t_due=t_due,
            t_sent=monotonic_ns(),
            requested_output_tokens=request.max_tokens,
            session=request.session,
            turn=request.turn,
        )
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not ended.done():
                ended.set_result(None)

        def on_update(job: Request) -> None:  # on the engine thread
            if job.finished:
                loop.call_soon_threadsafe(wake)

        job: Request | None = None
        try:
            job = self._make_request(request)
            job.on_update = on_update
            record.t_sent = monotonic_ns()
            self.llm.worker.submit(job, salt=request.tenant or "")
            await ended
        except SitsError as error:
            record.status = records.ERROR
            record.error_kind = "request" if isinstance(error, InputError) else "engine"
            record.error = str(error)
            record.t_end = monotonic_ns()
            return record
        except asyncio.CancelledError:  # as the HTTP client does: what arrived so far is kept
            if job is not None:
                self.llm.worker.cancel(job)
            record.error_kind = "cancelled"
            _fill(record, job)
            record.status = records.CANCELLED
            return record
        _fill(record, job)
        return record

    async def snapshot(self) -> dict[str, float]:
        """Queue, running requests, KV use, prefix hits, preemptions."""
        return self.llm.gauges()

    async def text_loss(self, text: str) -> float:
        """Mean loss in nats per token of a text, for the convergence of the numerics."""
        return await asyncio.to_thread(self.llm.text_loss, text)

    def write_events(self, path: Path) -> int:
        """Write the engine's event log as ``events.jsonl.gz``; returns how many events."""
        self.llm.worker.settle()
        return self.llm.core.log.write(path)

    async def close(self) -> None:
        """Stop the engine."""
        if self._llm is not None:
            await asyncio.to_thread(self._llm.close)

    def _make_request(self, request: RequestSpec) -> Request:
        llm = self.llm
        params = SamplingParams(
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            seed=request.seed,
            ignore_eos=request.ignore_eos,
            **request.extra,
        )
        if request.messages is not None:
            prompt: str | list[int] = llm.encode_chat(request.messages)
        elif request.prompt_ids is not None:
            prompt = request.prompt_ids
        else:
            prompt = request.prompt or ""
        return llm.make_requests(prompt, params, request_id=request.request_id)[0]


def _fill(record: RequestRecord, job: Request | None) -> None:
    record.t_end = monotonic_ns()
    if job is None:
        return
    record.prompt_tokens = job.prompt_tokens
    record.cached_tokens = job.cached_tokens
    record.chunk_times_ns = [time - record.t_due for time in list(job.token_times_ns)]
    record.output_tokens = len(record.chunk_times_ns)
    record.finish_reason = job.finish_reason
    record.engine_times_ns = {
        "admitted": max(0, job.admitted_ns - record.t_due) if job.admitted_ns else 0,
        "first_scheduled": max(0, job.first_scheduled_ns - record.t_due) if job.first_scheduled_ns else 0,
        "preempted_total": job.preemptions,
    }
    if job.finished_ns:
        record.t_end = job.finished_ns
    if job.finish_reason == FAILED:
        record.status, record.error_kind, record.error = records.ERROR, "engine", job.error
    elif job.finish_reason == CANCELLED:
        record.status, record.error_kind = records.CANCELLED, "cancelled"
