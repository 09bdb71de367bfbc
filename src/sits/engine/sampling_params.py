"""What a caller may ask of the sampler, checked once when it is made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sits.errors import InputError

MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens and when to stop.

    Order of the filters: penalties, ``min_tokens``, temperature, top-k, top-p over what top-k left, min-p. All
    tokens that tie with the last one kept are kept too, so the result never depends on a sort order.
    Log-probabilities are those of the model, before any of it.

    Raises ``InputError`` for a value outside its range.
    """

    max_tokens: int = 128
    min_tokens: int = 0  # end-of-text and stop tokens cannot be chosen before this many
    temperature: float = 0.0  # 0 = greedy
    top_k: int = 0  # 0 = off
    top_p: float = 1.0
    min_p: float = 0.0  # keep tokens with at least this share of the largest probability
    repetition_penalty: float = 1.0  # > 1 discourages tokens of the prompt and of the output
    presence_penalty: float = 0.0  # subtracted once from the logit of each token of the output
    frequency_penalty: float = 0.0  # subtracted for each occurrence in the output
    seed: int | None = None  # the same seed, prompt and parameters choose the same tokens in any batch
    stop: Sequence[str] = ()  # the text ends before the first of these
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None  # how many alternatives to report beside the chosen token
    n: int = 1  # independent completions of each prompt

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        object.__setattr__(self, "stop", tuple(self.stop or ()))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids or ()))
        for name in ("max_tokens", "n"):
            _check_integer(name, getattr(self, name), 1)
        for name in ("min_tokens", "top_k"):
            _check_integer(name, getattr(self, name), 0)
        if self.logprobs is not None:
            _check_integer("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if self.seed is not None:
            _check_integer("seed", self.seed, -(2**63), 2**64 - 1)
        _check_number("temperature", self.temperature, 0.0, 100.0)
        _check_number("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _check_number("min_p", self.min_p, 0.0, 1.0)
        _check_number("repetition_penalty", self.repetition_penalty, 0.0, 100.0, open_low=True)
        _check_number("presence_penalty", self.presence_penalty, -10.0, 10.0)
        _check_number("frequency_penalty", self.frequency_penalty, -10.0, 10.0)
        if self.min_tokens > self.max_tokens:
            raise InputError(f"min_tokens ({self.min_tokens}) is larger than max_tokens ({self.max_tokens})")
        if any(not isinstance(text, str) or not text for text in self.stop):
            raise InputError("stop must hold non-empty strings")
        if any(isinstance(token, bool) or not isinstance(token, int) or token < 0 for token in self.stop_token_ids):
            raise InputError("stop_token_ids must hold token ids, which are not negative")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always chosen."""
        return self.temperature < 1e-5

    @property
    def penalised(self) -> bool:
        """Whether the tokens so far change the logits."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def filtered(self) -> bool:
        """Whether top-k, top-p or min-p can exclude a token."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0)

    def for_completion(self, index: int) -> SamplingParams:
        """The parameters of completion ``index`` of ``n``: one completion, with a seed of its own."""
        seed = self.seed if self.seed is None or index == 0 else (self.seed + index) % 2**63
        return replace(self, n=1, seed=seed)


def _check_integer(name: str, value: object, low: int, high: int | None = None) -> None:
    bound = f"at least {low}" if high is None else f"from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{name} must be a whole number, not {value!r}")
    if value < low or (high is not None and value > high):
        raise InputError(f"{name} must be {bound}, not {value}")


def _check_number(name: str, value: object, low: float, high: float, *, open_low: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"{name} must be a number, not {value!r}")
    if value > high or value < low or (open_low and value == low):
        raise InputError(
            f"{name} must be {'above' if open_low else 'from'} {low:g} and at most {high:g}, not {value}"
        )
