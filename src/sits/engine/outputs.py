"""What a caller gets back."""

from __future__ import annotations

from dataclasses import dataclass, field

from sits.engine.detokenizer import Decode, detokenize
from sits.engine.request import STOP, Request


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One output token: its log-probability and the most likely alternatives (id, log-probability)."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One of the ``n`` completions of a prompt."""

    index: int
    text: str
    token_ids: list[int]  # including the token that ended it
    finish_reason: str  # stop | length | cancelled | error
    logprobs: list[TokenLogprob] | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A prompt and its completions, in the order of their index. Times are ``time.monotonic_ns``."""

    request_id: str
    prompt: str | None
    prompt_ids: list[int]
    outputs: list[CompletionOutput]
    cached_tokens: int  # prompt tokens found in the prefix index
    preemptions: int
    arrival_ns: int
    first_token_ns: int | None
    finished_ns: int
    token_times_ns: list[list[int]] = field(default_factory=list)  # of each completion

    @property
    def text(self) -> str:
        """Text of the first completion."""
        return self.outputs[0].text


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """News of one completion. ``text`` may be empty: a character or a stop string may be incomplete."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    logprobs: list[TokenLogprob] | None = None
    error: str | None = None


def visible_ids(request: Request) -> list[int]:
    """The output without the stop token that ended it."""
    output = request.output_ids
    return output[:-1] if request.finish_reason == STOP and output and output[-1] in request.stop_ids else output


def token_logprobs(request: Request, start: int = 0) -> list[TokenLogprob] | None:
    """Log-probabilities of the output tokens from ``start``, if they were asked for."""
    if request.params.logprobs is None:
        return None
    ids = request.token_ids[request.prompt_tokens + start :]
    return [TokenLogprob(token, own, top) for token, (own, top) in zip(ids, request.logprobs[start:])]


def completion(request: Request, index: int, decode: Decode) -> CompletionOutput:
    """The result of a finished request."""
    if request.detokenizer is not None:
        request.detokenizer.finish()
        text = request.detokenizer.text
    else:
        text = detokenize(decode, visible_ids(request), request.token_ids[: request.prompt_tokens])
    return CompletionOutput(
        index=index,
        text=text,
        token_ids=request.output_ids,
        finish_reason=request.finish_reason or "",
        logprobs=token_logprobs(request),
        error=request.error,
    )


def request_output(group: list[Request], prompt: str | None, decode: Decode) -> RequestOutput:
    """The result of a prompt from the finished requests of its completions."""
    first = group[0]
    starts = [request.token_times_ns[0] for request in group if request.token_times_ns]
    return RequestOutput(
        request_id=first.request_id,
        prompt=prompt,
        prompt_ids=first.token_ids[: first.prompt_tokens],
        outputs=[completion(request, index, decode) for index, request in enumerate(group)],
        cached_tokens=first.cached_tokens,
        preemptions=sum(request.preemptions for request in group),
        arrival_ns=first.arrival_ns,
        first_token_ns=min(starts, default=None),
        finished_ns=max(request.finished_ns for request in group),
        token_times_ns=[request.token_times_ns for request in group],
    )
