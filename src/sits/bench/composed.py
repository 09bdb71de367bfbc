"""Prompts composed of parts: a shared prefix, earlier turns, blocks named by a trace, fresh text.

A part is ``(tokens, salt)``; equal salts give equal text, so that a prefix cache sees what the workload means.
Works with token ids (embedded engine) and with text (endpoints).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sits.bench.client import RequestSpec

_POOL = 1 << 17

Part = tuple[int, int]  # (tokens, salt)


class PartMaker:
    """Turns parts into prompts. ``text(tokens, salt)`` makes text without template overhead; ids otherwise."""

    def __init__(
        self,
        *,
        vocab_size: int | None = None,
        text: Callable[[int, int], str] | None = None,
        overhead: int = 0,
        seed: int = 0,
    ):
        if vocab_size is None and text is None:
            raise ValueError("a part maker needs vocab_size or a text maker")
        self._text = None if vocab_size is not None else text
        self.overhead = overhead  # tokens the target's template adds to a prompt
        self.seed = seed
        if vocab_size is not None:
            low, high = (vocab_size // 50, vocab_size - vocab_size // 50) if vocab_size > 500 else (0, vocab_size)
            self._low, self._span = low, high - low
            self._pool: list[int] = np.random.default_rng([seed, 0x7002]).integers(low, high, _POOL).tolist()

    @property
    def uses_ids(self) -> bool:
        """Prompts are token ids, not text."""
        return self._text is None

    def ids(self, tokens: int, salt: int) -> list[int]:
        """``tokens`` token ids that begin unlike those of any other salt."""
        start = (salt * 0x9E3779B97F4A7C15 >> 7) % (_POOL - 1)
        ids = self._pool[start : start + tokens]
        while len(ids) < tokens:
            ids += self._pool[: tokens - len(ids)]
        rest = salt & ((1 << 64) - 1)
        for place in range(tokens):
            rest, digit = divmod(rest, self._span)
            ids[place] = self._low + digit
            if rest == 0:
                break
        return ids

    def words(self, tokens: int, salt: int) -> str:
        """About ``tokens`` tokens of text that begin unlike those of any other salt."""
        assert self._text is not None
        return self._text(tokens, salt)

    def fill(self, spec: RequestSpec, parts: Sequence[Part]) -> RequestSpec:
        """Set the prompt of ``spec`` to the parts in order; its length is their sum."""
        spec.prompt_tokens = sum(tokens for tokens, _ in parts)
        if self.uses_ids:
            spec.prompt_ids = [token for tokens, salt in parts if tokens > 0 for token in self.ids(tokens, salt)]
            return spec
        left = self.overhead
        pieces = []
        for tokens, salt in reversed(parts):
            # The template's tokens are taken off the last parts, so that shared beginnings stay whole.
            cut = min(left, tokens - 1) if tokens > 1 else 0
            left -= cut
            if tokens > 0:
                pieces.append(self.words(tokens - cut, salt))
        spec.prompt = " ".join(reversed(pieces))
        return spec
