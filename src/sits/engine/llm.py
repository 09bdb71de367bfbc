"""The Python API: ``LLM("smollm2-135m").generate("Hello")``, and an async iterator for streaming."""

from __future__ import annotations

import asyncio
import itertools
import queue
from collections.abc import AsyncIterator, Sequence
from typing import Any

from sits.engine.detokenizer import IncrementalDetokenizer
from sits.engine.noise import derive_seed
from sits.engine.options import EngineOptions, build_core, engine_gauges
from sits.engine.outputs import RequestOutput, StreamChunk, request_output
from sits.engine.request import FAILED, Request
from sits.engine.sampling_params import SamplingParams
from sits.engine.streaming import StreamReader
from sits.engine.worker import EngineWorker
from sits.errors import InputError, SitsError
from sits.garbage import FrozenHeap

Prompt = str | Sequence[int]
Messages = Sequence[dict[str, Any]]


class LLM:
    """A model and an engine of its own. Close it, or use it in a ``with`` statement.

    ``model`` is what ``sits models list`` shows, a Hugging Face folder or hub id, a ``.gguf`` file, or
    ``synthetic:<preset>``. Every other argument is a field of :class:`EngineOptions`. Raises ``InputError`` for
    anything that cannot work.
    """

    _heap: FrozenHeap | None = None

    def __init__(self, model: str, *, options: EngineOptions | None = None, **settings: Any):
        from sits.engine.rehearsal import Rehearsal
        from sits.models.loading import load_model

        if options is None:
            options = make_options(settings)
        elif settings:
            raise InputError("give either options or single settings, not both")
        rehearsal = Rehearsal(options)
        try:
            loaded = load_model(
                model,
                dtype=options.dtype,
                device=options.device,
                max_context=options.max_model_len or 0,
                quantization=options.quantization,
                on_first_layer=rehearsal.begin,
            )
        finally:
            rehearsal.end()
        self._attach(loaded.model, loaded.tokenizer, loaded.card, options, loaded.model.max_context)

    @classmethod
    def from_model(cls, model: Any, tokenizer: Any, *, max_context: int = 0, **settings: Any) -> LLM:
        """An engine around a model object that keeps ``sits.models.model.CausalModel``."""
        self = cls.__new__(cls)
        self._attach(model, tokenizer, {}, make_options(settings), max_context or model.config.max_position)
        return self

    def _attach(self, model: Any, tokenizer: Any, card: dict[str, Any], options: EngineOptions, context: int) -> None:
        self.options = options
        self.model = model
        self.tokenizer = tokenizer
        self.card = card
        self.core, self.notes = build_core(model, options, context)
        self.vocab_size: int = model.config.vocab_size
        self._eos_ids = frozenset(model.config.eos_ids) | frozenset(getattr(tokenizer, "eos_ids", ()))
        self._numbers = itertools.count()
        self.worker = EngineWorker(self.core)
        if model.device.type == "cuda":  # or the collector walks all that has been loaded in the middle of a step
            self._heap = FrozenHeap()

    # Synchronous.

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[RequestOutput]:
        """Complete one prompt or many (texts or token ids); results come in the order of the prompts.

        Raises ``InputError`` for a bad prompt before anything runs, ``SitsError`` when a request fails.
        """
        one = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))
        prompt_list: list[Any] = [prompts] if one else list(prompts)
        if params is None or isinstance(params, SamplingParams):
            param_list = [params or SamplingParams()] * len(prompt_list)
        else:
            param_list = list(params)
        if len(param_list) != len(prompt_list):
            raise InputError(f"{len(prompt_list)} prompts but {len(param_list)} sampling parameters")
        ended: queue.SimpleQueue[Request] = queue.SimpleQueue()

        def on_update(request: Request) -> None:
            if request.finished:
                ended.put(request)

        groups: list[list[Request]] = []
        for index, (prompt, param) in enumerate(zip(prompt_list, param_list)):
            try:
                groups.append(self.make_requests(prompt, param))
            except InputError as error:
                where = f"prompt {index}: " if len(prompt_list) > 1 else ""
                raise InputError(where + error.message, error.hint) from None
        submitted: list[Request] = []
        try:
            for group in groups:
                for request in group:
                    request.on_update = on_update
                self.worker.submit(group[0], followers=group[1:])
                submitted += group
            for _ in submitted:
                failed = ended.get()
                if failed.finish_reason == FAILED:
                    raise SitsError(f"request {failed.request_id} failed: {failed.error}")
        except BaseException:
            for request in submitted:
                self.worker.cancel(request)
            raise
        texts = [prompt if isinstance(prompt, str) else None for prompt in prompt_list]
        return [request_output(group, text, self.tokenizer.decode) for group, text in zip(groups, texts)]

    def chat(self, messages: Messages, params: SamplingParams | None = None) -> RequestOutput:
        """Answer a conversation, rendered with the model's chat template."""
        return self.generate([self.encode_chat(messages)], params)[0]

    # Asynchronous.

    async def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, salt: str = "", priority: int = 0
    ) -> AsyncIterator[StreamChunk]:
        """Yield pieces as they are generated. Leaving the loop early cancels the request."""
        group = self.make_requests(prompt, params or SamplingParams(), priority=priority)
        reader = StreamReader(group, self.tokenizer.decode, asyncio.get_running_loop())
        self.worker.submit(group[0], salt=salt, followers=group[1:])
        try:
            async for chunk in reader:
                yield chunk
        finally:
            for request in group:
                if not request.finished:
                    self.worker.cancel(request)

    # Parts, for the server and the benchmark client.

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt; checks ids that are given. Raises ``InputError``."""
        if isinstance(prompt, str):
            return list(self.tokenizer.encode(prompt))
        ids = list(prompt)
        for position, token in enumerate(ids):
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < self.vocab_size:
                raise InputError(
                    f"token {position} of the prompt is {token!r}, not an id from 0 to {self.vocab_size - 1}",
                    "The prompt was made with another tokenizer, or is not a list of token ids",
                )
        return ids

    def encode_chat(self, messages: Messages, **variables: Any) -> list[int]:
        """Token ids of a conversation. Raises ``InputError`` when the model has no chat template."""
        text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, **variables)
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def make_requests(
        self, prompt: Prompt, params: SamplingParams, *, request_id: str | None = None, priority: int = 0
    ) -> list[Request]:
        """One request for each of the ``n`` completions of a prompt; submit the first with the others following."""
        ids = self.encode(prompt)
        for token in params.stop_token_ids:
            if token >= self.vocab_size:
                raise InputError(f"stop token {token} is not in the vocabulary of {self.vocab_size}")
        requests = []
        for index in range(params.n):
            number = next(self._numbers)
            own = params.for_completion(index) if params.n > 1 else params
            name = f"request-{number}" if request_id is None else f"{request_id}.{index}" if index else request_id
            detokenizer = IncrementalDetokenizer(self.tokenizer.decode, params.stop, ids) if params.stop else None
            request = Request(name, ids, own, priority=priority, detokenizer=detokenizer)
            request.seed = derive_seed(self.options.seed, number) if own.seed is None else own.seed
            request.stop_ids = frozenset(params.stop_token_ids)
            if not params.ignore_eos:
                request.stop_ids |= self._eos_ids
            requests.append(request)
        return requests

    def gauges(self) -> dict[str, float]:
        """Queue, cache use and counters at this moment."""
        return engine_gauges(self.core)

    def text_loss(self, text: str) -> float:
        """Mean loss in nats per token of a text under the model."""
        from sits.engine.token_loss import token_loss

        ids = self.encode(text)[: self.core.scheduler.config.max_model_len]
        if len(ids) < 2:
            raise InputError("the loss needs a text of at least two tokens")
        return self.worker.call(lambda: token_loss(self.model, ids, self.options.kv_dtype)).result()

    def warm_up(self) -> float:
        """Run the steps that would compile or capture something later; returns the seconds it took."""
        return self.worker.call(self.core.runner.warm_up).result()

    def close(self) -> None:
        """Cancel what still runs and stop the engine. Safe to call twice."""
        if hasattr(self, "worker"):
            self.worker.close()
        if self._heap is not None:
            self._heap.release()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def make_options(settings: dict[str, Any]) -> EngineOptions:
    """Options from keyword arguments. Raises ``InputError`` for a name that does not exist."""
    import difflib
    from dataclasses import fields

    known = [option.name for option in fields(EngineOptions)]
    for name in settings:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            raise InputError(f"there is no engine option {name!r}", f"Did you mean {close[0]}?" if close else None)
    return EngineOptions(**settings)
