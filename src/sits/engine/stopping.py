"""When a request ends, and whether it can be served at all."""

from __future__ import annotations

from sits.engine.request import LENGTH, STOP, Request
from sits.errors import InputError


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold ``tokens`` tokens."""
    return -(-tokens // block_size)


def check_fits(request: Request, max_model_len: int, block_size: int, capacity: int) -> None:
    """Raise ``InputError`` for a request that could never end; lower ``max_tokens`` to the end of the context."""
    prompt = request.prompt_tokens
    if prompt < 1:
        raise InputError("the prompt is empty", "Give at least one token")
    if prompt >= max_model_len:
        raise InputError(
            f"the prompt has {prompt} tokens, but the context holds {max_model_len} with at least one for the answer",
            "Shorten the prompt, or raise max_model_len if the model allows it",
        )
    request.max_tokens = min(request.params.max_tokens, max_model_len - prompt)
    # The last token chosen is never read back, so it needs no place in the cache.
    needed = blocks_for(prompt + request.max_tokens - 1, block_size)
    if needed > capacity:
        raise InputError(
            f"{prompt} prompt tokens and up to {request.max_tokens} output tokens need {needed} KV blocks of"
            f" {block_size} tokens, but the cache has {capacity}",
            "Ask for fewer tokens (max_tokens) or give the KV cache more memory (kv_blocks)",
        )


def finish_reason(request: Request) -> str | None:
    """Why the request ends with the last token it got, or ``None`` when it goes on.

    Call it once for each token: it feeds the request's detokenizer, which is the one that knows stop strings.
    """
    token, count = request.token_ids[-1], len(request.token_ids) - request.prompt_tokens
    if token in request.stop_ids and count >= request.params.min_tokens:
        return STOP
    if request.detokenizer is not None:
        request.detokenizer.push(token, match_stop=count >= request.params.min_tokens)
        if request.detokenizer.stopped:
            return STOP
    return LENGTH if count >= request.max_tokens else None
