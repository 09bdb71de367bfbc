"""From the engine thread into an event loop: one wake-up per step, text made on the reader's side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from sits.engine.detokenizer import Decode, IncrementalDetokenizer
from sits.engine.outputs import StreamChunk, token_logprobs, visible_ids
from sits.engine.request import Request


class StreamReader:
    """Async iterator over the news of a group of requests; ends when all of them have."""

    def __init__(self, group: list[Request], decode: Decode, loop: asyncio.AbstractEventLoop):
        """Becomes the listener of each request, so make it before they are submitted."""
        self._group = group
        self._loop = loop
        self._news: asyncio.Queue[tuple[int, int, bool]] = asyncio.Queue()
        self._read = [0] * len(group)
        self._texts = [
            request.detokenizer or IncrementalDetokenizer(decode, context=request.token_ids[: request.prompt_tokens])
            for request in group
        ]
        for index, request in enumerate(group):
            request.on_update = self._listener(index)

    def _listener(self, index: int):  # type: ignore[no-untyped-def]
        put, call = self._news.put_nowait, self._loop.call_soon_threadsafe

        def on_update(request: Request) -> None:  # on the engine thread
            try:
                call(put, (index, request.output_tokens, request.finished))
            except RuntimeError:  # the loop is closed: nobody reads any more
                request.on_update = None

        return on_update

    async def __aiter__(self) -> AsyncIterator[StreamChunk]:
        open_requests = len(self._group)
        while open_requests:
            index, count, finished = await self._news.get()
            open_requests -= finished
            yield self._chunk(index, count, finished)

    def _chunk(self, index: int, count: int, finished: bool) -> StreamChunk:
        request, text, start = self._group[index], self._texts[index], self._read[index]
        self._read[index] = count
        ids = request.token_ids[request.prompt_tokens + start : request.prompt_tokens + count]
        if text is not request.detokenizer:
            shown = len(visible_ids(request)) if finished else count
            for token in ids[: shown - start]:
                text.push(token)
        if finished:
            text.finish()
        logprobs = token_logprobs(request, start)
        return StreamChunk(
            index=index,
            text=text.take(),
            token_ids=ids,
            finish_reason=request.finish_reason if finished else None,
            logprobs=logprobs[: count - start] if logprobs is not None else None,
            error=request.error if finished else None,
        )
